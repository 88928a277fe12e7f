package scenario

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"aloft/configs"
)

// standard are the worlds of the rule book.
var standard = []string{"small-8gpu-conv", "bursty-8gpu-code", "day-64gpu-mixed", "stress"}

func load(t testing.TB, name string) *Scenario {
	t.Helper()
	s, err := Load(name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestEveryScenarioLoads(t *testing.T) {
	names := Names()
	if len(names) < 5 {
		t.Fatalf("built-in scenarios are %v, want the four standard ones and embed-8gpu", names)
	}
	for _, name := range names {
		s := load(t, name)
		if s.Name != name {
			t.Errorf("%s.yaml is named %q", name, s.Name)
		}
		if _, err := Load(filepath.Join("..", "..", "configs", "scenarios", name+".yaml")); err != nil {
			t.Error(err)
		}
	}
	// A few values, against the files as people read them.
	s := load(t, "day-64gpu-mixed")
	if s.Cluster.Slices() != 448 || s.Models[1].Static != 112 || s.Models[1].Arrivals.MeanUtilization != 0.25 ||
		s.Jobs.Train.WidthSlices[8] != 56 || s.Diurnal.Amplitude != 0.5 || s.Jobs.Quantize.BurstJobs != [2]int{4, 8} || !s.Jobs.Train.Pauses {
		t.Errorf("day-64gpu-mixed reads %+v", s)
	}
	if f := load(t, "stress").Faults; f != (Faults{0.02, 0.02, 0.5, 600}) {
		t.Errorf("the faults of stress read %+v", f)
	}
	if svc := load(t, "embed-8gpu").Models[0].Service; !svc.Merged() || svc.MaxTokens != 2048 {
		t.Errorf("the embedding model reads %+v", svc)
	}
}

// The copies are those of the rule book, where it can be seen.
func TestScenariosAreTheSharedOnes(t *testing.T) {
	shared := os.Getenv("ALOFT_SHARED")
	if shared == "" {
		t.Skip("ALOFT_SHARED is not set: nothing to compare with")
	}
	for _, name := range standard {
		want, err := os.ReadFile(filepath.Join(shared, "scenarios", name+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		got, err := configs.Scenarios.ReadFile("scenarios/" + name + ".yaml")
		if err != nil || string(got) != string(want) {
			t.Errorf("configs/scenarios/%s.yaml differs from the shared one (%v)", name, err)
		}
	}
}

func TestLoadSaysWhichThereAre(t *testing.T) {
	_, err := Load("nowhere")
	if err == nil || !strings.Contains(err.Error(), "bursty-8gpu-code, day-64gpu-mixed") {
		t.Errorf("error %v, want one that names the built-in scenarios", err)
	}
}

func TestParseRefuses(t *testing.T) {
	text, err := configs.Scenarios.ReadFile("scenarios/bursty-8gpu-code.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ old, new, want string }{
		{"horizon_h: 8", "horizon: 8", `line 4: unknown field "horizon"`},
		{"      alpha_ms: 12", "      alpha_s: 12", `line 22: unknown field "alpha_s"`},
		{"horizon_h: 8", "horizon_h: -8", "line 4: horizon_h is -8 h, want more than 0 and at most 8784 h"},
		{"ttft_s: 1.0", "ttft_s: 0", "line 27: models[0].slo.ttft_s is 0 s, want more than 0"},
		{"      slots: 16", "      slots: 0", "line 24: models[0].service_time.slots is 0, want at least 1"},
		{"decode_speed_during_prefill: 0.5", "decode_speed_during_prefill: 1.5", "line 26: models[0].service_time.decode_speed_during_prefill is 1.5, want at least 0 and at most 1"},
		{"serving_share_slices: 28", "serving_share_slices: 27", "want 56 together: 8 GPUs of 7 slices"},
		{"static_share_slices: 10", "static_share_slices: 11", "line 15: cluster.serving_share_slices is 28, and the models' static_share_slices sum to 29"},
		{"static_share_slices: 10", "static_share_slices: 10\n    replicas: {min: 1, max: 9}", "models[0].replicas.max is 9, want at least 10"},
		{"static_share_slices: 10", "static_share_slices: 10\n    replicas: {min: 11, max: 12}", "models[0].replicas.min is 11, want at least 0 and at most 10"},
		{"copies: auto ", "copies: some ", "copies is some, want auto or 1 to 4096"},
		{"mean_utilization: 0.40", "of_model: chat", "mean_utilization is missing"},
		{"mean_utilization: 0.40", "as_recorded: true\n      mean_utilization: 0.4", "as_recorded plays the trace as it is"},
		{"load_share: 0.55", "load_share: 0.50", "load_shares that sum to 0.95, want 1"},
		{"arrivals: poisson", "arrivals: gamma", `jobs.embed.arrivals is "gamma", want poisson`},
		{"loses: everything", "loses: nothing", `jobs.quantize.loses is "nothing", want everything`},
		{"grace_s: 30", "grace_s: 30s", "line 67: want a number, not text"},
		{"  gpus: 8", "  gpus: eight", "line 9: want a whole number, not text"},
		{"      slots: 16", "      slots: [16]", "line 24: want a whole number, not a list"},
		{"seeds: [1, ", "seeds: [-1, ", "line 5: want a whole number of at least 0, not -1"},
		{"window: random", "window: first", `jobs.train.window is "first", want random`},
		{"grace_s: 30", "grace_s: -1", "jobs.train.grace_s is -1 s, want at least 0"},
		{"wake_failure: 0,", "wake_failure: 2,", "faults.wake_failure is 2, want at least 0 and at most 1"},
		{"amplitude: 0,", "amplitude: 1,", "diurnal.amplitude is 1, want at least 0 and at most 0.99"},
		{"kind: embed, size", "kind: train, size", `backlog.kind is "train", want embed`},
		{"  - name: code", "  - name: chat", `models[1].name is "chat": every model needs a name of its own`},
	} {
		broken := strings.Replace(string(text), c.old, c.new, 1)
		if broken == string(text) {
			t.Fatalf("%q is not in the scenario", c.old)
		}
		if _, err := Parse([]byte(broken)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error is\n%v, want\n%s", c.new, err, c.want)
		}
	}
	if _, err := Parse([]byte(strings.Repeat("#", maxBytes+1))); err == nil {
		t.Error("a file above the bound is read")
	}
}

// Numbers are read in each of YAML's notations.
func TestParseNumbers(t *testing.T) {
	text, err := configs.Scenarios.ReadFile("scenarios/bursty-8gpu-code.yaml")
	if err != nil {
		t.Fatal(err)
	}
	s, err := Parse([]byte(strings.Replace(strings.Replace(string(text), "horizon_h: 8", "horizon_h: 0.8e+1", 1), "grace_s: 30", `grace_s: "3e1"`, 1)))
	if err != nil || s.HorizonH != 8 || s.Jobs.Train.GraceS != 30 {
		t.Errorf("scenario %+v, %v; want 8 h and a grace of 30 s", s, err)
	}
}

func FuzzParse(f *testing.F) {
	for _, name := range Names() {
		text, _ := configs.Scenarios.ReadFile("scenarios/" + name + ".yaml")
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if s, err := Parse(text); (s == nil) == (err == nil) {
			t.Errorf("scenario %v and error %v", s, err)
		}
	})
}
