package keys

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"aloft/gateway"
)

var t0 = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// step is one call and what must come of it.
type step struct {
	after  time.Duration // since t0
	settle int           // tokens, -1 = reserve
	r      gateway.Reserving
	kind   string        // "" = admitted
	wait   time.Duration // of a refusal
}

func reserve(after time.Duration, tokens int) step {
	return step{after: after, settle: -1, r: gateway.Reserving{Tokens: tokens}}
}
func (s step) refused(kind string, wait time.Duration) step { s.kind, s.wait = kind, wait; return s }
func (s step) row() step                                    { s.r.Row = true; return s }
func settle(after time.Duration, tokens, used int) step {
	return step{after: after, settle: used, r: gateway.Reserving{Tokens: tokens}}
}

func TestLimits(t *testing.T) {
	const s, never = time.Second, -1
	tillDecember := 12 * time.Hour
	for name, tt := range map[string]struct {
		l     limits
		steps []step
	}{
		"requests: a burst of one minute, then evenly": {limits{requests: 3}, []step{
			reserve(0, 0), reserve(0, 0), reserve(0, 0), reserve(0, 0).refused("requests", 20*s),
			reserve(19*s, 0).refused("requests", s), reserve(20*s, 0), reserve(20*s, 0).refused("requests", 20*s),
			settle(21*s, 0, 0), reserve(21*s, 0).refused("requests", 19*s)}}, // an answered request stays counted
		"tokens: an estimate, refunded on failure": {limits{tokens: 60}, []step{
			reserve(0, 60), reserve(0, 1).refused("tokens", s), settle(0, 60, 0), reserve(0, 60)}},
		"tokens: debt is paid first": {limits{tokens: 60}, []step{
			reserve(0, 60), settle(0, 60, 180), reserve(0, 1).refused("tokens", 121*s), reserve(121*s, 1)}},
		"tokens: no refund above the limit": {limits{tokens: 60}, []step{
			reserve(0, 60), settle(60*s, 60, 0), reserve(60*s, 60), reserve(60*s, 1).refused("tokens", s)}},
		"tokens: more than the whole limit": {limits{tokens: 60, requests: 1}, []step{
			reserve(0, 61).refused("tokens", never), reserve(0, 60)}},
		"parallel: until settled": {limits{parallel: 2}, []step{
			reserve(0, 5), reserve(0, 5), reserve(0, 5).refused("parallel", soon), settle(s, 5, 5), reserve(s, 5)}},
		"parallel: refusals take no place": {limits{parallel: 1, requests: 5, tokens: 50}, []step{
			reserve(0, 10), reserve(0, 10).refused("parallel", soon), reserve(0, 10).refused("parallel", soon),
			settle(0, 10, 10), reserve(0, 40)}}, // 5 requests and 40 tokens were left
		"requests: refusals take no tokens": {limits{requests: 1, tokens: 100}, []step{
			reserve(0, 50), reserve(0, 50).refused("requests", 60*s), settle(0, 50, 0), reserve(60*s, 100)}},
		"the longer wait is told": {limits{requests: 1, tokens: 60}, []step{
			reserve(0, 60), settle(0, 60, 120), reserve(0, 60).refused("tokens", 120*s)}},
		"budget: settled and under way": {limits{budget: 100}, []step{
			reserve(0, 60), reserve(0, 60).refused("budget", soon), settle(0, 60, 50), reserve(0, 50), settle(0, 50, 50),
			reserve(0, 1).refused("budget", tillDecember)}},
		"budget: more than the whole": {limits{budget: 100}, []step{reserve(0, 101).refused("budget", never)}},
		"budget: a new month": {limits{budget: 100}, []step{
			reserve(0, 100), settle(0, 100, 100), reserve(tillDecember-1, 1).refused("budget", 1), reserve(tillDecember, 100)}},
		"budget: begun in one month and settled in the next": {limits{budget: 100}, []step{
			reserve(0, 70), reserve(tillDecember, 40).refused("budget", soon), settle(tillDecember, 70, 60), reserve(tillDecember, 40)}},
		"budget: a clock that steps back": {limits{budget: 100}, []step{
			reserve(tillDecember, 100), settle(tillDecember, 100, 100), reserve(0, 1).refused("budget", 31*24*time.Hour+tillDecember)}},
		"budget: an engine that says nonsense": {limits{budget: 100}, []step{
			reserve(0, 50), reserve(0, 50), settle(0, 50, 1<<62), settle(0, 50, 1<<62), reserve(0, 1).refused("budget", tillDecember)}},
		"rows: the budget alone": {limits{requests: 1, tokens: 10, parallel: 1, budget: 100}, []step{
			reserve(0, 40).row(), reserve(0, 40).row(), reserve(0, 10), reserve(0, 20).row().refused("budget", soon),
			settle(0, 40, 30).row(), reserve(0, 20).row()}},
		"none": {limits{}, []step{reserve(0, 1<<40), reserve(0, 1<<40), settle(0, 1<<40, 5)}},
	} {
		t.Run(name, func(t *testing.T) {
			var a account
			for i, st := range tt.steps {
				now := t0.Add(st.after)
				if st.settle >= 0 {
					a.settle(tt.l, now, st.r, st.settle)
					continue
				}
				_, e := a.reserve(tt.l, now, st.r)
				kind, wait := "", time.Duration(0)
				if e != nil {
					kind, wait = e.Kind, e.After
				}
				if kind != st.kind || (wait-st.wait).Abs() > time.Microsecond { // levels are floats
					t.Errorf("step %d: refused by %q for %v, want %q for %v", i, kind, wait, st.kind, st.wait)
				}
			}
		})
	}
}

