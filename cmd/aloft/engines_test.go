package main

import (
	"strings"
	"testing"
	"time"
)

// The timed engine is the one that scales by shape: a law meant for one compute
// and one memory slice runs its tokens twice as fast on 2g.20gb.
func TestSyntheticScalesByShape(t *testing.T) {
	for _, tc := range []struct {
		on, of string
		beta   float64 // ms a token
		fault  string
	}{
		{"", "", 0.01, ""},
		{"1:1", "1:1", 0.01, ""},
		{"2:2", "1:1", 0.005, ""},
		{"3:4", "1:1", 0.01 / 3, ""},
		{"0:1", "1:1", 0, "--on 0:1: want compute and memory slices"},
		{"2:2", "", 0, "--law-for : want"},
		{"full", "1:1", 0, "--on full: want"},
	} {
		c := syntheticCmd{Slots: 5, Alpha: 6 * time.Millisecond, Beta: 10 * time.Microsecond, On: tc.on, LawFor: tc.of}
		o, err := c.options()
		if tc.fault != "" {
			if err == nil || !strings.Contains(err.Error(), tc.fault) {
				t.Errorf("on %q for %q: %v, want %q", tc.on, tc.of, err, tc.fault)
			}
			continue
		}
		if err != nil || o.Law.BetaMsPerToken != tc.beta || o.Law.AlphaMs != 6 || o.Law.Slots != 5 {
			t.Errorf("on %q for %q: %v %+v, want beta %v", tc.on, tc.of, err, o.Law, tc.beta)
		}
	}
}
