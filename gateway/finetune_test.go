package gateway

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"aloft/jobs"
)

// tuner is the template behind fine-tuning in these tests.
var tuner = jobs.Template{Name: "tune", Kind: jobs.KindTrain, Command: []string{"/bin/true"}, FineTunes: []string{"tiny"}, Params: []jobs.Param{
	{Name: "n_epochs", Type: jobs.ParamInt, Default: "3", Min: 1, Max: 50},
	{Name: "learning_rate_multiplier", Type: jobs.ParamFloat, Default: "1", Min: 0.01, Max: 10},
	{Name: "seed", Type: jobs.ParamInt, Default: "1", Min: 0, Max: 1 << 31}}}

func at(second int64) time.Time { return time.Unix(second, 0) }

func tunedJob() jobs.Job {
	return jobs.Job{ID: "ftjob-0199aa", Tenant: "acme", State: jobs.Queued, Times: jobs.Times{Created: at(100)},
		Params: map[string]string{"n_epochs": "3", "learning_rate_multiplier": "0.5", "seed": "7"},
		Terms:  jobs.Terms{FineTune: &jobs.FineTune{Model: "tiny", Training: "file-1", Seed: 7}}}
}

// The object is the API reference's, field by field.
func TestFineTuneObject(t *testing.T) {
	got, err := json.Marshal(tuneOf(tunedJob()))
	hyper := `{"batch_size":"auto","learning_rate_multiplier":0.5,"n_epochs":3}`
	want := `{"id":"ftjob-0199aa","object":"fine_tuning.job","created_at":100,"error":null,"model":"tiny","fine_tuned_model":null,` +
		`"finished_at":null,"estimated_finish":null,"organization_id":"acme","status":"validating_files","result_files":[],` +
		`"training_file":"file-1","validation_file":null,"trained_tokens":null,"seed":7,"user_provided_suffix":null,"metadata":null,` +
		`"integrations":null,"hyperparameters":` + hyper + `,"method":{"type":"supervised","supervised":{"hyperparameters":` + hyper + `}}}`
	if err != nil || string(got) != want {
		t.Errorf("%v\n%s, want\n%s", err, got, want)
	}
	j := tunedJob()
	j.State, j.Finished, j.FineTune.Checked = jobs.Succeeded, at(300), true
	j.FineTune.Served, j.FineTune.Tokens, j.FineTune.Results = "ft:tiny:acme::x", 640, []string{"file-r"}
	j.FineTune.Validation, j.FineTune.Suffix, j.FineTune.Metadata = "file-2", "mine", map[string]string{"a": "b"}
	got, _ = json.Marshal(tuneOf(j))
	for _, want := range []string{`"fine_tuned_model":"ft:tiny:acme::x"`, `"finished_at":300`, `"result_files":["file-r"]`, `"trained_tokens":640`,
		`"validation_file":"file-2"`, `"user_provided_suffix":"mine"`, `"metadata":{"a":"b"}`, `"status":"succeeded"`, `"error":null`} {
		if !strings.Contains(string(got), want) {
			t.Errorf("%s lacks %s", got, want)
		}
	}
}

func TestFineTuneStatus(t *testing.T) {
	for _, tt := range []struct {
		change func(*jobs.Job)
		want   string
	}{
		{func(*jobs.Job) {}, "queued"},
		{func(j *jobs.Job) { j.FineTune.Checked = false }, "validating_files"},
		{func(j *jobs.Job) { j.FineTune.Checked, j.State = false, jobs.Paused }, "paused"},
		{func(j *jobs.Job) { j.State = jobs.Waiting }, "queued"},
		{func(j *jobs.Job) { j.State = jobs.Starting }, "queued"},
		{func(j *jobs.Job) { j.State = jobs.Running }, "running"},
		{func(j *jobs.Job) { j.State = jobs.Preempting }, "running"},
		{func(j *jobs.Job) { j.State, j.Pausing = jobs.Running, at(1) }, "paused"},
		{func(j *jobs.Job) { j.State, j.Cancelling = jobs.Running, at(1) }, "cancelled"},
		{func(j *jobs.Job) { j.State, j.Cancelling = jobs.Succeeded, at(1) }, "succeeded"},
		{func(j *jobs.Job) { j.State = jobs.Expired }, "failed"},
		{func(j *jobs.Job) { j.State = jobs.Failed }, "failed"},
		{func(j *jobs.Job) { j.State = jobs.Cancelled }, "cancelled"},
	} {
		j := tunedJob()
		j.FineTune.Checked = true
		tt.change(&j)
		if got := tuneOf(j); got.Status != tt.want || (got.Error != nil) != (tt.want == "failed") {
			t.Errorf("%s: %q, error %v; want %q", j.State, got.Status, got.Error, tt.want)
		}
	}
	j := tunedJob()
	j.State, j.Error, j.FineTune.Code, j.FineTune.Param = jobs.Failed, "line 3 is wrong", "invalid_training_file", "training_file"
	if e := tuneOf(j).Error; e.Code != "invalid_training_file" || e.Message != "line 3 is wrong" || *e.Param != "training_file" {
		t.Errorf("error %+v", e)
	}
	j.FineTune.Code = ""
	if e := tuneOf(j).Error; e.Code != "training_failed" {
		t.Errorf("error %+v", e)
	}
	j.State, j.Progress = jobs.Running, jobs.Progress{Done: 30, Total: 100, Rate: 7, Heard: at(50)}
	if got := tuneOf(j).Estimated; got == nil || *got != 60 {
		t.Errorf("estimated finish %v, want 60: 70 steps at 7 a second after 50", got)
	}
}

