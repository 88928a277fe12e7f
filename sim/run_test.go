package sim

import (
	"bytes"
	"encoding/json"
	"testing"

	"aloft/sim/scenario"
)

// world draws a window of a scenario that the project holds.
func world(t testing.TB, name string, seed uint64, o scenario.DrawOptions) *scenario.World {
	t.Helper()
	s, err := scenario.Load("../configs/scenarios/" + name + ".yaml")
	if err != nil {
		t.Fatal(err)
	}
	w, err := s.Draw(seed, o)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// ours is the arbiter as it runs everywhere, without anything learned before.
func ours(t testing.TB, w *scenario.World) Policy {
	t.Helper()
	p, err := NewOurs(OursOptions(w.Scenario, nil))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func run(t testing.TB, w *scenario.World, p Policy, o Options) *Result {
	t.Helper()
	r, err := Run(w, p, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// The same seed gives the same bytes, under faults too, and a run does not change
// its world.
func TestDeterminism(t *testing.T) {
	w := world(t, "stress", 3, scenario.DrawOptions{To: 0.5})
	for name, policy := range map[string]func() Policy{"static": func() Policy { return &Static{} }, "ours": func() Policy { return ours(t, w) }} {
		var first []byte
		for i := range 2 {
			b, err := json.Marshal(run(t, w, policy(), Options{Name: name, Spans: 1000}))
			if err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				first = b
			} else if !bytes.Equal(first, b) {
				t.Errorf("%s: two runs of one world differ", name)
			}
		}
	}
}
