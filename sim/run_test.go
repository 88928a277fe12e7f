package sim

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
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

var update = flag.Bool("update", false, "write golden files")

// The whole result of a small static run: what JSON readers get.
func TestGolden(t *testing.T) {
	b := train("b", 200*sec, 150*sec, 20*sec)
	b.Slices, b.GPUs = 0, 1
	w := tiny(embed("a", 0, 100*sec), b, quantize("q", 20*sec, 300*sec))
	w.Backlog = backlog()
	got, err := json.MarshalIndent(run(t, w, &Static{}, Options{Name: "static", Spans: 20}), "", " ")
	if err != nil {
		t.Fatal(err)
	}
	const path = "testdata/static.golden.json"
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("differs from %s; look at the difference after -update", path)
	}
}