func TestFineTuneEvents(t *testing.T) {
	var list []jobs.Event
	for i := 1; i <= 5; i++ {
		list = append(list, jobs.Event{Seq: i, At: at(int64(i)), Level: "info", Kind: "state", Message: fmt.Sprint("event ", i)})
	}
	list[4] = jobs.Event{Seq: 5, At: at(5), Level: "info", Kind: jobs.EventMetrics, Message: "step 2/9", Data: map[string]string{"step": "2", "train_loss": "1.5"}}
	page := eventPage("ftjob-0199aa", list, 0, 2)
	got, _ := json.Marshal(page)
	want := `{"object":"list","data":[{"object":"fine_tuning.job.event","id":"ftevent-0199aa-5","created_at":5,"level":"info","message":"step 2/9","type":"metrics","data":{"step":2,"train_loss":1.5}},` +
		`{"object":"fine_tuning.job.event","id":"ftevent-0199aa-4","created_at":4,"level":"info","message":"event 4","type":"message","data":{}}],"has_more":true}`
	if string(got) != want {
		t.Errorf("%s, want\n%s", got, want)
	}
	if page = eventPage("ftjob-0199aa", list, 3, 2); len(page.Data) != 2 || page.More || page.Data[1].Message != "event 1" {
		t.Errorf("last page %+v", page)
	}
}

func TestFineTuneCheckpoints(t *testing.T) {
	j := tunedJob()
	for step := int64(50); step <= 150; step += 50 {
		j.Checkpoints = append(j.Checkpoints, jobs.Checkpoint{Path: "/x", Step: step, At: at(step), Metrics: map[string]float64{"train_loss": 2}})
	}
	page, err := checkpointPage(j, "", 2)
	got, _ := json.Marshal(page)
	one := func(step int) string {
		return fmt.Sprintf(`{"object":"fine_tuning.job.checkpoint","id":"ftckpt_0199aa_%d","created_at":%[1]d,"fine_tuned_model_checkpoint":null,`+
			`"fine_tuning_job_id":"ftjob-0199aa","step_number":%[1]d,"metrics":{"step":%[1]d,"train_loss":2}}`, step)
	}
	want := `{"object":"list","data":[` + one(150) + "," + one(100) + `],"first_id":"ftckpt_0199aa_150","last_id":"ftckpt_0199aa_100","has_more":true}`
	if err != nil || string(got) != want {
		t.Errorf("%v\n%s, want\n%s", err, got, want)
	}
	if page, err = checkpointPage(j, "ftckpt_0199aa_100", 2); err != nil || len(page.Data) != 1 || page.More || page.Data[0].Step != 50 {
		t.Errorf("last page %+v, %v", page, err)
	}
	if _, err = checkpointPage(j, "ftckpt_none", 2); err == nil {
		t.Error("a page after nothing")
	}
}

