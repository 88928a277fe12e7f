package sim

import (
	"math"
	"testing"
	"time"

	"aloft/sim/scenario"
)

// TestHistory: what a law is learned from, by hand. A call of 2,048 tokens takes
// 40 + 0.1 × 2,048 = 244.8 ms and may take 1 s: in the second in which it comes the
// level is 0.2448/(1 + 0.8) = 0.136 replicas of which merged calls may use 0.8, so
// 0.17. A prompt of 1,000 tokens at 1,000/s is 1/(1 + 0.8) = 0.556, and not divided.
func TestHistory(t *testing.T) {
	slo := scenario.SLO{TTFTS: 1, TPOTMs: 50}
	for _, c := range []struct {
		name     string
		m        scenario.Model
		in       int32
		at, work float64
	}{
		{"merged", scenario.Model{Service: scenario.Service{AlphaMs: 40, BetaMsPerToken: 0.1, MaxTokens: 2048}, SLO: slo}, 2048, 0.136 / 0.8, 0.2448},
		{"generated", scenario.Model{Service: scenario.Service{AlphaMs: 10, Slots: 100, PrefillPerS: 1000, SpeedWhenPrefill: 0.5}, SLO: slo}, 1000, 1 / 1.8, 1},
	} {
		traffic := scenario.Traffic{Model: &c.m, Arrivals: []scenario.Arrival{{At: 3500 * time.Millisecond, In: c.in, Out: 1}}}
		past := history(&traffic, 10*time.Second, 0.8)
		if len(past.Level) != 10 || len(past.Work) != 10 || past.Level[2] != 0 {
			t.Fatalf("%s: %v, %v, want ten seconds, the third of which has nothing", c.name, past.Level, past.Work)
		}
		if math.Abs(float64(past.Level[3])-c.at) > 1e-6 || math.Abs(float64(past.Work[3])-c.work) > 1e-6 {
			t.Errorf("%s: level %v and work %v, want %v and %v", c.name, past.Level[3], past.Work[3], c.at, c.work)
		}
	}
}

// TestLearnAlike: histories of a scenario and a recording of the same traffic teach
// the same laws, of models with merged calls too.
func TestLearnAlike(t *testing.T) {
	s, err := scenario.Load("../configs/scenarios/embed-8gpu.yaml")
	if err != nil {
		t.Fatal(err)
	}
	s.Measure.WarmUpS = 0
	window := scenario.DrawOptions{To: 1.05}
	laws, err := Learn(s, []uint64{1001}, window, false)
	if err != nil {
		t.Fatal(err)
	}
	w, err := s.Draw(1001, window)
	if err != nil {
		t.Fatal(err)
	}
	merged := 0
	for name, trial := range LearnFrom(w, rho, false) {
		if laws[name] != trial.Law {
			t.Errorf("%s: %+v from histories, %+v from the recording", name, laws[name], trial.Law)
		}
		for i := range s.Models {
			if s.Models[i].Name == name && s.Models[i].Service.Merged() {
				merged++
			}
		}
	}
	if merged == 0 {
		t.Error("no model with merged calls has a law: this shows nothing")
	}
}
