package arbiter

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"aloft/gpu"
)

// seconds returns the accounts that hold time.
func seconds(l *Ledger) map[Account]float64 {
	b := l.Balance()
	out := map[Account]float64{}
	for a, share := range b.Share {
		if s := share * b.Total; s > 1e-9 {
			out[a] = float64(int(s*1e6+0.5)) / 1e6
		}
	}
	return out
}

func TestLedgerAccounts(t *testing.T) {
	waits, large, sated := []Job{job("b", "batch")}, []Job{{ID: "t", Kind: "train", Needs: g3, MaxWidth: 1}}, []Job{holding(job("b", "batch"))}
	for _, c := range []struct {
		name  string
		slice Slice
		jobs  []Job
		want  Account
	}{
		{"free, nothing waits", on("s", g1, Free, ""), nil, FreeEmpty},
		{"free, the only job has all it wants", on("s", g1, Free, ""), sated, FreeEmpty},
		{"free, a job waits that would fit", on("s", g1, Free, ""), waits, Held},
		{"free, a job waits that does not fit", on("s", g1, Free, ""), large, Stranded},
		{"free, one fits and one does not", on("s", g1, Free, ""), append(large, waits...), Held},
		{"asleep, nothing waits", on("s", g1, Asleep, "m"), nil, WarmReserve},
		{"asleep, a job waits that would fit", on("s", g1, Asleep, "m"), waits, Held},
		{"asleep, a job waits that does not fit", on("s", g1, Asleep, "m"), large, Stranded},
		{"ready and idle", on("s", g1, Ready, "m"), waits, WarmReserve},
		{"ready, its model is gone", on("s", g1, Ready, "gone"), waits, WarmReserve},
		{"loading", on("s", g1, Loading, "m"), waits, LoadWake},
		{"draining", on("s", g1, Draining, "m"), waits, Drain},
		{"a job starts", on("s", g1, JobStart, ""), waits, JobStarting},
		{"a job runs", on("s", g1, JobRuns, ""), waits, JobUseful},
		{"a job leaves", on("s", g1, Checkpoint, ""), waits, Checkpointing},
		{"reshaping", on("s", g1, Reshaping, ""), waits, ReshapeTime},
		{"unhealthy", on("s", g1, Unhealthy, ""), waits, Broken},
	} {
		t.Run(c.name, func(t *testing.T) {
			var l Ledger
			for i := range 3 { // the first look only starts the clock
				l.Advance(Snapshot{Now: noon.Add(time.Duration(i) * time.Second), Slices: []Slice{c.slice}, Jobs: c.jobs, Models: []Model{chat("m", 0, 0, 1)}}, gaps{})
			}
			if got := seconds(&l); len(got) != 1 || got[c.want] != 2 {
				t.Errorf("%v, want 2 s of %s", got, c.want)
			}
		})
	}
}

// TestLedgerCredits: requests are credited when they end, so a tick may bring
// more than it had ready time; the rest waits for the next ones.
func TestLedgerCredits(t *testing.T) {
	var l Ledger
	m := chat("m", 0, 0, 2)
	look := func(second int, useful, late, rows time.Duration, ready int) {
		m.Useful, m.Late, m.Rows = useful, late, rows
		s := Snapshot{Now: noon.Add(time.Duration(second) * time.Second), Models: []Model{m}}
		for i := range ready {
			s.Slices = append(s.Slices, on(fmt.Sprint(i), g1, Ready, "m"))
		}
		l.Advance(s, gaps{})
	}
	want := func(when string, w map[Account]float64) {
		t.Helper()
		if got := seconds(&l); fmt.Sprint(got) != fmt.Sprint(w) {
			t.Errorf("%s: %v, want %v", when, got, w)
		}
	}
	ms := time.Millisecond
	look(0, 0, 0, 0, 1)
	look(1, 600*ms, 100*ms, 0, 1)
	want("1 s, 0.7 used", map[Account]float64{ServingUseful: 0.6, ServingLate: 0.1, WarmReserve: 0.3})
	look(2, 2100*ms, 100*ms, 200*ms, 1) // 1.5 + 0.2 more than this second has
	want("2 s, full", map[Account]float64{ServingUseful: 1.6, ServingLate: 0.1, WarmReserve: 0.3})
	look(3, 2100*ms, 100*ms, 200*ms, 1) // 0.5 and 0.2 are carried over
	want("3 s, carried", map[Account]float64{ServingUseful: 2.1, ServingLate: 0.1, JobUseful: 0.2, WarmReserve: 0.6})
	look(4, 0, 0, 0, 1) // a counter that starts again takes nothing back
	want("4 s, counter reset", map[Account]float64{ServingUseful: 2.1, ServingLate: 0.1, JobUseful: 0.2, WarmReserve: 1.6})
	look(5, 300*ms, 0, 0, 0) // nothing ready: credit waits
	want("5 s, nothing ready", map[Account]float64{ServingUseful: 2.1, ServingLate: 0.1, JobUseful: 0.2, WarmReserve: 1.6})
	look(6, 300*ms, 0, 0, 2)
	want("6 s, two ready", map[Account]float64{ServingUseful: 2.4, ServingLate: 0.1, JobUseful: 0.2, WarmReserve: 3.3})
	if b := l.Balance(); !b.Sums() || b.Total != 6 || !near(b.Aloft, 2.6/6) {
		t.Errorf("balance %+v, want 6 s, aloft 2.6 of them", b)
	}
}

