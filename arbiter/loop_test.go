package arbiter

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"aloft/gpu"
)

// pass lets time go by in the bubble, where it costs nothing, until nobody has
// anything left to do at that moment.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// bubble runs a scripted case.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

func equal(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %q\nwant %q", what, got, want)
	}
}

func trainer(id string) Job {
	j := job(id, "train")
	j.Grace = 5 * time.Second
	return j
}

// TestLoopLendAndReclaim: the whole idea. Calm: a replica's slice is lent. The
// load rises: it comes back within the bound that was promised.
func TestLoopLendAndReclaim(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, 2, chat("m", 0.5, 1, 2))
		w.ready("m", "s0", "s1")
		w.lost = 300 * time.Millisecond
		r := begin(w, nil)
		defer r.end()
		w.submit(trainer("t"))
		pass(10 * time.Second) // 0.5 s: look, 2 s: plan, 1 s to rest, 1 s to start
		equal(t, "decided", r.did(""), []string{"lend s0 m/t surplus"})
		equal(t, "the job has", w.has("t"), []string{"s0"})
		if v := r.View(); v.Stats.Loans != 1 || v.Snapshot.Slices[0].Phase != JobRuns || v.Snapshot.Slices[0].Job != "t" {
			t.Errorf("loans %d, slice %+v", v.Stats.Loans, v.Snapshot.Slices[0])
		}
		w.load("m", 1.5)
		raised := time.Now()
		for w.phase("m", Ready) < 2 {
			pass(100 * time.Millisecond)
		}
		// Half a second to see it, 2 s for the job to leave, 2 s to wake.
		if took := time.Since(raised); took > 4700*time.Millisecond {
			t.Errorf("ready after %v", took)
		}
		equal(t, "decided", r.did("")[1:], []string{"reclaim s0 m/t needs_more"})
		s := r.View().Stats
		if len(s.Slow) != 1 || s.Slow[0] != 4*time.Second || s.Bound != 41*time.Second || s.Breaches != 0 || s.Reclaims != 1 {
			t.Errorf("stats %+v, want one reclaim of 4s, promised 41s", s)
		}
		if lost := r.View().Balance; !near(lost.Share[LostWork]*lost.Total, 0.3) {
			t.Errorf("lost %v of %v, want 0.3 s", lost.Share[LostWork], lost.Total)
		}
		pass(time.Minute)
		if got := r.did(""); len(got) != 2 {
			t.Errorf("and then %q, want peace", got[2:])
		}
	})
}

// TestLoopFailedLend: the lease is forgotten, and the next plan tries again.
func TestLoopFailedLend(t *testing.T) {
	for _, op := range []string{"rest", "start job"} {
		bubble(t, func(t *testing.T) {
			w := newWorld(t, 2, chat("m", 0.5, 1, 2))
			w.ready("m", "s0", "s1")
			w.fail[op] = 1
			w.submit(trainer("t"))
			r := begin(w, nil)
			defer r.end()
			pass(20 * time.Second)
			equal(t, "failed", r.did("failed"), []string{"lend s0 m/t surplus"})
			if got := r.did("done"); len(got) != 1 || !strings.HasPrefix(got[0], "lend s") {
				t.Errorf("done %q, want one loan after a failed %s", got, op)
			}
			if has := w.has("t"); len(has) != 1 {
				t.Errorf("the job has %q", has)
			}
		})
	}
}

// TestLoopWidth: a job that waits for a slice to be drained gets no second one
// meanwhile.
func TestLoopWidth(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, 4, chat("m", 0.5, 1, 2), chat("n", 0.5, 1, 2))
		w.ready("m", "s0", "s1")
		w.ready("n", "s2", "s3")
		w.took["rest"] = 30 * time.Second
		w.submit(trainer("t"))
		r := begin(w, nil)
		defer r.end()
		pass(time.Minute)
		equal(t, "decided", r.did(""), []string{"lend s0 m/t surplus"})
	})
}

