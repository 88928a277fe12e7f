package batching

import (
	"slices"
	"testing"
	"time"

	"aloft/backends/synthetic/law"
	"aloft/batcher"
)

const ms = time.Millisecond

// row is a request that waits: how long it has, and its tokens.
type row struct {
	age    time.Duration
	tokens int
}

// forms lets a rule form one call and returns how many rows it has, the tokens of
// its first, how many requests were refused, and how long the rule would wait.
func forms(rule forming, rows ...row) (n, first, refused int, wait time.Duration) {
	q := newQueue(rule, []batcher.Replica{{ID: "r"}})
	now := epoch.Add(time.Hour)
	for _, r := range rows {
		q.waiting = append(q.waiting, &batcher.Work{Arrival: now.Add(-r.age), RowTokens: []int{r.tokens}})
	}
	members, until := rule.form(q, now, &q.servers[0])
	if len(members) > 0 {
		first = members[0].RowTokens[0]
	}
	if !until.IsZero() {
		wait = until.Sub(now)
	}
	return len(members), first, len(q.acts), wait
}

// of so many rows of one age and size.
func many(n int, age time.Duration, tokens int) []row { return slices.Repeat([]row{{age, tokens}}, n) }

func TestRules(t *testing.T) {
	fixed := Fixed{Size: 4, Delay: 5 * ms, Timeout: 50 * ms}
	trained := &cork{Cork: Cork{Size: 4, Target: 100 * ms}, rows: []float64{1, 3}, took: []float64{0.020, 0.040}, waits: []float64{0.030, 0.050}} // 10 ms a row + 10 ms; 40 ms
	flat := law.Law{AlphaMs: 10, BetaMsPerToken: 1}
	late := ShedLateEDF{Law: flat, Margin: 1.1, Target: 100 * ms}
	padded := late
	padded.Law.Padded = true
	for name, c := range map[string]struct {
		rule              forming
		rows              []row
		n, first, refused int
		wait              time.Duration
	}{
		"fixed: full goes at once":             {fixed, many(5, 1*ms, 9), 4, 9, 0, 0},
		"fixed: fewer wait for the delay":      {fixed, many(3, 2*ms, 9), 0, 0, 0, 3 * ms},
		"fixed: the oldest is as old":          {fixed, append(many(1, 5*ms, 9), many(1, 0, 9)...), 2, 9, 0, 0},
		"fixed: the timeout itself is in time": {fixed, many(2, 50*ms, 9), 2, 9, 0, 0},
		"fixed: older is refused":              {fixed, append(many(3, 51*ms, 9), many(1, 20*ms, 7)...), 1, 7, 3, 0},
		"fixed: all too old":                   {fixed, many(3, 51*ms, 9), 0, 0, 3, 0},
		"fixed: no delay is eager":             {Fixed{Size: 4}, many(1, 0, 9), 1, 9, 0, 0},

		"tokens: until the first that does not fit": {TokenFIFO{Tokens: 10}, []row{{0, 4}, {0, 4}, {0, 4}, {0, 1}}, 2, 4, 0, 0},
		"tokens: one that is too long goes alone":   {TokenFIFO{Tokens: 10}, []row{{0, 40}, {0, 4}}, 1, 40, 0, 0},
		"tokens: padded counts the longest":         {TokenFIFO{Tokens: 10, Padded: true}, []row{{0, 1}, {0, 5}, {0, 1}}, 2, 1, 0, 0},

		"cork: waits while it loses little":       {trained, many(2, 1*ms, 9), 0, 0, 0, ms},                               // 2·(1+1+10) ms <= 0.95·40
		"cork: goes when it would lose more":      {trained, many(3, 4*ms, 9), 3, 9, 0, 0},                                // 3·(4+1+10) ms
		"cork: the newest decides":                {trained, []row{{50 * ms, 9}, {0, 9}}, 0, 0, 0, ms},                    // 2·(0+1+10) ms
		"cork: a full call goes":                  {trained, many(4, 0, 9), 4, 9, 0, 0},                                   //
		"cork: the oldest would be late":          {trained, append(many(2, 60*ms, 9), many(4, 30*ms, 7)...), 4, 7, 2, 0}, // 60+4·10+10
		"cork: what waits beyond Size is no part": {trained, many(9, 40*ms, 9), 4, 9, 0, 0},                               // 40+4·10+10 < 100
		"cork: a lone one is served until late":   {trained, many(1, 99*ms, 9), 1, 9, 0, 0},
		"cork: and refused then":                  {trained, many(1, 100*ms, 9), 0, 0, 1, 0},

		"late: as many as the first can wait for": {late, many(9, 10*ms, 20), 3, 20, 0, 0},                          // 1.1·(10+20·n) <= 90
		"late: none but the first":                {late, many(9, 60*ms, 20), 1, 20, 0, 0},                          // 1.1·30 <= 40 < 1.1·50
		"late: late alone is refused":             {late, append(many(2, 70*ms, 20), many(1, 0, 7)...), 1, 7, 2, 0}, // 1.1·30 > 30
		"late: padding is known":                  {padded, []row{{10 * ms, 1}, {10 * ms, 30}, {10 * ms, 1}}, 2, 1, 0, 0},
	} {
		if n, first, refused, wait := forms(c.rule, c.rows...); n != c.n || first != c.first || refused != c.refused || wait != c.wait {
			t.Errorf("%s: %d rows from %d tokens on, %d refused, wait %v; want %d, %d, %d, %v", name, n, first, refused, wait, c.n, c.first, c.refused, c.wait)
		}
	}
}

