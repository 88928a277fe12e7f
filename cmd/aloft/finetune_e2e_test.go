package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/shared"
)

// fineTuning is the fine-tuning API of the quick start, by the official clients:
// the demonstration trainer learns from the file that they upload.
func (s *instance) fineTuning(t *testing.T) {
	client := openai.NewClient(option.WithBaseURL(s.url+"/v1/"), option.WithAPIKey("none"),
		option.WithMaxRetries(0), option.WithRequestTimeout(patience))
	t.Run("go", func(t *testing.T) { goFineTune(t, client) })
	t.Run("go-held", func(t *testing.T) { goFineTuneHeld(t, client) })
	t.Run("go-errors", func(t *testing.T) { goFineTuneErrors(t, client) })
	t.Run("node", func(t *testing.T) { nodeFineTune(t, s.url) })
}

// exampleFile uploads n examples of a chat.
func exampleFile(t *testing.T, client openai.Client, n int, more string) string {
	t.Helper()
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `{"messages":[{"role":"user","content":"What was made on day %d?"},{"role":"assistant","content":"And God saw every thing that he had made, and, behold, it was very good."}]}`+"\n", i)
	}
	f, err := client.Files.New(t.Context(), openai.FileNewParams{
		File: openai.File(strings.NewReader(b.String()+more), "examples.jsonl", "application/jsonl"), Purpose: openai.FilePurposeFineTune})
	if err != nil {
		t.Fatal(err)
	}
	return f.ID
}