// TestLoopBrokenBound: a reclaim past its bound lowers the cap, which rises
// again, one a calm minute.
func TestLoopBrokenBound(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, 5, chat("m", 0.5, 1, 5))
		w.ready("m", "s0")
		for _, id := range []string{"a", "b", "c", "d"} {
			w.submit(trainer(id))
		}
		w.took["preempt a"] = 2 * time.Minute // it was promised 46 s
		r := begin(w, nil)
		defer r.end()
		pass(10 * time.Second)
		if n := r.View().Stats.Loans; n != 4 {
			t.Fatalf("%d loans, want 4: %q", n, r.did(""))
		}
		w.load("m", 1.5)
		pass(131 * time.Second)
		equal(t, "broken", r.did("bound_broken"), []string{"reclaim s1 m/a needs_more"})
		if v := r.View(); v.Stats.Breaches != 1 || v.Snapshot.Cap != 1 { // half of the three still lent
			t.Errorf("breaches %d, cap %d, want 1 and 1", v.Stats.Breaches, v.Snapshot.Cap)
		}
		if !strings.Contains(r.logged.String(), "reclaim bound broken") {
			t.Errorf("no incident in the log: %s", r.logged)
		}
		pass(3 * time.Minute)
		if c := r.View().Snapshot.Cap; c != 4 {
			t.Errorf("cap %d after three calm minutes, want 4", c)
		}
	})
}

// TestLoopFailedPreempt: the job is still there, so its slice stays its own; a
// promise was broken; the guard tries again.
func TestLoopFailedPreempt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, 2, chat("m", 0.5, 1, 2))
		w.ready("m", "s0")
		w.submit(trainer("t"))
		w.fail["preempt"] = 2
		r := begin(w, nil)
		defer r.end()
		pass(10 * time.Second)
		w.load("m", 1.5)
		pass(3 * time.Second) // 2 s, failed, 0.5 s later again
		equal(t, "the job still has", w.has("t"), []string{"s1"})
		if v := r.View(); v.Stats.Breaches != 1 || v.Snapshot.Cap != 1 {
			t.Errorf("breaches %d, cap %d, want 1 and 1", v.Stats.Breaches, v.Snapshot.Cap)
		}
		pass(30 * time.Second)
		if n := w.phase("m", Ready); n != 2 || len(w.has("t")) != 0 {
			t.Errorf("%d ready, job on %q", n, w.has("t"))
		}
		equal(t, "reclaims", r.did("done")[1:], []string{"reclaim s1 m/t needs_more"})
	})
}

// TestLoopFailedWake: the job has left but no replica came. The slice is free
// for the claimant, not the job's again.
func TestLoopFailedWake(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, 2, chat("m", 0.5, 1, 2))
		w.ready("m", "s0", "s1")
		w.submit(trainer("t"))
		r := begin(w, nil)
		defer r.end()
		pass(10 * time.Second)
		w.set(func() { w.fail["wake"] = 1 })
		w.load("m", 1.5)
		pass(30 * time.Second)
		equal(t, "broken", r.did("bound_broken"), []string{"reclaim s0 m/t needs_more"})
		equal(t, "and then", r.did("done")[1:], []string{"start s0 m needs_more"})
		if n := w.phase("m", Ready); n != 2 {
			t.Errorf("%d ready, want 2", n)
		}
	})
}

// TestLoopFailedStart: a replica that cannot start is tried again by the guard,
// not in a hot loop.
func TestLoopFailedStart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, 1, chat("m", 0, 1, 1))
		w.took["start"], w.fail["start"] = 0, 1_000_000
		r := begin(w, nil)
		defer r.end()
		pass(10 * time.Second)
		if n := len(r.did("failed")); n < 10 || n > 21 {
			t.Errorf("%d attempts in 10 s, want one each half second", n)
		}
	})
}

