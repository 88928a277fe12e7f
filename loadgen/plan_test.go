package loadgen

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"time"

	"aloft/loadgen/arrivals"
)

// planned has two workloads, one with all that a plan can say.
func planned() Options {
	rate := arrivals.Process{Kind: arrivals.Poisson, Rate: 50}
	return Options{Name: "p", Seed: 7, WarmUp: 2 * time.Second, Workloads: []Workload{
		{Name: "a", Kind: Chat, URL: "http://127.0.0.1:1", Model: "m", Content: Content{InputTokens: &Dist{Kind: "uniform", Min: 5, Max: 9}, OutputTokens: &Dist{Kind: "fixed", Mean: 3}},
			Tenants: []Tenant{{Name: "x", Share: 3}, {Name: "y", Share: 1}}, Phases: []arrivals.Phase{{Name: "one", Duration: 10 * time.Second, Process: rate}, {Name: "two", Duration: time.Second, Process: rate}}},
		{Name: "b", Kind: Embeddings, URL: "http://127.0.0.1:1", Model: "m", Phases: []arrivals.Phase{{Name: "one", Duration: time.Second, Process: rate}}},
	}}
}

// files is an Open over texts.
func files(texts map[string]string) func(string) (io.ReadCloser, error) {
	return func(name string) (io.ReadCloser, error) {
		if text, ok := texts[name]; ok {
			return io.NopCloser(strings.NewReader(text)), nil
		}
		return nil, fs.ErrNotExist
	}
}

