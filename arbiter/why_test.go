package arbiter

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"aloft/gpu"
)

func TestRecordString(t *testing.T) {
	room := 0.42
	w := Numbers{Level: 1.374, Need: 2, Fast: 3, Slow: 4, Have: 2, Lent: 1, Lendable: 2, Room: &room, Latency: 232 * time.Millisecond,
		Cost: 3400 * time.Millisecond, For: 42*time.Second + 400*time.Millisecond}
	bare := Numbers{Lent: 1, Lendable: 2}
	held := w
	held.Gain, held.Cost = 41*time.Second, 77*time.Second
	at := func(a Action, model, job string, r Reason, why Numbers) Record {
		return Record{Move: Move{Action: a, Slice: "g0/s3", Model: model, Job: job, Reason: r, Why: why, Bound: 13700 * time.Millisecond}}
	}
	ended := func(r Record, outcome string, took time.Duration, err string) Record {
		r.Outcome, r.Took, r.Error = outcome, took, err
		return r
	}
	start, wake := at(Start, "enc", "", BelowMin, w), at(Wake, "enc", "", RiseAhead, Numbers{Level: 0.5, Need: 1, Fast: 2, Have: 1})
	lend, reclaim := at(Lend, "enc", "train-7", Surplus, w), at(Reclaim, "enc", "train-7", NeedsMore, w)
	for _, c := range []struct {
		r    Record
		want string
	}{
		{start, "start g0/s3 for enc (below_min): enc needs 2 now (level 1.37), 3 within the fast horizon, has 2; headroom 42% (p99 232ms)"},
		{wake, "wake g0/s3 for enc (rise_ahead): enc needs 1 now (level 0.50), 2 within the fast horizon, has 1"},
		{reclaim, "reclaim g0/s3 from train-7 for enc (needs_more): enc needs 2 now (level 1.37), 3 within the fast horizon, has 2; lent for 42.4s, stopping costs 3.4s, bound 13.7s; headroom 42% (p99 232ms)"},
		{lend, "lend g0/s3 to train-7 (surplus): enc needs 2 now (level 1.37), 3 within the fast horizon, has 2; surplus for 42.4s, out and back costs 3.4s; 1 of 2 lendable slices lent, bound 13.7s; headroom 42% (p99 232ms)"},
		{at(Lend, "", "b-1", NoNeed, bare), "lend g0/s3 to b-1 (free_slice): 1 of 2 lendable slices lent, bound 13.7s"},
		{at(Hold, "", "b-1", CapReached, bare), "held g0/s3, wanted by b-1 (cap): 1 of 2 lendable slices lent"},
		{at(Hold, "enc", "b-1", LowHeadroom, held), "held g0/s3 for enc, wanted by b-1 (low_headroom): enc needs 2 now (level 1.37), 3 within the fast horizon, has 2; lending would gain 41 slice-s, cost 77; 1 of 2 lendable slices lent; headroom 42% (p99 232ms)"},
		{at(Wake, "enc", "", RiseAhead, Numbers{Need: 1, Fast: 2, Within: 6200 * time.Millisecond, Quantile: 0.999}), "wake g0/s3 for enc (rise_ahead): enc needs 1 now (level 0.00), 2 within 6.2s at the 99.9 % rise, has 0"},
		{at(Vacate, "", "train-7", ForJob, Numbers{Cost: 3 * time.Second}), "empty g0/s3 of train-7 (for_job): stopping it costs 3s"},
		{Record{Move: Move{Action: Reshape, GPU: 1, Model: "enc", Reason: OtherShape, Layout: []gpu.Placement{{Profile: "3g.40gb", Start: 4}}, Why: Numbers{Gain: time.Minute, Cost: 2 * time.Second}}},
			"reshape GPU 1 for enc (shape) to 3g.40gb@4: gain 60 slice-s, cost 2"},
		{ended(at(Vacate, "", "train-7", ForJob, w), "done", time.Second, ""), "train-7 left g0/s3 after 1s"},
		{ended(start, "done", 2345*time.Millisecond, ""), "g0/s3 ready for enc after 2.345s"},
		{ended(reclaim, "done", 4*time.Second, ""), "g0/s3 ready for enc after 4s of the promised 13.7s"},
		{ended(lend, "done", time.Second, ""), "g0/s3 now runs train-7; the move took 1s"},
		{ended(lend, "failed", time.Second, "no such job"), "lend of g0/s3 failed after 1s: no such job"},
		{ended(reclaim, "bound_broken", 20*time.Second, ""), "reclaim of g0/s3 bound broken after 20s"},
		{ended(wake, "observed", 0, ""), "wake g0/s3 for enc (rise_ahead): enc needs 1 now (level 0.50), 2 within the fast horizon, has 1 (observe mode: not done)"},
	} {
		if got := c.r.String(); got != c.want {
			t.Errorf("%s\nwant %s", got, c.want)
		}
	}
}

func TestHistory(t *testing.T) {
	var h history
	for i := range historySize + 1 {
		h.add(Record{Gen: uint64(i)})
	}
	if n := len(h.records); n != historySize-historySize/10+1 {
		t.Errorf("%d records kept", n)
	}
	if last, first := h.records[len(h.records)-1].Gen, h.records[0].Gen; last != historySize || first != historySize/10 {
		t.Errorf("kept %d to %d, want the newest", first, last)
	}
}