// TestLoopJobEnds: a job that ends by itself frees its lease; the slice serves
// until the next one wants it.
func TestLoopJobEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, 2, chat("m", 0.5, 1, 2))
		w.ready("m", "s0", "s1")
		w.submit(trainer("t"))
		r := begin(w, nil)
		defer r.end()
		pass(10 * time.Second)
		w.finish("t")
		pass(5 * time.Second)
		if s := r.View().Snapshot.Slices[0]; s.Lent() || s.Phase != Ready {
			t.Errorf("%+v, want the sleeper woken, since no job waits", s)
		}
		if got := r.did(""); got[len(got)-1] != "wake s0 m warm_pool" {
			t.Errorf("%q, want the sleeper woken", got)
		}
		w.submit(job("b", "batch"))
		pass(15 * time.Second)
		if n := len(w.has("b")); n != 1 {
			t.Errorf("the next job has %d slices, want 1", n)
		}
		w.load("m", 1.5)
		pass(5 * time.Second)
		equal(t, "after the rise the job has", w.has("b"), nil)
	})
}

// TestLoopJobEndsWhileItLeaves: the slice goes on to its claimant.
func TestLoopJobEndsWhileItLeaves(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, 2, chat("m", 0.5, 1, 2))
		w.ready("m", "s0", "s1")
		w.submit(trainer("t"))
		r := begin(w, nil)
		defer r.end()
		pass(10 * time.Second)
		w.load("m", 1.5)
		pass(time.Second)
		w.finish("t")
		pass(10 * time.Second)
		equal(t, "done", r.did("done"), []string{"lend s0 m/t surplus", "reclaim s0 m/t needs_more"})
		if w.phase("m", Ready) != 2 {
			t.Error("the replica did not come back")
		}
	})
}

// TestLoopAdopts: a job that holds a slice without a lease (a crash, a move that
// failed half-way) is given one with a bound, so that nobody else gets the slice.
func TestLoopAdopts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, 2, chat("m", 1.5, 1, 2))
		w.ready("m", "s0")
		j := trainer("t")
		j.Slices, j.Running = []string{"s1"}, true
		w.submit(j)
		r := begin(w, nil)
		defer r.end()
		pass(20 * time.Second)
		equal(t, "done", r.did("done"), []string{"reclaim s1 m/t needs_more"})
		if b := r.View().Stats.Bound; b != 41*time.Second {
			t.Errorf("bound %v, want 41s", b)
		}
	})
}

// TestLoopClaimant: freed capacity goes to its claimant. Two victims with
// unequal drains are stopped once each, and neither gets the other's slice
// (Kueue #13662). Nothing but the reservation prevents it here: no hold time.
func TestLoopClaimant(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, 3, chat("m", 0.5, 1, 3))
		w.ready("m", "s0", "s1", "s2")
		slow := trainer("slow")
		slow.Grace = 30 * time.Second
		w.submit(job("quick", "batch"))
		w.submit(slow)
		w.took["preempt quick"], w.took["preempt slow"] = 100*time.Millisecond, 25*time.Second
		r := begin(w, nil)
		defer r.end()
		pass(20 * time.Second)
		if n := r.View().Stats.Loans; n != 2 {
			t.Fatalf("%d loans, want 2", n)
		}
		w.load("m", 2.5)
		pass(5 * time.Minute)
		s := r.View().Stats
		if s.Reclaims != 2 || s.Loans != 2 || s.Breaches != 0 {
			t.Errorf("%+v, want two loans, two reclaims: %q", s, r.did(""))
		}
		if w.phase("m", Ready) != 3 {
			t.Errorf("%d ready, want 3", w.phase("m", Ready))
		}
	})
}

