package gateway

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"aloft/backends/openai"
	"aloft/jobs"
)

// tuneObject is OpenAI's fine_tuning.job. Fields that do not apply are null.
type tuneObject struct {
	ID           string            `json:"id"`
	Object       string            `json:"object"`
	Created      int64             `json:"created_at"`
	Error        *tuneError        `json:"error"`
	Model        string            `json:"model"`
	Tuned        *string           `json:"fine_tuned_model"`
	Finished     *int64            `json:"finished_at"`
	Estimated    *int64            `json:"estimated_finish"`
	Organization string            `json:"organization_id"`
	Status       string            `json:"status"`
	Results      []string          `json:"result_files"`
	Training     string            `json:"training_file"`
	Validation   *string           `json:"validation_file"`
	Tokens       *int64            `json:"trained_tokens"`
	Seed         int64             `json:"seed"`
	Suffix       *string           `json:"user_provided_suffix"`
	Metadata     map[string]string `json:"metadata"`
	Integrations []struct{}        `json:"integrations"` // there are none
	Hyper        tuneHyper         `json:"hyperparameters"`
	Method       tuneMethod        `json:"method"`
}

type tuneMethod struct {
	Type       string         `json:"type"`
	Supervised tuneSupervised `json:"supervised"`
}

type tuneSupervised struct {
	Hyper tuneHyper `json:"hyperparameters"`
}

type tuneError struct {
	Code    string  `json:"code"`
	Message string  `json:"message"`
	Param   *string `json:"param"`
}

// tuneOf is a fine-tuning job as it stands.
func tuneOf(j jobs.Job) tuneObject {
	f := j.FineTune
	hyper := tuneHyper{
		BatchSize:    hyperOf(j.Params[jobs.ParamBatchSize]),
		LearningRate: hyperOf(j.Params[jobs.ParamLearningRate]),
		Epochs:       hyperOf(j.Params[jobs.ParamEpochs]),
	}
	o := tuneObject{
		ID: j.ID, Object: "fine_tuning.job", Created: j.Created.Unix(), Model: f.Model, Tuned: orNull(f.Served),
		Finished: stamp(j.Finished), Organization: j.Tenant, Status: tuneStatus(j), Results: f.Results,
		Training: f.Training, Validation: orNull(f.Validation), Tokens: orNull(f.Tokens), Seed: f.Seed, Suffix: orNull(f.Suffix),
		Metadata: f.Metadata, Hyper: hyper, Method: tuneMethod{"supervised", tuneSupervised{hyper}},
	}
	if o.Results == nil {
		o.Results = []string{}
	}
	if p := j.Progress; j.State == jobs.Running && p.Rate > 0 && p.Total > p.Done && !p.Heard.IsZero() {
		o.Estimated = stamp(p.Heard.Add(time.Duration(float64(p.Total-p.Done) / p.Rate * float64(time.Second))))
	}
	if o.Status == "failed" {
		o.Error = &tuneError{Code: cmp.Or(f.Code, jobs.CodeTraining), Message: cmp.Or(j.Error, "the job "+string(j.State)), Param: orNull(f.Param)}
	}
	return o
}

func hyperOf(value string) json.RawMessage {
	if !json.Valid([]byte(value)) {
		return json.RawMessage(`"auto"`)
	}
	return json.RawMessage(value)
}

// tuneStatus is OpenAI's word for a job's state. A job whose slice was taken
// back is queued again; one that is to be cancelled says so at once, as OpenAI's
// do, though its program may still be saving.
func tuneStatus(j jobs.Job) string {
	switch {
	case j.State == jobs.Expired:
		return "failed"
	case j.State.Terminal():
		return string(j.State)
	case !j.Cancelling.IsZero():
		return "cancelled"
	case j.State == jobs.Paused || !j.Pausing.IsZero():
		return "paused"
	case !j.FineTune.Checked:
		return "validating_files"
	case j.State == jobs.Running || j.State == jobs.Preempting:
		return "running"
	}
	return "queued"
}

// tuneEvent is OpenAI's fine_tuning.job.event.
type tuneEvent struct {
	Object  string         `json:"object"`
	ID      string         `json:"id"`
	Created int64          `json:"created_at"`
	Level   string         `json:"level"`
	Message string         `json:"message"`
	Type    string         `json:"type"` // message or metrics
	Data    map[string]any `json:"data"`
}

func eventPrefix(job string) string {
	return "ftevent-" + strings.TrimPrefix(job, "ftjob-") + "-"
}

func eventOf(job string, e jobs.Event) tuneEvent {
	o := tuneEvent{Object: "fine_tuning.job.event", ID: eventPrefix(job) + strconv.Itoa(e.Seq), Created: e.At.Unix(),
		Level: e.Level, Message: e.Message, Type: "message", Data: map[string]any{}}
	for k, v := range e.Data {
		o.Data[k] = v
	}
	if e.Kind == jobs.EventMetrics {
		o.Type = "metrics"
		for k, v := range e.Data {
			if n, err := strconv.ParseFloat(v, 64); err == nil {
				o.Data[k] = n
			}
		}
	}
	return o
}

// eventPage takes up to limit of a job's events, which come oldest first, from
// the newest, or the newest before number before.
func eventPage(job string, list []jobs.Event, before, limit int) tuneList[tuneEvent] {
	out := tuneList[tuneEvent]{Object: "list", Data: []tuneEvent{}}
	for _, e := range slices.Backward(list) {
		switch {
		case before > 0 && e.Seq >= before:
		case len(out.Data) == limit:
			out.More = true
			return out
		default:
			out.Data = append(out.Data, eventOf(job, e))
		}
	}
	return out
}

// tuneCheckpoint is OpenAI's fine_tuning.job.checkpoint. Its model's name is null:
// no checkpoint is served.
type tuneCheckpoint struct {
	Object  string             `json:"object"`
	ID      string             `json:"id"`
	Created int64              `json:"created_at"`
	Name    *string            `json:"fine_tuned_model_checkpoint"`
	Job     string             `json:"fine_tuning_job_id"`
	Step    int64              `json:"step_number"`
	Metrics map[string]float64 `json:"metrics"`
}

// checkpointPage lists a job's checkpoints, newest first, after an id ("" = from
// the newest).
func checkpointPage(j jobs.Job, after string, limit int) (*page[tuneCheckpoint], error) {
	out := newPage[tuneCheckpoint](false)
	past := after == ""
	for _, c := range slices.Backward(j.Checkpoints) {
		o := checkpointOf(j.ID, c)
		switch {
		case !past:
			past = o.ID == after
		case len(out.Data) == limit:
			out.More = true
			return out, nil
		default:
			out.add(o.ID, o)
		}
	}
	if !past {
		return nil, invalid("after", openai.CodeValue, "%.100q is no checkpoint of this job", after)
	}
	return out, nil
}

func checkpointOf(job string, c jobs.Checkpoint) tuneCheckpoint {
	o := tuneCheckpoint{Object: "fine_tuning.job.checkpoint", Created: c.At.Unix(), Job: job, Step: c.Step,
		ID:      "ftckpt_" + strings.TrimPrefix(job, "ftjob-") + "_" + strconv.FormatInt(c.Step, 10),
		Metrics: map[string]float64{"step": float64(c.Step)}}
	for k, v := range c.Metrics {
		o.Metrics[k] = v
	}
	return o
}
