package study

import (
	"context"
	"errors"
	"strings"
	"testing"

	"aloft/sim"
	"aloft/sim/scenario"
)

func sampleOptions(t *testing.T, simulate func(context.Context, *scenario.World, string, func(float64)) (*sim.Result, error)) Options {
	t.Helper()
	s, err := scenario.Load("small-8gpu-conv")
	if err != nil {
		t.Fatal(err)
	}
	return Options{Cases: []Case{{Variant{Name: AsIs}, s}}, Policies: []string{"ours"}, Seeds: []uint64{1, 2}, Draw: scenario.DrawOptions{To: 0.2}, Workers: 2, Simulate: simulate}
}

// Static is run without being asked for, runs come in the order of seed and policy
// however they end, and the whole is told to be done.
func TestGrid(t *testing.T) {
	o := sampleOptions(t, func(_ context.Context, w *scenario.World, policy string, progress func(float64)) (*sim.Result, error) {
		progress(0.5)
		r := made(policy, w.Seed, 0.5, 10).Result
		r.Scenario = w.Scenario.Name
		for m := range r.Models {
			r.Models[m].Judged, r.Models[m].GoodBits = [2]int{0, 64}, []uint64{^uint64(0)}
			if policy == Ours {
				r.Models[m].GoodBits[0] = ^uint64(0) << w.Seed // the first, or the first two, are missed
			}
		}
		return &r, nil
	})
	last := Progress{}
	o.OnProgress = func(p Progress) { last = p }
	s, err := Grid(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	var order []string
	for _, r := range s.Runs {
		order = append(order, r.Policy+string('0'+rune(r.Seed)))
	}
	if got := strings.Join(order, " "); got != "static1 ours1 static2 ours2" {
		t.Errorf("runs %s", got)
	}
	if last.Done != 4 || last.Runs != 4 || last.Share != 1 {
		t.Errorf("at the end %+v", last)
	}
	// Of two models with 64 requests each, the first two of each are missed in seed 2.
	if c := s.Find(AsIs, Ours, 2).Caused; len(c) != 3 || c[2].Gross != 4 || c[0].Gross != 2 {
		t.Errorf("caused %+v", c)
	}
	if s.Runs[1].Models[0].GoodBits != nil {
		t.Error("the bits are kept")
	}
	if len(s.Notes) == 0 || !strings.HasPrefix(s.Notes[0], "seed 1: ") {
		t.Errorf("notes %q", s.Notes)
	}
}

func TestGridEnds(t *testing.T) {
	broken := errors.New("invariant broken")
	_, err := Grid(t.Context(), sampleOptions(t, func(context.Context, *scenario.World, string, func(float64)) (*sim.Result, error) { return nil, broken }))
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), "static, seed 1") {
		t.Errorf("a run that fails: %v", err)
	}
	ctx, stop := context.WithCancel(t.Context())
	s, err := Grid(ctx, sampleOptions(t, func(ctx context.Context, w *scenario.World, policy string, _ func(float64)) (*sim.Result, error) {
		if w.Seed == 2 {
			stop()
			return nil, ctx.Err()
		}
		r := made(policy, w.Seed, 0.5, 10).Result
		return &r, nil
	}))
	if err != nil || !s.Interrupted || len(s.Runs) != 2 {
		t.Errorf("%v: %d runs, interrupted %v; want those of seed 1", err, len(s.Runs), s.Interrupted)
	}
}