func TestLedgerLose(t *testing.T) {
	var l Ledger
	s := Snapshot{Now: noon, Slices: []Slice{on("s", g1, JobRuns, "")}}
	l.Lose(time.Second, 1) // nothing booked yet: nothing to lose
	l.Advance(s, gaps{})
	s.Now = s.Now.Add(10 * time.Second)
	l.Advance(s, gaps{})
	l.Lose(3*time.Second, 1)
	l.Lose(-time.Hour, 1)
	if got := seconds(&l); got[JobUseful] != 7 || got[LostWork] != 3 {
		t.Errorf("%v, want 7 s useful and 3 lost", got)
	}
	l.Lose(time.Hour, 1) // no more than there was
	if got := seconds(&l); got[JobUseful] != 0 || got[LostWork] != 10 {
		t.Errorf("%v, want all 10 s lost", got)
	}
	if !l.Balance().Sums() {
		t.Error("does not sum up")
	}
}

func TestLedgerClock(t *testing.T) {
	var l Ledger
	if b := l.Balance(); !b.Sums() || b.Total != 0 || b.Aloft != 0 {
		t.Errorf("an empty ledger says %+v", b)
	}
	s := Snapshot{Now: noon, Slices: []Slice{on("s", g1, Free, "")}}
	for _, now := range []time.Duration{0, 5 * time.Second, 5 * time.Second, 3 * time.Second} { // a clock that stands, then goes back
		s.Now = noon.Add(now)
		l.Advance(s, gaps{})
	}
	if b := l.Balance(); b.Total != 5 || !b.Sums() {
		t.Errorf("balance %+v, want 5 s", b)
	}
}

// TestLedgerSums: whatever happens, the accounts sum to all of the time.
func TestLedgerSums(t *testing.T) {
	phases := []Phase{Free, Loading, Ready, Draining, Asleep, JobStart, JobRuns, Checkpoint, Reshaping, Unhealthy}
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var l Ledger
		now, total := noon, 0.0
		models := []Model{chat("m0", 0, 0, 9), chat("m1", 0, 0, 9)}
		for step := range 100 {
			dt := time.Duration(rng.IntN(1500)) * time.Millisecond
			now = now.Add(dt)
			s := Snapshot{Now: now, Models: models}
			for i := range 1 + rng.IntN(8) {
				s.Slices = append(s.Slices, on(fmt.Sprint(i), g1, phases[rng.IntN(len(phases))], fmt.Sprintf("m%d", rng.IntN(3))))
			}
			if rng.IntN(2) == 0 {
				s.Jobs = append(s.Jobs, Job{ID: "j", Needs: []gpu.Shape{g1, g3}[rng.IntN(2)], MaxWidth: 1})
			}
			for i := range models {
				models[i].Useful += time.Duration(rng.IntN(2000)) * time.Millisecond
				models[i].Late += time.Duration(rng.IntN(300)) * time.Millisecond
				models[i].Rows += time.Duration(rng.IntN(300)) * time.Millisecond
			}
			l.Advance(s, gaps{})
			l.Lose(time.Duration(rng.IntN(500))*time.Millisecond, 1)
			if step > 0 {
				total += dt.Seconds() * float64(len(s.Slices))
			}
			b := l.Balance()
			if !b.Sums() || !near(b.Total, total) && max(b.Total/total, total/b.Total) > 1.000001 {
				t.Fatalf("seed %d, step %d: %+v, want %.3f s in all", seed, step, b, total)
			}
			for a, share := range b.Share {
				if share < 0 {
					t.Fatalf("seed %d, step %d: %s is %v", seed, step, a, share)
				}
			}
		}
	}
	if (Balance{Total: 1, Share: map[Account]float64{FreeEmpty: 0.99}}).Sums() {
		t.Error("99 % pass for all")
	}
}