// TestLoopCalm: constant load, jobs waiting: what is decided early stays.
func TestLoopCalm(t *testing.T) {
	for _, c := range []struct {
		name         string
		level        float64
		ready, loans int
	}{
		{"two at 0.7 (Dynamo #9294)", 1.4, 2, 0},
		{"three at 0.47", 1.4, 3, 1},
		{"at a whole number", 2.0, 3, 1},
		{"idle", 0, 3, 2},
	} {
		bubble(t, func(t *testing.T) {
			w := newWorld(t, c.ready, chat("m", c.level, 1, 3))
			for _, s := range w.slices {
				w.ready("m", s.ID)
			}
			for _, id := range []string{"a", "b", "c"} {
				w.submit(trainer(id))
			}
			r := begin(w, func(o *Options) { o.Core.Policy.Hold = 5 * time.Second })
			defer r.end()
			pass(10 * time.Minute)
			if s := r.View().Stats; s.Loans != c.loans || s.Reclaims != 0 || len(r.did("")) != c.loans {
				t.Errorf("%s: %+v, want %d loans and no more: %q", c.name, s, c.loans, r.did(""))
			}
		})
	}
}

// TestLoopSlowStart: replicas that load for minutes are there already (kserve #1247).
func TestLoopSlowStart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, 8, chat("m", 2.5, 1, 8))
		w.took["start"] = 4 * time.Minute
		r := begin(w, func(o *Options) { o.Core.Policy.Spare = 1 })
		w.submit(Job{ID: "b", Kind: "batch", Needs: g3, MaxWidth: 1}) // it waits for good: no warm pool
		defer r.end()
		pass(20 * time.Minute)
		equal(t, "decided", r.did(""), []string{"start s0 m below_min", "start s1 m needs_more", "start s2 m needs_more"})
	})
}

// TestLoopAfterReclaim: no lending for a while after a reclaim, then again.
func TestLoopAfterReclaim(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, 2, chat("m", 0.5, 1, 2))
		w.ready("m", "s0", "s1")
		w.submit(trainer("t"))
		r := begin(w, func(o *Options) { o.Core.Policy.AfterReclaim, o.Core.Policy.Hold = time.Minute, 10*time.Second })
		defer r.end()
		pass(20 * time.Second)
		w.load("m", 1.5)
		pass(10 * time.Second)
		w.load("m", 0.5)
		reclaimed := time.Now()
		pass(45 * time.Second)
		if n := r.View().Stats.Loans; n != 1 {
			t.Errorf("%d loans 45 s after the reclaim, want 1", n)
		}
		for r.View().Stats.Loans < 2 && time.Since(reclaimed) < 5*time.Minute {
			pass(time.Second)
		}
		if took := time.Since(reclaimed); took > 70*time.Second {
			t.Errorf("lent again after %v", took)
		}
	})
}

// TestLoopLateOutcome: an outcome of an earlier lease changes nothing.
func TestLoopLateOutcome(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, 1, chat("m", 0, 1, 1))
		r := begin(w, nil)
		r.end()
		held := Lease{Gen: 7, Job: "new", Bound: time.Minute}
		r.core.leases[0] = held
		before := len(r.Why(Query{}))
		r.settle(Outcome{Move: Move{Action: Lend, Slice: "s0", Job: "old"}, Gen: 5, Lost: time.Hour})
		if l := r.core.leases[0]; l != held {
			t.Errorf("lease %+v was changed", l)
		}
		if len(r.Why(Query{})) != before || r.View().Stats.Loans != 0 {
			t.Error("a late outcome was recorded")
		}
	})
}

// TestLoopShutdown: a move under way is finished first.
func TestLoopShutdown(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, 1, chat("m", 0, 1, 1))
		w.took["start"] = 20 * time.Second
		r := begin(w, nil)
		pass(5 * time.Second)
		stopped := time.Now()
		r.end()
		if took := time.Since(stopped); took != 14900*time.Millisecond {
			t.Errorf("stopped after %v, want 14.9s: the rest of the start", took)
		}
		equal(t, "done", r.did("done"), []string{"start s0 m below_min"})
		if l := r.core.leases[0]; l.Moving {
			t.Errorf("lease %+v still moves", l)
		}
	})
}

