package sim

import (
	"testing"

	"aloft/sim/scenario"
)

// Rows use the warm reserve under a static split too (README, "Rows"): of the 28
// slices, which serving keeps 6.7 of busy, they do 80 % of what is below 85 % of
// a replica: 0.8 x (0.85 x 28 - 6.7) = 13.7 of 56, up to 0.24 of aloft ratio more
// than without. Nobody waits for them: the requests fare alike.
func TestRowsRideUnderStaticToo(t *testing.T) {
	s, err := scenario.Load("bursty-8gpu-code")
	if err != nil {
		t.Fatal(err)
	}
	var with [2]*Result
	for i, rows := range []bool{false, true} {
		w, err := s.Draw(1, scenario.DrawOptions{To: 0.25, Rows: rows})
		if err != nil {
			t.Fatal(err)
		}
		if with[i], err = Run(w, &Static{}, Options{Name: "static"}); err != nil {
			t.Fatal(err)
		}
	}
	if d := with[1].Aloft - with[0].Aloft; d < 0.15 || d > 0.25 || with[0].Total != with[1].Total {
		t.Errorf("rows add %.3f to the aloft ratio, want up to 0.24; served %+v and %+v, want the same", d, with[0].Total, with[1].Total)
	}
}