func untilTune(t *testing.T, client openai.Client, id string, statuses ...string) *openai.FineTuningJob {
	t.Helper()
	var j *openai.FineTuningJob
	if !eventually(patience, func() bool {
		var err error
		if j, err = client.FineTuning.Jobs.Get(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		for _, s := range statuses {
			if string(j.Status) == s {
				return true
			}
		}
		return false
	}) {
		t.Fatalf("not %v after %v: %s", statuses, patience, j.RawJSON())
	}
	return j
}

func epochs(n int64) openai.FineTuningJobNewParamsMethod {
	return openai.FineTuningJobNewParamsMethod{Type: "supervised", Supervised: openai.SupervisedMethodParam{
		Hyperparameters: openai.SupervisedHyperparameters{NEpochs: openai.SupervisedHyperparametersNEpochsUnion{OfInt: openai.Int(n)}}}}
}

func goFineTune(t *testing.T, client openai.Client) {
	training := exampleFile(t, client, 20, "")
	made, err := client.FineTuning.Jobs.New(t.Context(), openai.FineTuningJobNewParams{Model: lm, TrainingFile: training,
		ValidationFile: openai.String(exampleFile(t, client, 3, "")), Suffix: openai.String("psalms"), Seed: openai.Int(7),
		Metadata: shared.Metadata{"from": "go"}, Method: epochs(3)})
	if err != nil {
		t.Fatal(err)
	}
	if made.Object != "fine_tuning.job" || made.Status != openai.FineTuningJobStatusValidatingFiles || made.CreatedAt == 0 || made.JSON.FinishedAt.Raw() != "null" {
		t.Errorf("made %s", made.RawJSON())
	}
	j := untilTune(t, client, made.ID, "succeeded", "failed", "cancelled")
	if j.Status != "succeeded" || j.Model != lm || j.TrainingFile != training || j.ValidationFile == "" || j.Seed != 7 || j.TrainedTokens == 0 ||
		j.FinishedAt < j.CreatedAt || j.Hyperparameters.NEpochs.OfInt != 3 || j.Method.Supervised.Hyperparameters.NEpochs.OfInt != 3 ||
		j.Metadata["from"] != "go" || len(j.ResultFiles) != 2 || j.JSON.Error.Raw() != "null" {
		t.Fatalf("job %s", j.RawJSON())
	}
	if j.JSON.FineTunedModel.Raw() != "null" {
		t.Errorf("the demonstration trainer's weights are no model that is served: %s", j.RawJSON())
	}
	rows := strings.Split(strings.TrimSpace(content(t, client, j.ResultFiles[0])), "\n")
	if rows[0] != "step,train_loss,train_accuracy,valid_loss,valid_mean_token_accuracy" || len(rows) < 2 {
		t.Errorf("metrics %q", rows)
	}
	if weights := content(t, client, j.ResultFiles[1]); len(weights)%8 != 0 || len(weights) < 1000 {
		t.Errorf("%d bytes of weights", len(weights))
	}
	const closing = "fine_tuned_model is null" // what is said last, after the job's end
	if !eventuallySaid(t, client, j.ID, closing) {
		t.Errorf("no event says %q", closing)
	}
	said, metrics := "", 0
	for pages := client.FineTuning.Jobs.ListEventsAutoPaging(t.Context(), j.ID, openai.FineTuningJobListEventsParams{Limit: openai.Int(4)}); pages.Next(); {
		e := pages.Current()
		said += string(e.Level) + " " + e.Message + "\n"
		if data, ok := e.Data.(map[string]any); e.Type == "metrics" && ok && data["train_loss"].(float64) > 0 && data["step"].(float64) > 0 {
			metrics++
		}
	}
	for _, want := range []string{"validating training file", "20 examples", "succeeded", "result weights.f64"} {
		if !strings.Contains(said, want) {
			t.Errorf("no event says %q:\n%s", want, said)
		}
	}
	if metrics == 0 {
		t.Errorf("no metrics among the events:\n%s", said)
	}
	last := int64(1 << 40)
	for pages := client.FineTuning.Jobs.Checkpoints.ListAutoPaging(t.Context(), j.ID, openai.FineTuningJobCheckpointListParams{Limit: openai.Int(1)}); pages.Next(); {
		c := pages.Current()
		if c.FineTuningJobID != j.ID || c.StepNumber >= last || c.Metrics.TrainLoss == 0 || c.Metrics.ValidLoss == 0 || c.Metrics.Step != float64(c.StepNumber) {
			t.Errorf("checkpoint %s after step %d", c.RawJSON(), last)
		}
		last = c.StepNumber
	}
	if last == 1<<40 {
		t.Error("no checkpoint")
	}
	listed := false
	for pages := client.FineTuning.Jobs.ListAutoPaging(t.Context(), openai.FineTuningJobListParams{Limit: openai.Int(1), Metadata: map[string]string{"from": "go"}}); pages.Next(); {
		listed = listed || pages.Current().ID == j.ID
	}
	if !listed {
		t.Error("the job is not listed")
	}
}

// eventuallySaid waits for an event that follows the job's end.
func eventuallySaid(t *testing.T, client openai.Client, id, want string) bool {
	return eventually(patience, func() bool {
		list, err := client.FineTuning.Jobs.ListEvents(t.Context(), id, openai.FineTuningJobListEventsParams{})
		return err == nil && strings.Contains(list.RawJSON(), want)
	})
}

func goFineTuneHeld(t *testing.T, client openai.Client) {
	made, err := client.FineTuning.Jobs.New(t.Context(), openai.FineTuningJobNewParams{Model: lm, TrainingFile: exampleFile(t, client, 3000, ""), Method: epochs(50)})
	if err != nil {
		t.Fatal(err)
	}
	untilTune(t, client, made.ID, "running")
	if !eventually(patience, func() bool {
		j, err := client.FineTuning.Jobs.Get(t.Context(), made.ID)
		return err == nil && j.EstimatedFinish > 0
	}) {
		t.Error("no estimated finish while it runs")
	}
	if j, err := client.FineTuning.Jobs.Pause(t.Context(), made.ID); err != nil || j.Status != "paused" {
		t.Errorf("pause: %v, %v", j, err)
	}
	if !eventuallySaid(t, client, made.ID, `"paused"`) {
		t.Error("not paused")
	}
	if j, err := client.FineTuning.Jobs.Resume(t.Context(), made.ID); err != nil || j.Status != "queued" {
		t.Errorf("resume: %v, %v", j, err)
	}
	untilTune(t, client, made.ID, "running")
	if j, err := client.FineTuning.Jobs.Cancel(t.Context(), made.ID); err != nil || j.Status != "cancelled" {
		t.Errorf("cancel: %v, %v", j, err)
	}
	if !eventuallySaid(t, client, made.ID, `"cancelled"`) {
		t.Error("not cancelled")
	}
	_, err = client.FineTuning.Jobs.Resume(t.Context(), made.ID)
	wantError(t, err, 400, "already_finished", "")
}

func goFineTuneErrors(t *testing.T, client openai.Client) {
	ctx := t.Context()
	good := exampleFile(t, client, 10, "")
	_, err := client.FineTuning.Jobs.New(ctx, openai.FineTuningJobNewParams{Model: "gpt-4o-mini", TrainingFile: good})
	wantError(t, err, 400, "model_not_available", "model")
	_, err = client.FineTuning.Jobs.New(ctx, openai.FineTuningJobNewParams{Model: lm, TrainingFile: "file-none"})
	wantError(t, err, 400, "invalid_value", "training_file")
	_, err = client.FineTuning.Jobs.New(ctx, openai.FineTuningJobNewParams{Model: lm, TrainingFile: good, Method: epochs(1000)})
	wantError(t, err, 400, "invalid_value", "hyperparameters.n_epochs")
	_, err = client.FineTuning.Jobs.Get(ctx, "ftjob-none")
	wantError(t, err, 404, "not_found", "")
	made, err := client.FineTuning.Jobs.New(ctx, openai.FineTuningJobNewParams{Model: lm, TrainingFile: exampleFile(t, client, 10, `{"messages":[]}`)})
	if err != nil {
		t.Fatal(err)
	}
	if e := untilTune(t, client, made.ID, "failed").Error; e.Code != "invalid_training_file" || e.Param != "training_file" || !strings.Contains(e.Message, "line 11") {
		t.Errorf("error %s", e.RawJSON())
	}
}

// tuneLine is what testdata/sdk-node/finetune.mjs prints of a step.
type tuneLine struct {
	Name, Error, Made, First string
	OK, Listed, Apart        bool
	Job                      openai.FineTuningJob
	Files                    []struct {
		Name, Purpose string
		Bytes         int
		Same          bool
	}
	Checkpoints                              []openai.FineTuningJobCheckpoint
	Metrics, Messages                        int
	Running, Paused, Resumed, Cancelled, End string
	Tuned                                    *string
	Again                                    *nodeError
	Fault                                    openai.FineTuningJobError
	nodeError
}

type nodeError struct {
	Type, Code, Param, Kind, Message string
	Status                           any
}

func nodeFineTune(t *testing.T, url string) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", "finetune.mjs", url)
	cmd.Dir, cmd.WaitDelay = nodeModules(t), time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("node finetune.mjs: %v\n%s%s", err, out, &stderr)
	}
	lines := map[string]tuneLine{}
	for sc := bufio.NewScanner(bytes.NewReader(out)); sc.Scan(); {
		var l tuneLine
		if err := json.Unmarshal(sc.Bytes(), &l); err != nil {
			t.Fatalf("%v in %s", err, sc.Text())
		}
		lines[l.Name] = l
	}
	for name, good := range map[string]func(l tuneLine) bool{
		"whole": func(l tuneLine) bool {
			files := len(l.Files) == 2 && l.Files[0].Name == "step_metrics.csv" && l.Files[1].Name == "weights.f64"
			for _, f := range l.Files {
				files = files && f.Purpose == "fine-tune-results" && f.Same && f.Bytes > 0
			}
			return files && l.Made == "fine_tuning.job" && l.First == "validating_files" && l.Job.Status == "succeeded" && l.Job.Seed == 7 &&
				l.Job.Hyperparameters.NEpochs.OfInt == 2 && l.Listed && l.Apart && l.Metrics > 0 && l.Messages > 3 && len(l.Checkpoints) > 0 && l.Checkpoints[0].StepNumber > 0
		},
		"held": func(l tuneLine) bool {
			return l.Running == "running" && l.Paused == "paused" && (l.Resumed == "queued" || l.Resumed == "running") && l.Cancelled == "cancelled" &&
				l.End == "cancelled" && l.Tuned == nil && l.Again != nil && l.Again.Code == "already_finished"
		},
		"bad file": func(l tuneLine) bool {
			return l.Fault.Code == "invalid_training_file" && strings.Contains(l.Fault.Message, "line 11")
		},
		"unknown model": func(l tuneLine) bool {
			return l.Type == "BadRequestError" && l.Code == "model_not_available" && l.Param == "model"
		},
		"unknown file": func(l tuneLine) bool { return l.Type == "BadRequestError" && l.Param == "training_file" },
		"bad hyperparameter": func(l tuneLine) bool {
			return l.Type == "BadRequestError" && l.Param == "hyperparameters.n_epochs" && l.Kind == "invalid_request_error"
		},
		"unknown job": func(l tuneLine) bool { return l.Type == "NotFoundError" && l.Status == 404.0 && l.Code == "not_found" },
	} {
		if l, there := lines[name]; !there || !l.OK || !good(l) {
			t.Errorf("%s: %+v\n%s", name, l, out)
		}
	}
}
