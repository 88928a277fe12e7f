package search

import (
	"math"
	"testing"
)

// The law of Student against tables.
func TestStudent(t *testing.T) {
	near := func(name string, got, want, within float64) {
		t.Helper()
		if math.Abs(got-want) > within*math.Abs(want) {
			t.Errorf("%s is %.6g, want %.6g", name, got, want)
		}
	}
	near("z of 2.5 %", normalAbove(0.025), 1.959964, 1e-6)
	near("t(5) of 2.5 %", studentT(1.959964, 5), 2.570582, 0.01)
	near("t(15) of 0.5 %", studentT(2.575829, 15), 2.946713, 0.01)
	near("z of t", studentZ(studentT(3, 7), 7), 3, 1e-9)
	near("t without a loss", studentT(-2, -1), -2, 0)
}

// made is a window of 64 samples with these figures.
func made(offered, ok, queue func(i int) float64) window {
	w := window{step: 1e9}
	for i := range samples {
		w.slices = append(w.slices, slice{offered(i), ok(i)})
		w.queue = append(w.queue, queue(i))
	}
	return w
}

func always(v float64) func(int) float64 { return func(int) float64 { return v } }

func TestJudge(t *testing.T) {
	rough := func(i int) float64 { return float64(10 + i*7%5) }
	// A stall of the second half: arrivals pile up in even steps, and nothing ends.
	early := func(i int) float64 { return 20 * float64((63-i)/32) }
	stalled := made(early, early, func(i int) float64 { return rough(i) + 20*float64(i/32*(i-31)) })
	behind := made(always(20), always(20), rough)
	behind.extra = 40
	empty := made(always(0), always(0), rough)
	empty.extra = 40
	for name, c := range map[string]struct {
		w       window
		clauses Reason
		verdict Verdict
		reason  Reason
	}{
		"all good":                          {made(always(20), always(20), rough), "", Holds, Attained},
		"all good, too few":                 {made(always(2), always(2), rough), "", Open, Unclear},
		"all bad":                           {made(always(2), always(0), rough), "", Fails, Missed},
		"a few bad":                         {made(always(100), func(i int) float64 { return 100 - float64(i%4/3) }, rough), "", Holds, Attained},
		"2 % bad, spread":                   {made(always(100), always(98), rough), "", Fails, Missed},
		"2 % bad, in one heap":              {made(always(100), func(i int) float64 { return 100 - 64*2*float64(i/63) }, rough), "", Open, Unclear},
		"all good, then a stall":            {stalled, "", Open, Remembering},
		"all good, 40 more open than usual": {behind, "", Open, Unclear},
		"nothing ended, 40 open":            {empty, "", Open, Unclear},
		"nothing offered":                   {made(always(0), always(0), rough), "", Open, Unclear},
		"all good, queue grows": {
			made(always(20), always(20), func(i int) float64 { return rough(i) + float64(i) }), "", Fails, Growing},
		"all good, queue steps up once": {
			made(always(20), always(20), func(i int) float64 { return rough(i) + 5*float64(i/48) }), "", Holds, Attained},
		"all good, queue swings once": {
			made(always(20), always(20), func(i int) float64 { return 50 + 50*math.Sin(float64(i)/10) }), "", Open, Remembering},
		"all good, a clause missed":  {made(always(20), always(20), rough), ClauseMiss, Fails, ClauseMiss},
		"all good, a clause unknown": {made(always(20), always(20), rough), NoFigures, Open, NoFigures},
	} {
		e := weigh([]window{c.w}, 0.99, 0.95)
		if v, why := e.judge(0.004, c.clauses); v != c.verdict || why != c.reason {
			t.Errorf("%s: %s, %s, want %s, %s (%v, inflation %.1f, growth %.2f ± %.2f, %.1f stretches)",
				name, v, why, c.verdict, c.reason, e, e.Inflation, e.Growth, e.GrowthError, e.Stretches)
		}
	}
}