// A saved plan is sent as it stands, whatever the profile's phases and seed would
// plan by now.
func TestSavedPlan(t *testing.T) {
	opt := planned()
	var file bytes.Buffer
	said, err := WritePlan(&file, opt)
	if err != nil {
		t.Fatal(err)
	}
	fresh, err := opt.plan()
	if err != nil {
		t.Fatal(err)
	}
	if got := said[0]; got.Name != "a" || got.Hash != fresh[0].Hash() || got.Arrivals != len(fresh[0].Offsets) || got.Length != 11*time.Second {
		t.Errorf("said %+v of a plan of %d arrivals in %v", got, len(fresh[0].Offsets), fresh[0].End())
	}
	if s := fresh[0].Shapes; s == nil || s[0].Input < 5 || s[0].Input > 9 || s[0].Output != 3 || fresh[1].Shapes != nil {
		t.Errorf("shapes %v and %v, want sizes in the first and none in the second", fresh[0].Shapes[:1], fresh[1].Shapes)
	}
	opt.Plan, opt.Seed, opt.Open = "x.plan", 99, files(map[string]string{"x.plan": file.String()})
	for i := range opt.Workloads {
		opt.Workloads[i].Phases = nil
	}
	if err := opt.Validate(); err != nil {
		t.Fatalf("a profile whose plan says the phases: %v", err)
	}
	saved, err := opt.plan()
	if err != nil {
		t.Fatal(err)
	}
	for i := range saved {
		if saved[i].Hash() != fresh[i].Hash() || !slices.Equal(saved[i].Offsets, fresh[i].Offsets) || !slices.Equal(saved[i].Shapes, fresh[i].Shapes) || saved[i].WarmUp() != 2*time.Second {
			t.Errorf("workload %d: the saved plan differs", i)
		}
	}
	if note := strings.Join(saved[0].Notes, "\n"); !strings.Contains(note, `saved in x.plan, made from profile "p" with seed 7`) {
		t.Errorf("notes %q", note)
	}
	for want, spoil := range map[string]func(*Options){
		"file does not exist":                            func(o *Options) { o.Plan = "y.plan" },
		"nothing here opens files":                       func(o *Options) { o.Open = nil },
		"its first line: unexpected EOF":                 func(o *Options) { o.Open = files(map[string]string{"x.plan": "{}"}) },
		"is for 2 workloads, the profile has 1":          func(o *Options) { o.Workloads = o.Workloads[:1] },
		`workload "c": the plan has "b" in its place`:    func(o *Options) { o.Workloads[1].Name = "c" },
		`the plan has phases ["one" "two"], the`:         func(o *Options) { o.Workloads[0].Phases = planned().Workloads[0].Phases[:1] },
		"a warm-up of 2s, the profile of 0s":             func(o *Options) { o.WarmUp = 0 },
		`workload "a": request `:                         func(o *Options) { o.Workloads[0].Tenants = o.Workloads[0].Tenants[:1] },
		`workload "b": it is a closed loop, which sends`: func(o *Options) { o.Workloads[1].Clients = 3 },
	} {
		o := opt
		o.Workloads = slices.Clone(opt.Workloads)
		spoil(&o)
		if _, err := o.plan(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
	if _, err := WritePlan(io.Discard, opt); err == nil || !strings.Contains(err.Error(), "has a saved plan already") {
		t.Errorf("a plan made from a plan: %v", err)
	}
}

func TestPlanReadsTraces(t *testing.T) {
	opt := planned()
	opt.Workloads = opt.Workloads[:1]
	w := &opt.Workloads[0]
	w.Phases = []arrivals.Phase{{Name: "trace", Process: arrivals.Process{Kind: arrivals.Replay, Trace: arrivals.Trace{File: "t.jsonl", Format: arrivals.RecordFormat}}}}
	opt.WarmUp = 0
	opt.Open = files(map[string]string{"t.jsonl": `{"offset_ns":5,"endpoint":"chat","tenant":"y","input_tokens":77,"output_tokens":8}
{"offset_ns":9,"endpoint":"chat","input_tokens":1,"output_tokens":1}`})
	plans, err := opt.plan()
	if err != nil {
		t.Fatal(err)
	}
	if want := (arrivals.Shape{Input: 77, Output: 8, Tenant: 1}); plans[0].Shapes[0] != want || plans[0].Offsets[0] != 5 {
		t.Errorf("planned %+v at %v, want %+v at 5ns", plans[0].Shapes[0], plans[0].Offsets[0], want)
	}
	opt.Open = files(nil)
	_, err = opt.plan()
	if keys, _ := arrivals.Keys(err); !errors.Is(err, fs.ErrNotExist) || !slices.Equal(keys, []string{"workloads[0]", "phases[0]", "process"}) {
		t.Errorf("a trace that is missing: %v, below %q", err, keys)
	}
}

// What is in no plan, a closed loop's requests and further turns, has sizes of
// the same laws.
func TestUnplannedHasSizes(t *testing.T) {
	w := planned().Workloads[0]
	w.Sessions = &Sessions{Turns: Dist{Kind: "uniform", Min: 2, Max: 4}}
	m := makerOf(w)
	inputs, turns := map[uint32]int{}, map[int]int{}
	for i := range 1000 {
		sh := shot{order: order{index: i}}
		m.resize(&sh)
		m.begin(&sh)
		inputs[sh.shape.Input]++
		turns[sh.talk.turns]++
		if sh.shape.Output != 3 {
			t.Fatalf("output of %d tokens, want 3", sh.shape.Output)
		}
	}
	// Of 1000 over 5 and over 3 values: 200 ± 4·12.6 and 333 ± 4·14.9.
	for n := range uint32(5) {
		if c := inputs[5+n]; c < 149 || c > 251 {
			t.Errorf("inputs are spread %v, want about 200 of each of 5 to 9", inputs)
		}
	}
	for n := range 3 {
		if c := turns[2+n]; c < 273 || c > 393 {
			t.Errorf("turns are spread %v, want about 333 of each of 2 to 4", turns)
		}
	}
}

// A mistake is reported with its line.
func TestProfileMistakesHaveLines(t *testing.T) {
	const good = `name: x
seed: 1
drain: 5s
workloads:
  - name: w
    kind: chat
    url: http://127.0.0.1:1
    model: m
    timeout: 3s
    phases:
      - {name: a, duration: 1s, process: {kind: poisson, rate: 1}}
      - name: b
        duration: 2s
        process:
          kind: mix
          parts:
            - {kind: poisson, rate: 1}
            - kind: gamma
              rate: 2
              cv: 2
`
	if opt, err := ReadProfile([]byte(good)); err != nil || opt.Name != "x" || opt.Workloads[0].Phases[1].Process.Parts[1].CV != 2 {
		t.Fatalf("read %+v, error %v", opt, err)
	}
	for _, c := range []struct{ old, new, want string }{
		{"seed: 1", "seeed: 1", "line 2: unknown field \"seeed\""},
		{"seed: 1", "seed: one", "line 2: "},
		{"drain: 5s", "drain: 5", "line 3: a number is no duration"},
		{"drain: 5s", "drain: -5s", "line 3: loadgen: drain is -5s"},
		{"timeout: 3s", "timeout: 3h", "line 9: loadgen: workload \"w\": timeout is 3h"},
		{"kind: chat", "kind: chatt", "line 6: loadgen: workload \"w\": unknown kind"},
		{"kind: poisson, rate: 1}}", "kind: poisson, rate: 0}}", "line 11: loadgen: workload \"w\": phase \"a\": rate is 0"},
		{"name: b", "name: a", "line 11: loadgen: workload \"w\": two phases are called"},
		{"duration: 2s", "duration: 200h", "line 13: loadgen: workload \"w\": duration: phase \"b\" lasts 200h"},
		{"kind: mix", "kind: mixx", "line 15: loadgen: workload \"w\": phase \"b\": kind: unknown arrival kind"},
		{"rate: 2", "rate: -2", "line 19: loadgen: workload \"w\": phase \"b\": part 2: rate is -2"},
		{"cv: 2", "cv: 200", "line 20: loadgen"},
		{"              cv: 2\n", "", "line 18: loadgen"},
		{"  - name: w", "  - nme: w", "line 5: unknown field"},
	} {
		text := strings.Replace(good, c.old, c.new, 1)
		if text == good {
			t.Fatalf("%q is not in the profile", c.old)
		}
		if _, err := ReadProfile([]byte(text)); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", c.new, err, c.want)
		}
	}
}

func FuzzReadProfile(f *testing.F) {
	f.Add([]byte("name: x\nworkloads:\n  - {name: w, kind: chat, url: http://h, model: m, phases: [{name: a, duration: 1s, process: {kind: ramp, to: 3}}]}\n"))
	f.Add([]byte("workloads:\n !0 #"))
	f.Add([]byte("workloads: [{phases: [{process: {parts: [{kind: mix}]}}]}]"))
	f.Fuzz(func(t *testing.T, in []byte) {
		if opt, err := ReadProfile(in); err == nil {
			if err := opt.Validate(); err != nil {
				t.Fatal(err)
			}
		}
	})
}