// The edge with a real manager behind: what is refused, whose is whose, and the
// course of a job up to its slice.
func TestFineTuning(t *testing.T) {
	e := withJobs(t, answer(200, "{}"), func(_ *Options, d *Deps) {
		d.Keys = newRing(t, "ann", &Grant{Tenant: "acme"}, "bob", &Grant{Tenant: "other"}, "cid", &Grant{Tenant: "acme", Models: []string{"only-embeds"}})
	})
	ask := func(key, method, path, body string) (int, map[string]any) {
		t.Helper()
		resp, text := e.do(t, method, path, body, "Authorization", "Bearer "+key)
		return resp.StatusCode, object(t, text)
	}
	file := func(key, purpose, content string) string {
		t.Helper()
		body, kind := form(t, "purpose", purpose, "file", content)
		resp, text := e.do(t, "POST", "/v1/files", body, "Content-Type", kind, "Authorization", "Bearer "+key)
		if resp.StatusCode != 200 {
			t.Fatalf("upload: %s", text)
		}
		return object(t, text)["id"].(string)
	}
	line := `{"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"yes"}]}` + "\n"
	good, few := file("ann", "fine-tune", strings.Repeat(line, 10)), file("ann", "fine-tune", line)
	bad, batch := file("ann", "fine-tune", strings.Repeat(line, 10)+"{\n"), file("ann", "batch", line)
	body := func(more string) string { return fmt.Sprintf(`{"model":"tiny","training_file":%q%s}`, good, more) }

	for _, tt := range []struct {
		name, key, body string
		status          int
		code, param     string
	}{
		{"no model", "ann", `{"training_file":"f"}`, 400, "missing_required_parameter", "model"},
		{"no file", "ann", `{"model":"tiny"}`, 400, "missing_required_parameter", "training_file"},
		{"unknown key", "ann", body(`,"epochs":3`), 400, "unknown_parameter", "epochs"},
		{"unknown hyperparameter", "ann", body(`,"hyperparameters":{"epochs":3}`), 400, "unknown_parameter", "epochs"},
		{"not a tunable model", "ann", strings.Replace(body(""), "tiny", "org/name:q8", 1), 400, "model_not_available", "model"},
		{"no model of ours", "ann", strings.Replace(body(""), "tiny", "gpt-4o-mini", 1), 400, "model_not_available", "model"},
		{"not this key's model", "cid", body(""), 403, "model_not_allowed", "model"},
		{"file of another", "bob", body(""), 400, "invalid_value", "training_file"},
		{"no such file", "ann", body(`,"validation_file":"file-none"`), 400, "invalid_value", "validation_file"},
		{"purpose", "ann", fmt.Sprintf(`{"model":"tiny","training_file":%q}`, batch), 400, "invalid_value", "training_file"},
		{"method", "ann", body(`,"method":{"type":"dpo"}`), 400, "invalid_value", "method.type"},
		{"both", "ann", body(`,"hyperparameters":{"n_epochs":2},"method":{"type":"supervised","supervised":{"hyperparameters":{"n_epochs":3}}}`), 400, "invalid_value", "hyperparameters"},
		{"no number", "ann", body(`,"hyperparameters":{"n_epochs":"many"}`), 400, "invalid_type", "hyperparameters.n_epochs"},
		{"bound", "ann", body(`,"hyperparameters":{"n_epochs":99}`), 400, "invalid_value", "hyperparameters.n_epochs"},
		{"no choice", "ann", body(`,"hyperparameters":{"batch_size":4}`), 400, "invalid_value", "hyperparameters.batch_size"},
		{"suffix", "ann", body(`,"suffix":"a b"`), 400, "invalid_value", "suffix"},
		{"integration", "ann", body(`,"integrations":[{"type":"wandb"}]`), 400, "invalid_value", "integrations"},
		{"seed", "ann", body(`,"seed":-1`), 400, "invalid_value", "seed"},
	} {
		status, reply := ask(tt.key, "POST", tunesPath, tt.body)
		fault, _ := reply["error"].(map[string]any)
		if status != tt.status || fault["code"] != tt.code || fault["param"] != tt.param || fault["message"] == "" {
			t.Errorf("%s: %d %v, want %d %s %s", tt.name, status, reply, tt.status, tt.code, tt.param)
		}
	}

	until := func(id, want string) map[string]any {
		t.Helper()
		for range 6000 {
			if _, j := ask("ann", "GET", tunesPath+"/"+id, ""); j["status"] == want {
				return j
			}
			time.Sleep(10 * time.Millisecond)
		}
		_, j := ask("ann", "GET", tunesPath+"/"+id, "")
		t.Fatalf("not %s: %v", want, j)
		return nil
	}
	make := func(text string) string {
		t.Helper()
		status, j := ask("ann", "POST", tunesPath, text)
		if status != 200 || j["object"] != "fine_tuning.job" || !strings.HasPrefix(j["id"].(string), "ftjob-") {
			t.Fatalf("create: %d %v", status, j)
		}
		return j["id"].(string)
	}
	id := make(body(`,"suffix":"mine","seed":42,"metadata":{"team":"a"},"method":{"type":"supervised","supervised":{"hyperparameters":{"n_epochs":2,"batch_size":"auto"}}}`))
	j := until(id, "queued")
	hyper := j["hyperparameters"].(map[string]any)
	if hyper["n_epochs"] != 2.0 || hyper["batch_size"] != "auto" || hyper["learning_rate_multiplier"] != 1.0 || j["seed"] != 42.0 || j["user_provided_suffix"] != "mine" {
		t.Errorf("job %v", j)
	}
	for _, step := range []struct{ path, want string }{{"/pause", "paused"}, {"/pause", "paused"}, {"/resume", "queued"}, {"/cancel", "cancelled"}} {
		if status, j := ask("ann", "POST", tunesPath+"/"+id+step.path, ""); status != 200 || j["status"] != step.want {
			t.Errorf("%s: %d %v", step.path, status, j)
		}
	}
	if status, reply := ask("ann", "POST", tunesPath+"/"+id+"/pause", ""); status != 400 || reply["error"].(map[string]any)["code"] != "already_finished" {
		t.Errorf("pause of a cancelled one: %d %v", status, reply)
	}

	wrong := make(strings.Replace(body(""), good, bad, 1))
	if e := until(wrong, "failed")["error"].(map[string]any); e["code"] != "invalid_training_file" || e["param"] != "training_file" || !strings.Contains(e["message"].(string), "line 11 is not valid JSON") {
		t.Errorf("error of a bad file: %v", e)
	}
	short := make(strings.Replace(body(fmt.Sprintf(`,"validation_file":%q`, good)), good, few, 1))
	if e := until(short, "failed")["error"].(map[string]any); e["code"] != "invalid_n_examples" {
		t.Errorf("error of a short file: %v", e)
	}
	_, events := ask("ann", "GET", tunesPath+"/"+wrong+"/events?limit=2", "")
	_, rest := ask("ann", "GET", tunesPath+"/"+wrong+"/events?after="+events["data"].([]any)[1].(map[string]any)["id"].(string), "")
	var said []string
	for _, e := range append(events["data"].([]any), rest["data"].([]any)...) {
		m := e.(map[string]any)
		said = append(said, m["level"].(string)+" "+m["message"].(string))
	}
	if events["has_more"] != true || rest["has_more"] != false || !slices.Contains(said, "error training_file: line 11 is not valid JSON") {
		t.Errorf("events %q", said)
	}

	ids := func(query string) (out []string, more bool) {
		_, list := ask("ann", "GET", tunesPath+query, "")
		for _, j := range list["data"].([]any) {
			out = append(out, j.(map[string]any)["id"].(string))
		}
		return out, list["has_more"].(bool)
	}
	if got, more := ids("?limit=2"); !slices.Equal(got, []string{short, wrong}) || !more {
		t.Errorf("first page %v %v", got, more)
	}
	if got, more := ids("?after=" + wrong); !slices.Equal(got, []string{id}) || more {
		t.Errorf("last page %v %v", got, more)
	}
	if got, _ := ids("?metadata[team]=a"); !slices.Equal(got, []string{id}) {
		t.Errorf("by metadata %v", got)
	}
	if got, _ := ids("?metadata%5Bteam%5D=b"); len(got) != 0 {
		t.Errorf("by other metadata %v", got)
	}
	for _, path := range []string{"/" + id, "/" + id + "/events", "/" + id + "/checkpoints"} {
		if status, reply := ask("bob", "GET", tunesPath+path, ""); status != 404 {
			t.Errorf("another tenant got %d %v", status, reply)
		}
	}
	if status, list := ask("bob", "GET", tunesPath, ""); status != 200 || len(list["data"].([]any)) != 0 {
		t.Errorf("another tenant's list: %d %v", status, list)
	}
	_, j = ask("ann", "POST", "/aloft/v1/jobs", `{"template":"train"}`)
	if status, _ := ask("ann", "GET", tunesPath+"/"+j["id"].(string), ""); status != 404 {
		t.Errorf("a job that is no fine-tuning: %d", status)
	}
	held := make(body(""))
	if status, reply := ask("ann", "DELETE", "/v1/files/"+good, ""); status != 400 || !strings.Contains(fmt.Sprint(reply), held) {
		t.Errorf("a file that is learned from was deleted: %d %v", status, reply)
	}
}