// A call's cap grows by one after a full call in time, stays after one that was not
// full, and shrinks by a tenth after a late one, never below 1.
func TestAIMD(t *testing.T) {
	a := AIMD{Objective: 50 * ms}
	s := &server{cap: 1}
	for i, step := range []struct {
		rows int
		took time.Duration
		want float64
	}{{1, 50 * ms, 2}, {1, ms, 2}, {2, ms, 3}, {3, 51 * ms, 2.7}, {2, ms, 3.7}, {3, 51 * ms, 3.33}, {1, time.Second, 2.997}} {
		if a.learn(s, &batcher.Batch{Rows: step.rows}, step.took); s.cap < step.want-1e-9 || s.cap > step.want+1e-9 {
			t.Fatalf("step %d: cap %v, want %v", i, s.cap, step.want)
		}
	}
	for range 100 {
		a.learn(s, &batcher.Batch{Rows: 1}, time.Second)
	}
	if s.cap != 1 {
		t.Errorf("cap %v, want 1", s.cap)
	}
	s.cap = 3.9
	if n, _, _, _ := forms(a, many(9, 0, 1)...); n != 1 { // forms' own server starts at 1
		t.Errorf("a new replica's first call has %d rows, want 1", n)
	}
}

// The cork's line is that of the last 50 calls.
func TestCorkFits(t *testing.T) {
	c := &cork{Cork: Cork{Size: 4, Target: 300 * ms}}
	if a, b := c.line(); a != 0.02 || b != 0.01 {
		t.Errorf("begins with %v s a row and %v s, want 0.02 and 0.01", a, b)
	}
	call := func(rows int, took, waited time.Duration) {
		w := &batcher.Work{Arrival: epoch}
		c.learn(nil, &batcher.Batch{At: epoch.Add(waited), Rows: rows, Segs: []batcher.Seg{{Work: w}}}, took)
	}
	for range 30 {
		call(9, time.Second, time.Second)
	}
	for range 25 {
		call(1, 20*ms, 10*ms)
		call(3, 40*ms, 30*ms)
	}
	if a, b := c.line(); a < 0.00999 || a > 0.01001 || b < 0.00999 || b > 0.01001 {
		t.Errorf("%v s a row and %v s, want 0.01 and 0.01", a, b)
	}
	if w := c.waited(); w < 0.0199 || w > 0.0201 {
		t.Errorf("waits of %v s, want 0.02", w)
	}
}

// Who joins a call that is late for a replica is served with it, in order.
func TestRivalsRun(t *testing.T) {
	w := paper()
	w.Warm = 0
	reqs := poisson(0.3*knee, 2*time.Second, 1, "")
	for _, arm := range Arms {
		if arm == NoBatch {
			continue
		}
		o := Simulate(w, New(arm, w, Usual(w.Target)), reqs)
		if o.Attainment() < 0.999 || o.Unanswered() > 0 {
			t.Errorf("%s at 0.3 x knee attains %.4f, forgot %d", arm, o.Attainment(), o.Unanswered())
		}
	}
}