// TestLoopMoveTimeout: a move that hangs is given up.
func TestLoopMoveTimeout(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, 1, chat("m", 0, 1, 1))
		w.took["start"] = time.Hour
		r := begin(w, func(o *Options) { o.MoveTimeout = time.Minute })
		pass(61 * time.Second)
		rec := r.Why(Query{Limit: 5})
		i := slices.IndexFunc(rec, func(r Record) bool { return r.Outcome == "failed" })
		if i < 0 || rec[i].Took != time.Minute || !strings.Contains(rec[i].Error, "deadline") {
			t.Errorf("%v, want a move given up after 1m0s", rec)
		}
		r.end()
	})
}

// TestLoopSleeperBelow: where two replicas share a slice, the one that is awake
// is what the slice is doing.
func TestLoopSleeperBelow(t *testing.T) {
	for _, first := range []bool{true, false} {
		bubble(t, func(t *testing.T) {
			w := newWorld(t, 1, chat("m", 1, 1, 1), chat("n", 0, 0, 1))
			w.ready("m", "s0")
			w.ready("n", "s0")
			w.replicas[1].Phase = Asleep
			if !first {
				slices.Reverse(w.replicas)
			}
			r := begin(w, nil)
			defer r.end()
			pass(5 * time.Second)
			if s := r.View().Snapshot.Slices[0]; s.Phase != Ready || s.Model != "m" || len(r.did("")) > 0 {
				t.Errorf("%+v, decided %q", s, r.did(""))
			}
		})
	}
}

// TestLoopBlind: while the inventory cannot be read nothing is decided; then it goes on.
func TestLoopBlind(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, 1, chat("m", 0, 1, 1))
		w.blind = true
		r := begin(w, nil)
		defer r.end()
		pass(10 * time.Second)
		equal(t, "decided blind", r.did(""), nil)
		w.set(func() { w.blind = false })
		pass(time.Second)
		equal(t, "decided", r.did(""), []string{"start s0 m below_min"})
	})
}

// TestLoopUnhealthy: a replica on a sick device is replaced elsewhere.
func TestLoopUnhealthy(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, 2, chat("m", 0.5, 1, 2))
		w.ready("m", "s0")
		w.submit(Job{ID: "b", Kind: "batch", Needs: g3, MaxWidth: 1}) // it waits for good: no warm pool
		r := begin(w, nil)
		defer r.end()
		pass(5 * time.Second)
		w.set(func() { w.sick["s0"] = true })
		pass(15 * time.Second)
		equal(t, "decided", r.did(""), []string{"start s1 m below_min"})
		if s := r.View().Snapshot.Slices[0]; s.Phase != Unhealthy {
			t.Errorf("%+v", s)
		}
	})
}

// TestLoopObserve: everything is decided and noted once, nothing is done.
func TestLoopObserve(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, 2, chat("m", 0.5, 1, 2))
		w.ready("m", "s0", "s1")
		w.submit(trainer("t"))
		r := begin(w, func(o *Options) { o.Core.Policy.Mode = ModeObserve })
		defer r.end()
		pass(9 * time.Second)
		equal(t, "observed", r.did("observed"), []string{"lend s0 m/t surplus"})
		if len(r.did("")) != 0 || len(w.has("t")) != 0 || w.phase("m", Ready) != 2 {
			t.Error("something was moved")
		}
	})
}

// TestLoopKick: a look need not wait for the guard.
func TestLoopKick(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, 1, chat("m", 0, 1, 1))
		r := begin(w, func(o *Options) { o.Core.Guard, o.Core.Plan = time.Hour, time.Hour })
		r.Kick()
		r.Kick() // never blocks
		pass(time.Millisecond)
		equal(t, "decided", r.did(""), []string{"start s0 m below_min"})
		r.end()
	})
}

