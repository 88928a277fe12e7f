package jobs

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestExamples(t *testing.T) {
	chat := `{"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"yes"}]}`
	for _, tt := range []struct {
		name, file, want string
	}{
		{"chat", chat + "\n" + chat, ""},
		{"parts", `{"messages":[{"role":"user","content":[{"type":"text","text":"hi"}]},{"role":"assistant","content":"a"}]}`, ""},
		{"tool call", `{"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":null,"tool_calls":[]}]}`, ""},
		{"completion", `{"prompt":"","completion":"a"}`, ""},
		{"text", `{"text":"a"}` + "\r\n", ""},
		{"no JSON", "{", "line 1 is not valid JSON"},
		{"no object", "[1]", "line 1 is not a JSON object"},
		{"blank between", chat + "\n\n" + chat, "line 2 is not valid JSON"},
		{"unknown form", `{"input":"x"}`, `line 1 has neither "messages", nor "prompt" and "completion", nor "text"`},
		{"mixed", chat + "\n" + `{"text":"a"}`, `line 2 is an example with "text", the lines before have "messages"`},
		{"no prompt", `{"completion":"a"}`, `line 1 "prompt" must be a string`},
		{"empty text", `{"text":" "}`, `line 1 "text" must be a string that is not empty`},
		{"no messages", `{"messages":[]}`, `line 1 "messages" must be an array that is not empty`},
		{"role", `{"messages":[{"role":"boss","content":"x"}]}`, `line 1 message 1: "role" must be one of [system developer user assistant tool function]`},
		{"content", `{"messages":[{"role":"user","content":7},{"role":"assistant","content":"x"}]}`, `line 1 message 1: "content" must be a string or an array of text parts`},
		{"image", `{"messages":[{"role":"user","content":[{"type":"image_url"}]},{"role":"assistant","content":"x"}]}`, `line 1 message 1: only parts of type text can be trained on`},
		{"nobody taught", `{"messages":[{"role":"user","content":"x"}]}`, "line 1 has no message of the assistant to learn from"},
		{"too long", `{"text":"` + strings.Repeat("a", maxLineBytes) + `"}`, fmt.Sprintf("line 1 has more than %d bytes", maxLineBytes)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := readExamples(t.Context(), strings.NewReader(tt.file))
			if err != nil {
				t.Fatal(err)
			}
			said := ""
			if len(got.Errors) > 0 {
				said = got.Errors[0].String()
			}
			if said != tt.want || got.Count == 0 {
				t.Errorf("%d examples, %q; want %q", got.Count, said, tt.want)
			}
		})
	}
}

func TestExampleFaults(t *testing.T) {
	many, err := readExamples(t.Context(), strings.NewReader(strings.Repeat("x\n", 30)))
	if err != nil || len(many.Errors) != maxExampleErrors+1 || many.Errors[maxExampleErrors].Message != "10 more lines are wrong" {
		t.Errorf("%d errors, %v: %v", len(many.Errors), err, many.Errors)
	}
	for _, tt := range []struct {
		e             examples
		least         int
		code, message string
	}{
		{examples{Count: 10}, 10, "", ""},
		{examples{Count: 9}, 10, "invalid_n_examples", "training file has 9 example(s), but must have at least 10"},
		{many, 10, "invalid_training_file", "the job failed due to an invalid training file: line 1 is not valid JSON; line 2 is not valid JSON; line 3 is not valid JSON; the events list more"},
	} {
		if code, message := tt.e.fault("training_file", tt.least); code != tt.code || message != tt.message {
			t.Errorf("%q %q, want %q %q", code, message, tt.code, tt.message)
		}
	}
}

