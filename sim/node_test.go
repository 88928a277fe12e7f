package sim

import (
	"strings"
	"testing"
	"time"

	"aloft/arbiter"
	"aloft/gpu"
	"aloft/sim/scenario"
)

// mixed is two GPUs: one of 3g and 2g slices, one whole.
func mixed(t *testing.T) ([]gpu.Device, func(string) gpu.Shape) {
	t.Helper()
	shape := func(profile string) gpu.Shape {
		s, err := gpu.ShapeOf("A100-80GB", profile)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	slice := func(g, i, start int, profile string) gpu.Slice {
		return gpu.Slice{ID: gpu.SliceID(g, i), GPU: g, Start: start, Shape: shape(profile)}
	}
	return []gpu.Device{
		{Index: 0, Slices: []gpu.Slice{slice(0, 0, 0, "3g.40gb"), slice(0, 1, 4, "2g.20gb"), slice(0, 2, 6, "1g.10gb")}},
		{Index: 1, Slices: []gpu.Slice{slice(1, 0, 0, "7g.80gb")}},
	}, shape
}

// nodeWorld is a model on 3g slices that is asked nothing, one on 1g slices with a
// request every second, and jobs of both sizes.
func nodeWorld(t *testing.T) *scenario.World {
	t.Helper()
	model := func(name string) scenario.Model {
		return scenario.Model{Name: name, Static: 1, Service: scenario.Service{AlphaMs: 5, BetaMsPerToken: 0.5, MaxTokens: 512},
			SLO: scenario.SLO{TTFTS: 1}, Start: scenario.Start{WakeMedianS: 3, ColdMedianS: 45, Sigma: 0.15}}
	}
	s := &scenario.Scenario{Name: "node", HorizonH: 1, Models: []scenario.Model{model("large"), model("small")},
		Cluster: scenario.Cluster{GPUs: 2, ServerGPUs: 2}}
	w := &scenario.World{Scenario: s, Seed: 1, Horizon: time.Hour}
	for i := range s.Models {
		w.Traffic = append(w.Traffic, scenario.Traffic{Model: &s.Models[i], Copies: 1, TimeScale: 1})
	}
	for at := time.Duration(0); at < time.Hour; at += time.Second {
		w.Traffic[1].Arrivals = append(w.Traffic[1].Arrivals, scenario.Arrival{At: at, In: 100})
	}
	// 3g is the large model's: half an hour for "wide" is lent, or on the whole GPU.
	w.Jobs = []scenario.Job{
		{ID: "wide", Kind: scenario.EmbedJob, Run: 30 * time.Minute, Slices: 1, Start: 10 * time.Second, Stop: time.Second},
		{ID: "whole", Kind: scenario.EmbedJob, Run: 20 * time.Minute, Slices: 1, Start: 10 * time.Second, Stop: time.Second},
	}
	return w
}

// TestNode: on instances of several shapes jobs and replicas get slices that are as
// large as they need, the ledger counts compute slices, and no instance is changed.
func TestNode(t *testing.T) {
	devices, shape := mixed(t)
	n := &Node{Devices: devices, Models: map[string]gpu.Shape{"large": shape("3g.40gb"), "small": shape("1g.10gb")},
		Jobs: map[string]gpu.Shape{"wide": shape("3g.40gb"), "whole": shape("7g.80gb")}}
	useful := map[arbiter.Mode]float64{}
	for _, mode := range []arbiter.Mode{arbiter.ModeStatic, arbiter.ModeLend} {
		w := nodeWorld(t)
		o := OursOptions(w.Scenario, nil)
		o.Policy.Mode, o.Policy.Spare = mode, 0
		p, err := NewOurs(o)
		if err != nil {
			t.Fatal(err)
		}
		r, err := Run(w, p, Options{Name: string(mode), Node: n})
		if err != nil {
			t.Fatal(err)
		}
		if r.Slices != 13 || r.Total.Attainment != 1 {
			t.Errorf("%s: %d compute slices, want 3 + 2 + 1 + 7; attainment %v", mode, r.Slices, r.Total.Attainment)
		}
		for _, m := range r.Moves {
			if m.Action == arbiter.Reshape || m.Refused > 0 {
				t.Errorf("%s: moves %+v", mode, m)
			}
		}
		useful[mode] = r.Ledger[arbiter.JobUseful]
		if mode == arbiter.ModeLend && r.Jobs.Finished != 2 {
			t.Errorf("lending, %d of 2 jobs are done: %+v", r.Jobs.Finished, r.Jobs.List)
		}
	}
	// The whole GPU, 7 units for 20 min, is free; 3g is lent while "large" is asked nothing.
	if want := 60.0 * (20*7 + 30*3); useful[arbiter.ModeLend] != want {
		t.Errorf("jobs made %v slice-s of progress, want %v (a static split: %v)", useful[arbiter.ModeLend], want, useful[arbiter.ModeStatic])
	}
}

// What cannot be played there is said.
func TestNodeRefuses(t *testing.T) {
	devices, shape := mixed(t)
	for _, c := range []struct {
		node   Node
		policy Policy
		want   string
	}{
		{Node{Devices: devices}, &Static{}, "want the arbiter's"},
		{Node{Devices: devices[:1], Models: map[string]gpu.Shape{"small": shape("7g.80gb")}}, nil, "model small keeps 1 replicas in a static split, and there are slices for 0"},
		{Node{Devices: []gpu.Device{{Slices: []gpu.Slice{{ID: "g0/s0", Start: 7}}}}}, nil, "want names of their own"},
	} {
		w := nodeWorld(t)
		p := c.policy
		if p == nil {
			ours, err := NewOurs(OursOptions(w.Scenario, nil))
			if err != nil {
				t.Fatal(err)
			}
			p = ours
		}
		if _, err := Run(w, p, Options{Name: "p", Node: &c.node}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want %s", err, c.want)
		}
	}
}