// TestLoopJournal: every decision and outcome is one line of JSON.
func TestLoopJournal(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, 2, chat("m", 0.5, 1, 2))
		w.ready("m", "s0", "s1")
		w.submit(trainer("t"))
		var journal bytes.Buffer
		r := begin(w, func(o *Options) { o.Journal = &journal })
		pass(10 * time.Second)
		r.end()
		all := r.Why(Query{})
		lines := bytes.Split(bytes.TrimSpace(journal.Bytes()), []byte("\n"))
		if len(lines) != len(all) || len(lines) < 2 {
			t.Fatalf("%d lines of %d records", len(lines), len(all))
		}
		for i, line := range lines {
			var rec Record
			if err := json.Unmarshal(line, &rec); err != nil || rec.String() != all[i].String() {
				t.Errorf("line %d reads %q, want %q (%v)", i, rec, all[i], err)
			}
		}
		if len(r.records) != len(all) {
			t.Errorf("OnRecord heard of %d of %d", len(r.records), len(all))
		}
	})
}

func TestCheck(t *testing.T) {
	at := func(id string, gpuIndex, start int, shape gpu.Shape) gpu.Slice {
		return gpu.Slice{ID: id, GPU: gpuIndex, Start: start, Shape: shape}
	}
	good := []gpu.Slice{at("a", 0, 0, g2), at("b", 0, 2, g2), at("c", 1, 0, g3)}
	for _, c := range []struct {
		name   string
		slices []gpu.Slice
		lease  Lease // of a
		want   int
	}{
		{"legal", good, Lease{Gen: 1, Job: "j", Bound: 1}, 0},
		{"overlap", []gpu.Slice{at("a", 0, 0, g2), at("b", 0, 1, g2)}, Lease{}, 1},
		{"twice", []gpu.Slice{at("a", 0, 0, g2), at("a", 1, 0, g2)}, Lease{}, 1},
		{"no bound", good, Lease{Gen: 1, Job: "j"}, 1},
		{"gone", good[1:], Lease{Gen: 1, Job: "j", Bound: 1}, 1},
	} {
		core := testCore(t, nil)
		o := Observation{Now: noon, Devices: []gpu.Device{{Slices: good}}, Jobs: []Job{{ID: "j", Slices: []string{"a"}}}}
		core.Look(o)
		core.leases[0] = c.lease
		if c.lease.Job == "" {
			o.Jobs = nil
		}
		o.Devices[0].Slices = c.slices
		core.Look(o)
		if n := core.Stats().Violations; n != c.want {
			t.Errorf("%s: %d violations, want %d", c.name, n, c.want)
		}
	}
}

func TestOptionsValidate(t *testing.T) {
	w := newWorld(t, 1)
	good := Options{Core: coreOptions(), Serving: w, Work: w, Inventory: w, MoveTimeout: 1}
	for name, spoil := range map[string]func(*Options){
		"nothing": nil, "policy": func(o *Options) { o.Core.Policy.Mode = "?" }, "serving": func(o *Options) { o.Serving = nil },
		"work": func(o *Options) { o.Work = nil }, "inventory": func(o *Options) { o.Inventory = nil },
		"guard": func(o *Options) { o.Core.Guard = 0 }, "plan": func(o *Options) { o.Core.Plan = 0 }, "fast": func(o *Options) { o.Core.FastHorizon = 0 },
		"slow": func(o *Options) { o.Core.SlowHorizon = 0 }, "quantile": func(o *Options) { o.Core.RiseQuantile = 1.1 }, "timeout": func(o *Options) { o.MoveTimeout = 0 },
		"geometry": func(o *Options) { o.Core.Geometry = 1 },
	} {
		o := good
		if spoil != nil {
			spoil(&o)
		}
		if err := o.Validate(); (err == nil) != (spoil == nil) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