func FuzzExamples(f *testing.F) {
	f.Add([]byte(`{"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"yes"}]}`))
	f.Add([]byte("{\"text\":\"a\"}\n\n{}"))
	f.Fuzz(func(t *testing.T, file []byte) {
		got, err := readExamples(t.Context(), strings.NewReader(string(file)))
		if err != nil || len(got.Errors) > maxExampleErrors+1 || len(got.Errors) > 0 && got.Count == 0 {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

func TestFineTuneParams(t *testing.T) {
	tpl := Template{Params: []Param{
		{Name: ParamEpochs, Type: ParamInt, Default: "3", Min: 1, Max: 50},
		{Name: ParamLearningRate, Type: ParamFloat, Default: "1", Min: 0.01, Max: 10},
		{Name: ParamSeed, Type: ParamInt, Default: "1", Min: 5, Max: 1000},
	}}
	seven, low := int64(7), int64(1)
	for _, tt := range []struct {
		name string
		spec FineTuneSpec
		want map[string]string
		bad  string // the parameter of the refusal
	}{
		{"all auto", FineTuneSpec{}, map[string]string{"seed": "42", "n_epochs": "3", "learning_rate_multiplier": "1"}, ""},
		{"given", FineTuneSpec{Asked: Hyperparameters{Epochs: "2", LearningRate: "0.5"}, Seed: &seven},
			map[string]string{"seed": "7", "n_epochs": "2", "learning_rate_multiplier": "0.5"}, ""},
		{"too many epochs", FineTuneSpec{Asked: Hyperparameters{Epochs: "51"}}, nil, "hyperparameters.n_epochs"},
		{"not to be chosen", FineTuneSpec{Asked: Hyperparameters{BatchSize: "4"}}, nil, "hyperparameters.batch_size"},
		{"seed below", FineTuneSpec{Seed: &low}, nil, "seed"},
	} {
		got, err := tt.spec.params(tpl, 42)
		var bad *InvalidError
		if errors.As(err, &bad) != (tt.bad != "") || bad != nil && bad.Param != tt.bad || fmt.Sprint(got) != fmt.Sprint(tt.want) {
			t.Errorf("%s: %v, %v; want %v", tt.name, got, err, tt.want)
		}
	}
	if got, _ := (FineTuneSpec{}).params(tpl, 5000); got["seed"] != "5" {
		t.Errorf("a seed of ours outside the template's bounds: %v", got)
	}
}

func TestFineTuneSpec(t *testing.T) {
	negative := int64(-1)
	pairs := map[string]string{}
	for i := range maxMetadata + 1 {
		pairs[fmt.Sprint(i)] = "x"
	}
	for _, tt := range []struct {
		spec FineTuneSpec
		bad  string
	}{
		{FineTuneSpec{Suffix: "my-model_1.0"}, ""},
		{FineTuneSpec{Suffix: "a:b"}, "suffix"},
		{FineTuneSpec{Suffix: strings.Repeat("a", 65)}, "suffix"},
		{FineTuneSpec{Seed: &negative}, "seed"},
		{FineTuneSpec{Metadata: pairs}, "metadata"},
	} {
		var bad *InvalidError
		if err := tt.spec.Validate(); errors.As(err, &bad) != (tt.bad != "") || bad != nil && bad.Param != tt.bad {
			t.Errorf("%+v: %v, want %q", tt.spec, err, tt.bad)
		}
	}
	f := &FineTune{Model: "tiny", Suffix: "mine"}
	if got := f.Name("ftjob-0123456789abcdef", "acme"); got != "ft:tiny:acme:mine:89abcdef" {
		t.Error(got)
	}
}

func TestCompileMetrics(t *testing.T) {
	rows := "25,3,,,\n50,2.5,,2.6,\n75,2,,,\n50,2.5,,2.6,\n60,2.25,,,\n75,1.5,0.5,,0.25\nx\n80,1"
	want := metricsHead + "25,3,,,\n50,2.5,,2.6,\n60,2.25,,,\n75,1.5,0.5,,0.25\n"
	if got := string(compileMetrics([]byte(rows))); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := string(compileMetrics(nil)); got != metricsHead {
		t.Errorf("of none: %q", got)
	}
	if got := metricsRow(7, map[string]float64{"train_loss": 1.25, "valid_mean_token_accuracy": 0.5, "other": 3}); got != "7,1.25,,,0.5\n" {
		t.Errorf("row %q", got)
	}
}

// A run adds about so many events, however often it reports, and always its last.
func TestMetricsDue(t *testing.T) {
	for _, tt := range []struct{ total, every, least, most int64 }{{100, 1, 50, 51}, {100_000, 10, 50, 51}, {3, 1, 3, 3}, {0, 1, 0, 0}} {
		said, n := int64(0), int64(0)
		for step := tt.every; step <= max(tt.total, 1000); step += tt.every {
			if metricsDue(step, said, tt.total) {
				said = step
				n++
			}
			if step >= tt.total && tt.total > 0 {
				break
			}
		}
		if n < tt.least || n > tt.most || said != tt.total {
			t.Errorf("of %d steps, every %d: %d events, the last at %d", tt.total, tt.every, n, said)
		}
	}
}

func TestTunerTemplates(t *testing.T) {
	p := Param{Name: ParamEpochs, Type: ParamInt, Default: "1", Min: 1, Max: 2}
	bare := p
	bare.Default = ""
	for _, tt := range []struct {
		name, want string
		list       []Template
	}{
		{"good", "", []Template{{Name: "a", Kind: KindTrain, Command: []string{"x"}, Params: []Param{p}, FineTunes: []string{"m"}}}},
		{"kind", `kind is "evaluate", want train`, []Template{{Name: "a", Kind: KindEvaluate, Command: []string{"x"}, FineTunes: []string{"m"}}}},
		{"no default", `"n_epochs" needs a default`, []Template{{Name: "a", Kind: KindTrain, Command: []string{"x"}, Params: []Param{bare}, FineTunes: []string{"m"}}}},
		{"text", `"n_epochs" has type "text"`, []Template{{Name: "a", Kind: KindTrain, Command: []string{"x"}, Params: []Param{{Name: ParamEpochs, Type: ParamText, Default: "1", Max: 2}}, FineTunes: []string{"m"}}}},
		{"twice", `model "m" is fine-tuned by template "a" already`, []Template{
			{Name: "a", Kind: KindTrain, Command: []string{"x"}, FineTunes: []string{"m"}}, {Name: "b", Kind: KindTrain, Command: []string{"x"}, FineTunes: []string{"m"}}}},
	} {
		err := validTemplates(tt.list)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
}
