package search

import (
	"math"
	"strings"
	"testing"
	"time"

	"aloft/loadgen"
	"aloft/loadgen/arrivals"
)

// two is a profile of a chat that streams in bursts and of embeddings.
func two() loadgen.Options {
	b := base(1, arrivals.Poisson)
	chat := loadgen.Workload{
		Name: "chat", Kind: loadgen.Chat, URL: "http://127.0.0.1:1", Model: "c", Stream: true, MaxTokens: 8,
		Goal:    loadgen.Goal{Target: 30 * time.Second},
		Tenants: []loadgen.Tenant{{Name: "x", Share: 1, Goal: &loadgen.Goal{TPOTTarget: time.Second}}},
		Phases:  []arrivals.Phase{{Name: "p", Duration: 10 * time.Second, Process: arrivals.Process{Kind: arrivals.Burst, Rate: 6, Base: 1, On: time.Second, Off: 4 * time.Second}}},
	}
	b.Workloads = append(b.Workloads, chat)
	return b
}

// A rate is that of all workloads together; their proportion stays, and so does
// the profile that was given.
func TestProfileAtARate(t *testing.T) {
	o := Options{Base: two(), SLO: slo(t, "ttft_p99<=200ms,e2e_p99<=5s,tpot_p50<1s"), MaxWindow: 300 * time.Second}.withDefaults()
	if got := baseRate(o.Base); math.Abs(got-10) > 1e-9 {
		t.Fatalf("the profile's rate is %v, want 8 + 2", got)
	}
	got, err := o.profile(25, 35*time.Second, 7)
	if err != nil {
		t.Fatal(err)
	}
	if rate := baseRate(got); math.Abs(rate-25) > 1e-9 {
		t.Errorf("rate %v, want 25", rate)
	}
	if p := got.Workloads[1].Phases[0]; p.Process.Rate != 15 || p.Process.Base != 2.5 || p.Duration != 35*time.Second {
		t.Errorf("bursts of %+v", p)
	}
	if g := got.Workloads[0].Goal; g != (loadgen.Goal{Target: 5 * time.Second}) {
		t.Errorf("targets of embeddings: %+v", g)
	}
	if g := got.Workloads[1].Goal; g != (loadgen.Goal{Target: 5 * time.Second, TTFTTarget: 200 * time.Millisecond}) {
		t.Errorf("targets of the chat: %+v", g)
	}
	if g := *got.Workloads[1].Tenants[0].Goal; g != (loadgen.Goal{Target: 5 * time.Second, TTFTTarget: 200 * time.Millisecond, TPOTTarget: time.Second}) {
		t.Errorf("targets of the tenant: %+v", g)
	}
	if was := two(); o.Base.Workloads[1].Phases[0].Duration != was.Workloads[1].Phases[0].Duration || *o.Base.Workloads[1].Tenants[0].Goal != *was.Workloads[1].Tenants[0].Goal || baseRate(o.Base) != baseRate(was) {
		t.Error("the profile that was given changed")
	}
	got.Workloads[1].Tenants = nil // of which the generator knows nothing so far
	if err := got.Validate(); err != nil {
		t.Errorf("the profile is refused: %v", err)
	}
	// Windows hold whole cycles of the bursts: 2,000 requests at 60/s are 33.3 s.
	if d := o.full(60, 0); d != 35*time.Second {
		t.Errorf("a window of %v, want 35s", d)
	}
	if d := o.full(1, 0); d != 300*time.Second {
		t.Errorf("the longest window is %v, want 300s", d)
	}
}

func TestOptionsSayWhatIsWrong(t *testing.T) {
	for want, change := range map[string]func(o *Options){
		"attain is 1.5":                       func(o *Options) { o.Attain = 1.5 },
		"attain is NaN":                       func(o *Options) { o.Attain = math.NaN() },
		"window in seconds is 0.1":            func(o *Options) { o.Window = 100 * time.Millisecond },
		"min 20, start 10, max 30":            func(o *Options) { o.Min, o.Start, o.Max = 20, 10, 30 },
		"repeats is 21":                       func(o *Options) { o.Repeats = 21 },
		"gap_p99<1s needs a workload with":    func(o *Options) { o.SLO = slo(t, "gap_p99<1s"); o.Base.Workloads = o.Base.Workloads[:1] },
		"is a closed loop":                    func(o *Options) { o.Base.Workloads[0].Clients = 3 },
		"has 2 phases":                        func(o *Options) { w := &o.Base.Workloads[0]; w.Phases = append(w.Phases, w.Phases[0]) },
		`plan "x" is sent as it stands`:       func(o *Options) { o.Base.Plan = "x" },
		"kind ramp, whose rate does not stay": func(o *Options) { o.Base.Workloads[0].Phases[0].Process = arrivals.Process{Kind: arrivals.Ramp, To: 3} },
		"plans no arrivals":                   func(o *Options) { o.Base.Workloads = nil },
	} {
		o := Options{Base: two()}
		change(&o)
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
	if err := (Options{Base: two()}).Validate(); err != nil {
		t.Error(err)
	}
	if err := (Options{Base: two(), Min: 100}).Validate(); err != nil {
		t.Errorf("a lowest rate above the profile's: %v", err)
	}
	for _, o := range []Options{{Base: two()}, {Base: two(), Min: 3, Max: 3}, {Base: two(), Min: 3}} {
		if _, err := Sweep(t.Context(), o); err == nil || !strings.Contains(err.Error(), "want 0 < from < to") {
			t.Errorf("a sweep from %v to %v: %v", o.Min, o.Max, err)
		}
	}
}
