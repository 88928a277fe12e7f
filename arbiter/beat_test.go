package arbiter

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// TestBeat: what is due is counted from where the periods end, not from the look at
// which that was seen.
func TestBeat(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name  string
		every time.Duration
		looks []time.Duration
		want  []int
	}{
		{"on time", time.Second, []time.Duration{0, 500 * ms, 1000 * ms, 1500 * ms, 2000 * ms}, []int{1, 0, 1, 0, 1}},
		// The second comes 4 ms late, the third 1 ms: 997 ms apart, and due all the same.
		{"late by turns", time.Second, []time.Duration{0, 1004 * ms, 2001 * ms, 3003 * ms, 4000 * ms}, []int{1, 1, 1, 1, 1}},
		{"between", time.Second, []time.Duration{0, 999 * ms, 1300 * ms, 1999 * ms, 2000 * ms}, []int{1, 0, 1, 0, 1}},
		{"seldom", time.Second, []time.Duration{0, 2500 * ms, 3000 * ms, 7100 * ms, 7900 * ms}, []int{1, 2, 1, 4, 0}},
		{"at the bound", time.Second, []time.Duration{0, 60900 * ms, 61000 * ms}, []int{1, 60, 1}},
		{"anew", time.Second, []time.Duration{0, 61100 * ms, 62000 * ms, 62100 * ms}, []int{1, 1, 0, 1}},
		{"plans", 10 * time.Second, []time.Duration{0, 9999 * ms, 10500 * ms, 20000 * ms}, []int{1, 0, 1, 1}},
	} {
		var b beat
		var got []int
		for _, at := range c.looks {
			got = append(got, b.due(noon.Add(at), c.every))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: due %v, want %v", c.name, got, c.want)
		}
	}
}

// TestSecondsAndPlans: a live loop's ticks are never exactly a guard apart. There is
// a plan every period all the same, and the history of levels, by which horizons are
// counted, has an entry for every second, with the work that came in it.
func TestSecondsAndPlans(t *testing.T) {
	const ms = time.Millisecond
	jitter := []time.Duration{0, 3 * ms, ms, 4 * ms, 0, 2 * ms, ms} // of ticks 500 ms apart
	for name, c := range map[string]struct {
		at    func(k int) time.Duration // of look k
		looks int
		plans int // every 2 s
		work  []float32
	}{
		// 41 looks until 20 s: plans at 0, 2, … 20, seconds 0, 1, … 20; the work of
		// second s is s.
		"ticks": {func(k int) time.Duration { return time.Duration(k)*500*ms + jitter[k%len(jitter)] }, 41, 11,
			[]float32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20}},
		// Nobody looks from 1 s to 4 s: what came then is learned all the same.
		"a stall": {func(k int) time.Duration { return []time.Duration{0, 1000 * ms, 4000 * ms, 5000 * ms}[k] }, 4, 2,
			[]float32{0, 1, 2, 3, 4, 5}},
	} {
		core := testCore(t, nil)
		plans := 0
		core.decide = func(s Snapshot) Plan {
			if s.Plan {
				plans++
			}
			return Plan{}
		}
		o := atRest(1, 1)
		for k := range c.looks {
			at := c.at(k)
			o.Now = noon.Add(at)
			for i := range o.Models {
				o.Models[i].Work = make([]float64, 60)
				for b := range o.Models[i].Work { // newest last: what came in the second that ends now
					o.Models[i].Work[b] = max(0, float64(int(at/time.Second)-59+b))
				}
			}
			core.Look(o)
		}
		if plans != c.plans {
			t.Errorf("%s: %d plans, want %d", name, plans, c.plans)
		}
		if got := core.models["chat"].rise.work; fmt.Sprint(got) != fmt.Sprint(c.work) {
			t.Errorf("%s: work by second %v, want %v", name, got, c.work)
		}
	}
}
