package simulated

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"aloft/gpu"
)

func placements(t *testing.T, family, text string) []gpu.Placement {
	t.Helper()
	f, _ := gpu.Lookup(family)
	set, err := f.Layout(strings.Fields(text))
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func show(all []gpu.Slice) string {
	var parts []string
	for _, s := range all {
		parts = append(parts, fmt.Sprintf("%s=%s@%d", s.ID, s.Shape.Profile, s.Start))
	}
	return strings.Join(parts, " ")
}

func TestReshape(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, err := New(Options{GPUs: []GPU{{Family: "A100-80GB", Layout: []string{"1g.10gb@0", "1g.10gb@1", "3g.40gb@4"}}},
			Create: 500 * time.Millisecond, Destroy: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		if err := n.SetUsage("g0/s2", gpu.Usage{Processes: 1}); err != nil {
			t.Fatal(err)
		}
		kept := list(t, n)[0].Slices[2]
		start := time.Now()
		got, err := n.Reshape(t.Context(), 0, placements(t, "A100-80GB", "3g.40gb@4 2g.20gb@0 2g.20gb@2"))
		if err != nil {
			t.Fatal(err)
		}
		// s0 and s1 have just gone: their numbers are not used at once.
		if want := "g0/s3=2g.20gb@0 g0/s4=2g.20gb@2 g0/s2=3g.40gb@4"; show(got) != want || show(list(t, n)[0].Slices) != want {
			t.Errorf("%s, listed %s; want %s", show(got), show(list(t, n)[0].Slices), want)
		}
		if took := time.Since(start); took != 3*time.Second { // 2 · 1 s + 2 · 0.5 s
			t.Errorf("took %v, want 3s", took)
		}
		if got[2] != kept {
			t.Errorf("what stayed has changed: %+v, was %+v", got[2], kept)
		}
		if u, err := n.Usage(t.Context(), "g0/s2"); err != nil || u.Processes != 1 {
			t.Errorf("usage of what stayed: %+v, %v", u, err)
		}
		if _, err := n.Usage(t.Context(), "g0/s0"); !errors.Is(err, gpu.ErrUnknownSlice) {
			t.Errorf("usage of what went: %v", err)
		}
		back, err := n.Reshape(t.Context(), 0, placements(t, "A100-80GB", "1g.10gb@0 1g.10gb@1 3g.40gb@4"))
		if err != nil || show(back) != "g0/s0=1g.10gb@0 g0/s1=1g.10gb@1 g0/s2=3g.40gb@4" {
			t.Errorf("and back: %s, %v", show(back), err)
		}
		if first := list(t, node(t, GPU{Family: "A100-80GB", Layout: []string{"1g.10gb@0"}}))[0].Slices[0]; first.UUID == back[0].UUID {
			t.Error("an instance made anew has the UUID of the first one")
		}
	})
}

func TestReshapeRefusals(t *testing.T) {
	n := node(t, GPU{Family: "A30-24GB", Layout: []string{"2g.12gb@0", "1g.6gb@2"}}, GPU{Family: "A30-24GB"}, GPU{Model: "NVIDIA L40S", Bytes: 48 << 30})
	if err := n.SetUsage("g0/s1", gpu.Usage{Processes: 2}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		gpu    int
		layout []gpu.Placement
		want   string
	}{
		{0, placements(t, "A30-24GB", "4g.24gb"), "reshape simulated gpu 0: g0/s1 has 2 processes: in use"},
		{0, []gpu.Placement{{Profile: "2g.12gb", Start: 1, Size: 2}}, "2g.12gb cannot start at 1"},
		{1, nil, "MIG is off"},
		{2, nil, "MIG is off"},
		{3, nil, "no such gpu on a node of 3"},
	} {
		_, err := n.Reshape(t.Context(), c.gpu, c.layout)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("gpu %d: %v, want %q", c.gpu, err, c.want)
		}
	}
	if got := show(list(t, n)[0].Slices); got != "g0/s0=2g.12gb@0 g0/s1=1g.6gb@2" {
		t.Errorf("a refused reshape left %s", got)
	}
}

// TestReshapeFailsHalfWay: whatever a step does not get done, what is there is
// legal and told.
func TestReshapeFailsHalfWay(t *testing.T) {
	f, _ := gpu.Lookup("A100-80GB")
	for steps, want := range []string{
		"g0/s0=1g.10gb@0 g0/s1=1g.10gb@1",
		"g0/s1=1g.10gb@1",
		"",
		"g0/s2=4g.40gb@0",
		"g0/s2=4g.40gb@0 g0/s3=3g.40gb@4",
	} {
		n := node(t, GPU{Family: "A100-80GB", Layout: []string{"1g.10gb@0", "1g.10gb@1"}})
		n.BreakReshape(0, steps)
		layout := placements(t, "A100-80GB", "4g.40gb 3g.40gb")
		got, err := n.Reshape(t.Context(), 0, layout)
		if (err == nil) != (steps == 4) || err != nil && !errors.Is(err, errInjected) || show(got) != want {
			t.Errorf("after %d steps: %s, %v; want %s", steps, show(got), err, want)
		}
		var set []gpu.Placement
		for _, s := range list(t, n)[0].Slices {
			set = append(set, s.Placement())
		}
		if err := f.Legal(set); err != nil {
			t.Errorf("after %d steps: %v", steps, err)
		}
		if got, err := n.Reshape(t.Context(), 0, layout); err != nil || len(got) != 2 {
			t.Errorf("the second try: %s, %v", show(got), err)
		}
	}
}

func TestReshapeStopsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, err := New(Options{GPUs: []GPU{{Family: "A30-24GB", Layout: []string{"1g.6gb@0", "1g.6gb@1"}}}, Destroy: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		why := errors.New("shutting down")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(1500*time.Millisecond, func() { cancel(why) })
		got, err := n.Reshape(ctx, 0, nil)
		if !errors.Is(err, why) || show(got) != "g0/s1=1g.6gb@1" {
			t.Errorf("%s, %v", show(got), err)
		}
	})
	if _, err := New(Options{GPUs: []GPU{{Family: "A30-24GB"}}, Create: -1}); err == nil {
		t.Error("a negative time is let through")
	}
}