func TestQuota(t *testing.T) {
	var a account
	l := limits{requests: 60, tokens: 6000}
	q, _ := a.reserve(l, t0, gateway.Reserving{Tokens: 1000})
	want := gateway.Quota{Requests: gateway.Gauge{Limit: 60, Remaining: 59, Reset: time.Second}, Tokens: gateway.Gauge{Limit: 6000, Remaining: 5000, Reset: 10 * time.Second}}
	if q != want {
		t.Errorf("%+v, want %+v", q, want)
	}
	a.settle(l, t0, gateway.Reserving{Tokens: 1000}, 8000)
	q, e := a.reserve(l, t0, gateway.Reserving{Tokens: 1})
	if q.Tokens.Remaining != 0 || q.Tokens.Reset != 80*time.Second || e == nil || e.Quota != q {
		t.Errorf("in debt: %+v %v", q, e)
	}
	if q, _ := (&account{}).reserve(limits{}, t0, gateway.Reserving{Tokens: 1}); q != (gateway.Quota{}) {
		t.Errorf("without limits: %+v", q)
	}
}

// A limit that is set, lowered or lifted while the server runs.
func TestLimitsChange(t *testing.T) {
	var a account
	for range 100 {
		a.reserve(limits{}, t0, gateway.Reserving{Tokens: 1000})
	}
	one := gateway.Reserving{Tokens: 1}
	if q, e := a.reserve(limits{requests: 10, tokens: 10}, t0, one); e != nil || q.Requests.Remaining != 9 || q.Tokens.Remaining != 9 {
		t.Errorf("set: %+v %v, want a full bucket less one", q, e)
	}
	if q, e := a.reserve(limits{requests: 5, tokens: 10}, t0, one); e != nil || q.Requests.Remaining != 4 {
		t.Errorf("lowered: %+v %v", q, e)
	}
}

// In real waits: a client that waits as it is told is let in, and one that does
// not wait gets no more than the rate.
func TestLimitsOverTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a account
		l := limits{requests: 120, tokens: 6000}
		rnd := rand.New(rand.NewPCG(1, 2))
		start, admitted, tokens := time.Now(), 0, 0
		for time.Since(start) < 10*time.Minute {
			r := gateway.Reserving{Tokens: 1 + rnd.IntN(200)}
			if _, e := a.reserve(l, time.Now(), r); e != nil {
				time.Sleep(e.After + time.Nanosecond) // a float's rounding
				if _, e := a.reserve(l, time.Now(), r); e != nil {
					t.Fatalf("waited as told and was refused: %s for %v", e.Kind, e.After)
				}
			}
			admitted++
			used := rnd.IntN(2 * r.Tokens)
			tokens += used
			a.settle(l, time.Now(), r, used)
		}
		if admitted > 11*120 || tokens > 11*6000+400 || tokens < 9*6000 {
			t.Errorf("%d requests and %d tokens in 10 minutes, want at most 11 minutes' worth and nearly as much as allowed", admitted, tokens)
		}
	})
}