func TestHistoryNews(t *testing.T) {
	var h history
	hold := Move{Action: Hold, Slice: "s0", Job: "a", Reason: NeededSoon}
	other, elsewhere, next := hold, hold, hold
	other.Reason, elsewhere.Slice, next.Job = CapReached, "s1", "b"
	lend := next
	lend.Action = Lend
	for _, c := range []struct {
		name  string
		m     Move
		after time.Duration
		want  bool
	}{
		{"first", hold, 0, true},
		{"again", hold, time.Second, false},
		{"another slice", elsewhere, time.Second, true},
		{"another reason", other, time.Second, true},
		{"the first reason again", hold, 2 * time.Second, true},
		{"another job", next, 2 * time.Second, true},
		{"another action", lend, 2 * time.Second, true},
		{"unchanged", lend, 11 * time.Second, false},
		{"ten seconds later", lend, 12 * time.Second, true},
	} {
		if got := h.news(c.m, noon.Add(c.after)); got != c.want {
			t.Errorf("%s: news is %v", c.name, got)
		}
	}
}

func TestWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		r := begin(w, nil)
		r.end()
		start := time.Now()
		for i := range 10 {
			r.core.history.add(Record{Time: start.Add(time.Duration(i) * time.Second), Gen: uint64(i),
				Move: Move{Slice: fmt.Sprintf("s%d", i%2), Job: fmt.Sprintf("j%d", i%5), Model: "s"}})
		}
		for _, c := range []struct {
			q    Query
			want string
		}{
			{Query{}, "[0 1 2 3 4 5 6 7 8 9]"},
			{Query{Limit: 3}, "[7 8 9]"},
			{Query{About: "s1"}, "[1 3 5 7 9]"},
			{Query{About: "j2"}, "[2 7]"},
			{Query{About: "s"}, "[0 1 2 3 4 5 6 7 8 9]"},
			{Query{About: "j"}, "[]"},
			{Query{About: "s1", Limit: 2}, "[7 9]"},
			{Query{Since: start.Add(8 * time.Second)}, "[8 9]"},
			{Query{Until: start.Add(2 * time.Second)}, "[0 1]"},
			{Query{Since: start.Add(2 * time.Second), Until: start.Add(4 * time.Second)}, "[2 3]"},
			{Query{Before: 4, Limit: 2}, "[1 2]"}, // the first has number 1
			{Query{Action: Lend}, "[]"},
			{Query{Since: start.Add(8 * time.Second), About: "s1"}, "[9]"},
		} {
			gens := []uint64{}
			for _, rec := range r.Why(c.q) {
				gens = append(gens, rec.Gen)
			}
			if fmt.Sprint(gens) != c.want {
				t.Errorf("%+v: %v, want %s", c.q, gens, c.want)
			}
		}
	})
}

// TestWhyAbout: what a decision touches is found by the names that people have of it.
func TestWhyAbout(t *testing.T) {
	lend := Move{Action: Lend, Slice: "g0/s3", Gang: []string{"g0/s4"}, Job: "job_01hzy7", Model: "chat"}
	cut := Move{Action: Reshape, GPU: 0, Job: "job_01hzy7"}
	for _, c := range []struct {
		about     string
		lend, cut bool
	}{
		{"g0/s3", true, true}, // the slice goes when its GPU is cut
		{"g0/s4", true, true},
		{"g0", true, true},
		{"g1", false, false},
		{"g1/s3", false, false},
		{"chat", true, false},
		{"job_01hzy7", true, true},
		{"job_01hz", true, true},
		{"job_01h", false, false}, // too short
		{"job_01hx", false, false},
		{"hzy7", false, false},
		{"cha", false, false},
	} {
		if got := lend.touches(c.about); got != c.lend {
			t.Errorf("%s: the loan is %v, want %v", c.about, got, c.lend)
		}
		if got := cut.touches(c.about); got != c.cut {
			t.Errorf("%s: the reshape is %v, want %v", c.about, got, c.cut)
		}
	}
}

func TestStats(t *testing.T) {
	var s Stats
	if f, l := s.horizons(5*time.Second, 35*time.Second); f != 5*time.Second || l != 35*time.Second {
		t.Errorf("horizons %v %v before anything was measured", f, l)
	}
	for i := range 300 {
		s.reclaimed(Outcome{Took: time.Duration(i) * time.Millisecond}, time.Second, true)
	}
	for range 5 {
		s.reclaimed(Outcome{Took: 8 * time.Second}, 9*time.Second, false)
	}
	s.reclaimed(Outcome{Took: time.Hour, Err: errors.New("failed")}, time.Hour, false)
	if s.Reclaims != 305 || s.Bound != 9*time.Second || len(s.Fast) != 256 || len(s.Slow) != 5 {
		t.Errorf("%d reclaims, bound %v, %d fast, %d slow", s.Reclaims, s.Bound, len(s.Fast), len(s.Slow))
	}
	// The newest 256 are 44 ms … 299 ms; their 99th percentile is the 254th.
	if f, l := s.horizons(5*time.Second, 35*time.Second); f != 297*time.Millisecond || l != 8*time.Second {
		t.Errorf("horizons %v %v, want what was measured", f, l)
	}
	if p := s.P99(); p != 8*time.Second {
		t.Errorf("p99 of all %v", p)
	}
}
