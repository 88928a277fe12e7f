package arbiter

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"aloft/gpu"
)

var (
	g1 = gpu.Shape{Profile: "1g.10gb", ComputeSlices: 1, MemorySlices: 1, Bytes: 10 << 30}
	g2 = gpu.Shape{Profile: "2g.20gb", ComputeSlices: 2, MemorySlices: 2, Bytes: 20 << 30}
	g3 = gpu.Shape{Profile: "3g.40gb", ComputeSlices: 3, MemorySlices: 4, Bytes: 40 << 30}

	noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
)

// testPolicy keeps no spare and waits for nothing, so that each test adds what it is about.
func testPolicy() Policy {
	return Policy{Mode: ModeLend, LendAbove: 0.3, ReclaimBelow: 0.1, MinSamples: 20, Rho: 0.8, MaxEta: 0.8,
		Budget: Budget{Detect: time.Second, Kill: 5 * time.Second, Back: 30 * time.Second}}
}

// chat is a model whose level is exactly the given one: it has 20 slots, so one
// replica's worth is 19 sequences.
func chat(name string, level float64, least, most int) Model {
	return Model{Name: name, Needs: g1, Min: least, Max: most, Slots: 20, InFlight: 19 * level,
		Target: time.Second, P99: 100 * time.Millisecond, Samples: 100, Learned: Learned{SurplusFrom: noon.Add(-time.Hour)}}
}

func needing(m Model, s gpu.Shape) Model { m.Needs = s; return m }

func on(id string, shape gpu.Shape, phase Phase, model string) Slice {
	return Slice{Slice: gpu.Slice{ID: id, Shape: shape}, Phase: phase, Model: model, Since: noon.Add(-time.Minute)}
}

func lentTo(job string, s Slice) Slice { s.Job = job; return s }
func moving(to string, s Slice) Slice  { s.Moving, s.To = true, to; return s }

func job(id, kind string) Job {
	return Job{ID: id, Kind: kind, Needs: g1, MaxWidth: 1, Created: noon.Add(-time.Hour)}
}

// holding is a job that has all the slices that it wants.
func holding(j Job) Job { j.Have = j.MaxWidth; return j }

func said(moves []Move) []string {
	var out []string
	for _, m := range moves {
		out = append(out, fmt.Sprintf("%s %s %s %s", m.Action, m.Slice, m.Model+m.Job, m.Reason))
		if m.Model != "" && m.Job != "" {
			out[len(out)-1] = fmt.Sprintf("%s %s %s/%s %s", m.Action, m.Slice, m.Model, m.Job, m.Reason)
		}
	}
	return out
}

type decideCase struct {
	name   string
	policy func(*Policy)
	models []Model
	slices []Slice
	jobs   []Job
	guard  bool // not a plan look
	cap    int
	want   []string
	holds  []string
}

func (c decideCase) run(t *testing.T) Plan {
	t.Helper()
	p := testPolicy()
	if c.policy != nil {
		c.policy(&p)
	}
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	if c.cap == 0 {
		c.cap = noCap
	}
	plan := p.Decide(Snapshot{Now: noon, Slices: c.slices, Models: c.models, Jobs: c.jobs, Plan: !c.guard, Cap: c.cap})
	if got := said(plan.Moves); !slices.Equal(got, c.want) {
		t.Errorf("moves %q\nwant  %q", got, c.want)
	}
	if got := said(plan.Holds); !slices.Equal(got, c.holds) {
		t.Errorf("holds %q\nwant  %q", got, c.holds)
	}
	return plan
}

func TestDecideSupply(t *testing.T) {
	train := holding(Job{ID: "t1", Kind: "train", Needs: g1, MaxWidth: 1, Grace: 5 * time.Second, Unsaved: 10 * time.Second, Restart: time.Second}) // costs 6 s
	eval := holding(Job{ID: "e1", Kind: "evaluate", Needs: g1, MaxWidth: 1, Grace: 5 * time.Second, Unsaved: time.Second})                          // 1 s
	batch := holding(job("b1", "batch"))                                                                                                            // nothing
	for _, c := range []decideCase{
		{name: "below min: the smallest slice that fits", models: []Model{chat("m", 0, 1, 1)},
			slices: []Slice{on("s0", g3, Free, ""), on("s1", g1, Free, ""), on("s2", g2, Free, "")},
			want:   []string{"start s1 m below_min"}},
		{name: "and no smaller than it needs", models: []Model{needing(chat("m", 0, 1, 1), g2)},
			slices: []Slice{on("s0", g3, Free, ""), on("s1", g1, Free, ""), on("s2", g2, Free, "")},
			want:   []string{"start s2 m below_min"}},
		{name: "nothing fits", models: []Model{needing(chat("m", 0, 1, 1), g3)},
			slices: []Slice{on("s0", g2, Free, ""), on("s1", g1, Free, "")}},
		{name: "enough", models: []Model{chat("m", 1.0, 1, 3)}, jobs: []Job{batch},
			slices: []Slice{on("s0", g1, Ready, "m"), lentTo("b1", on("s1", g1, JobRuns, ""))}},
		{name: "wake, then start, then reclaim", models: []Model{chat("m", 3.2, 1, 4)}, jobs: []Job{batch},
			slices: []Slice{on("s0", g1, Ready, "m"), lentTo("b1", on("s1", g1, JobRuns, "")), on("s2", g1, Free, ""), on("s3", g1, Asleep, "m")},
			want:   []string{"wake s3 m needs_more", "start s2 m needs_more", "reclaim s1 m/b1 needs_more"}},
		{name: "beside another's sleeper rather than reclaim", models: []Model{chat("m", 2, 1, 4), chat("n", 0, 0, 4)}, jobs: []Job{batch},
			slices: []Slice{on("s0", g1, Ready, "m"), lentTo("b1", on("s1", g1, JobRuns, "")), on("s2", g1, Asleep, "n")},
			want:   []string{"start s2 m needs_more"}},
		{name: "never above max", models: []Model{chat("m", 9, 1, 2)},
			slices: []Slice{on("s0", g1, Ready, "m"), on("s1", g1, Free, ""), on("s2", g1, Free, "")},
			want:   []string{"start s1 m needs_more"}},
		{name: "the learned rise, at level 4 twice as large", models: []Model{func() Model { m := chat("m", 4, 1, 9); m.RiseFast = 1; return m }()},
			slices: []Slice{on("s0", g1, Ready, "m"), on("s1", g1, Ready, "m"), on("s2", g1, Ready, "m"), on("s3", g1, Ready, "m"),
				on("s4", g1, Free, ""), on("s5", g1, Free, ""), on("s6", g1, Free, "")},
			want: []string{"start s4 m rise_ahead", "start s5 m rise_ahead"}},
		{name: "loading, waking and on its way count as there (kserve #1247)", models: []Model{chat("m", 4, 1, 9)},
			slices: []Slice{on("s0", g1, Ready, "m"), on("s1", g1, Loading, "m"), moving("m", on("s2", g1, Asleep, "m")), moving("m", on("s3", g1, Checkpoint, "")), on("s4", g1, Free, "")}},
		{name: "draining and unhealthy do not", models: []Model{chat("m", 3, 1, 9)},
			slices: []Slice{on("s0", g1, Ready, "m"), on("s1", g1, Draining, "m"), on("s2", g1, Unhealthy, "m"), on("s3", g1, Free, ""), on("s4", g1, Free, ""), on("s5", g1, Free, "")},
			want:   []string{"start s3 m needs_more", "start s4 m needs_more"}},
		{name: "one model's rise does not take what another needs to serve at all", models: []Model{chat("m", 2, 1, 9), chat("n", 0, 1, 1)},
			slices: []Slice{on("s0", g1, Ready, "m"), on("s1", g1, Free, "")},
			want:   []string{"start s1 n below_min"}},
		{name: "cheapest victim of the right shape", models: []Model{needing(chat("m", 2, 1, 9), g2)}, jobs: []Job{batch, train, eval},
			slices: []Slice{on("s0", g2, Ready, "m"), lentTo("b1", on("s1", g1, JobRuns, "")), lentTo("t1", on("s2", g2, JobRuns, "")), lentTo("e1", on("s3", g3, JobRuns, ""))},
			want:   []string{"reclaim s3 m/e1 needs_more"}},
		{name: "never a moving or unhealthy victim", models: []Model{chat("m", 2, 1, 9)}, jobs: []Job{batch, train},
			slices: []Slice{on("s0", g1, Ready, "m"), moving("b1", lentTo("b1", on("s1", g1, JobStart, ""))), lentTo("b1", on("s2", g1, Unhealthy, "")), lentTo("t1", on("s3", g1, JobRuns, ""))},
			want:   []string{"reclaim s3 m/t1 needs_more"}},
		{name: "nothing can be placed, nothing is stopped (Kueue #1309)", models: []Model{needing(chat("m", 2, 1, 9), g2)}, jobs: []Job{batch},
			slices: []Slice{on("s0", g2, Ready, "m"), lentTo("b1", on("s1", g1, JobRuns, ""))}},
		{name: "of equals the one with our sleeper", models: []Model{chat("m", 2, 1, 9)}, jobs: []Job{batch},
			slices: []Slice{on("s0", g1, Ready, "m"), lentTo("b1", on("s1", g1, JobRuns, "n")), lentTo("b1", on("s2", g1, JobRuns, "m"))},
			want:   []string{"reclaim s2 m/b1 needs_more"}},
		{name: "reclaims are not limited", models: []Model{chat("m", 3, 1, 9)}, jobs: []Job{batch, train},
			slices: []Slice{on("s0", g1, Ready, "m"), lentTo("t1", on("s1", g1, JobRuns, "m")), lentTo("b1", on("s2", g1, JobRuns, "m"))},
			want:   []string{"reclaim s2 m/b1 needs_more", "reclaim s1 m/t1 needs_more"}},
		{name: "the spare is restored", policy: func(p *Policy) { p.Spare = 1 }, jobs: []Job{batch},
			models: []Model{chat("m", 1, 1, 9), func() Model { m := chat("n", 1, 1, 9); m.RiseFast = 0.0001; return m }()},
			slices: []Slice{on("s0", g1, Ready, "m"), on("s1", g1, Ready, "n"), on("s2", g1, Ready, "n"), lentTo("b1", on("s3", g1, JobRuns, "m"))},
			want:   []string{"reclaim s3 n/b1 spare_gone"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.guard = true // supply is the guard's
			plan := c.run(t)
			for _, m := range plan.Moves {
				if m.Action == Reclaim && m.Bound <= 0 {
					t.Errorf("%v has no bound", m)
				}
			}
		})
	}
}

func TestDecideBound(t *testing.T) {
	p := testPolicy()
	j := Job{Grace: 10 * time.Second}
	// 1 s to see it, 10 s grace, 5 s to kill, 30 s back.
	if got := p.Bound(j, Model{}); got != 46*time.Second {
		t.Errorf("bound %v, want 46s", got)
	}
	// A measured 20 s counts twice.
	if got := p.Bound(j, Model{Back: 20 * time.Second}); got != 56*time.Second {
		t.Errorf("bound %v with a slow wake, want 56s", got)
	}
	// A loan is bounded by the slowest of those who may take the slice back.
	slow, large := chat("slow", 0, 0, 1), needing(chat("large", 0, 0, 1), g2)
	slow.Back, large.Back = 20*time.Second, time.Hour
	s := Snapshot{Now: noon, Plan: true, Cap: noCap, Models: []Model{chat("m", 0, 0, 1), slow, large}, Slices: []Slice{on("s", g1, Free, "")}, Jobs: []Job{job("b", "batch")}}
	for i := range s.Models {
		s.Models[i].InFlight = 0
	}
	if got := p.Decide(s).Moves; len(got) != 1 || got[0].Bound != 46*time.Second { // 1 + 0 + 5 + 2 × 20
		t.Errorf("%+v, want one loan bounded by 46s", got)
	}
}

func TestDecideLend(t *testing.T) {
	idle := func(n int) []Slice {
		var out []Slice
		for i := range n {
			out = append(out, on(fmt.Sprintf("s%d", i), g1, Free, ""))
		}
		return out
	}
	young := func(j Job) Job { j.Created = noon; return j }
	for _, c := range []decideCase{
		// An hour's waiting over the usual rest of 5, 6, 10, 60 and 240 minutes: ratios 13,
		// 11, 7, 2 and 1.25; who has just come has 1.
		{name: "who has waited longest for what is left to do", slices: idle(6),
			jobs: []Job{job("s", "session"), job("t", "train"), job("e", "evaluate"), job("q", "quantize"), young(job("b2", "batch")), job("b1", "batch")},
			want: []string{"lend s0 b1 free_slice", "lend s1 q free_slice", "lend s2 e free_slice", "lend s3 t free_slice", "lend s4 s free_slice", "lend s5 b2 free_slice"}},
		{name: "a known rest counts, not the kind", slices: idle(1),
			jobs: []Job{job("b", "batch"), func() Job { j := job("t", "train"); j.Rest = time.Minute; return j }()},
			want: []string{"lend s0 t free_slice"}},
		// Twelve minutes before its deadline, of which it needs three.
		{name: "who must start now goes first", slices: idle(1),
			jobs: []Job{job("b", "batch"), func() Job {
				j := young(job("e", "evaluate"))
				j.Deadline, j.Rest = noon.Add(12*time.Minute), 3*time.Minute
				return j
			}()},
			want: []string{"lend s0 e free_slice"}},
		{name: "priority before all", slices: idle(1),
			jobs: []Job{job("b", "batch"), {ID: "t", Kind: "train", Needs: g1, MaxWidth: 1, Priority: 1}},
			want: []string{"lend s0 t free_slice"}},
		{name: "who has least before kinds", slices: idle(1),
			jobs: []Job{{ID: "b", Kind: "batch", Needs: g1, MaxWidth: 4, Have: 1}, job("t", "train")},
			want: []string{"lend s0 t free_slice"}},
		{name: "who has all it wants gets no more", slices: idle(1), jobs: []Job{holding(job("b", "batch"))}},
		{name: "the smallest slice that fits", jobs: []Job{job("b", "batch"), {ID: "t", Kind: "train", Needs: g2, MaxWidth: 1}},
			slices: []Slice{on("s0", g3, Free, ""), on("s1", g2, Free, ""), on("s2", g1, Free, "")},
			want:   []string{"lend s1 t free_slice", "lend s2 b free_slice"}},
		{name: "nothing fits", jobs: []Job{{ID: "t", Kind: "train", Needs: g3, MaxWidth: 1}}, slices: idle(3)},
		{name: "free, then a sleeper's, then a ready one", models: []Model{chat("m", 0.5, 1, 9), chat("n", 0, 0, 9)},
			jobs:   []Job{job("b1", "batch"), job("b2", "batch"), job("b3", "batch")},
			slices: []Slice{on("s0", g1, Ready, "m"), on("s1", g1, Ready, "m"), on("s2", g1, Asleep, "n"), on("s3", g1, Free, "")},
			want:   []string{"lend s3 b1 free_slice", "lend s2 n/b2 free_slice", "lend s0 m/b3 surplus"}},
		{name: "a sleeper's slice needs no surplus of ready ones", models: []Model{func() Model { m := chat("m", 0.5, 1, 9); m.SurplusFrom = time.Time{}; return m }()},
			jobs:   []Job{job("b", "batch")},
			slices: []Slice{on("s0", g1, Ready, "m"), on("s1", g1, Asleep, "m")},
			want:   []string{"lend s1 m/b free_slice"}},
		{name: "one ready replica of each model a plan", models: []Model{chat("m", 0.5, 1, 9), chat("n", 0.5, 1, 9)},
			jobs: []Job{job("b1", "batch"), job("b2", "batch"), job("b3", "batch")},
			slices: []Slice{on("s0", g1, Ready, "m"), on("s1", g1, Ready, "m"), on("s2", g1, Ready, "m"), on("s3", g1, Ready, "m"),
				on("s4", g1, Ready, "n"), on("s5", g1, Ready, "n")},
			want: []string{"lend s0 m/b1 surplus", "lend s4 n/b2 surplus"}, holds: []string{"hold s5 n/b3 needed"}},
		{name: "and none while the last one is under way", models: []Model{chat("m", 0.5, 1, 9)}, jobs: []Job{job("b1", "batch")},
			slices: []Slice{on("s0", g1, Ready, "m"), on("s1", g1, Ready, "m"), moving("b0", lentTo("b0", on("s2", g1, Draining, "m")))}},
		{name: "two at 0.7 each are both needed (Dynamo #9294)", models: []Model{chat("m", 1.4, 1, 2)}, jobs: []Job{job("b", "batch")},
			slices: []Slice{on("s0", g1, Ready, "m"), on("s1", g1, Ready, "m")}, holds: []string{"hold s0 m/b needed"}},
		{name: "between plans nothing is lent", slices: idle(3), jobs: []Job{job("b", "batch")}, guard: true},
		{name: "unhealthy and moving slices are not lent", jobs: []Job{job("b", "batch")},
			slices: []Slice{on("s0", g1, Unhealthy, ""), moving("x", on("s1", g1, Free, "")), lentTo("o", on("s2", g1, JobRuns, ""))}},
		{name: "static: no ready replica is given up", policy: func(p *Policy) { p.Mode = ModeStatic }, models: []Model{chat("m", 0.5, 1, 2)},
			jobs:   []Job{job("b1", "batch"), job("b2", "batch")},
			slices: []Slice{on("s0", g1, Ready, "m"), on("s1", g1, Ready, "m"), on("s2", g1, Free, "")},
			want:   []string{"lend s2 b1 free_slice"}},
		{name: "observe decides the same", policy: func(p *Policy) { p.Mode = ModeObserve }, slices: idle(1), jobs: []Job{job("b", "batch")},
			want: []string{"lend s0 b free_slice"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			plan := c.run(t)
			for _, m := range plan.Moves {
				if m.Bound <= 0 || m.Why.Lent > m.Why.Lendable || m.Why.For > 24*time.Hour {
					t.Errorf("%v: bound %v, lent %d of %d lendable, for %v", m, m.Bound, m.Why.Lent, m.Why.Lendable, m.Why.For)
				}
			}
		})
	}
}

func TestDecideVetoes(t *testing.T) {
	with := func(f func(*Model)) []Model { m := chat("m", 0.5, 1, 9); f(&m); return []Model{m} }
	same := with(func(*Model) {})
	two := []Slice{on("s0", g1, Ready, "m"), on("s1", g1, Ready, "m")}
	batch, train := []Job{job("b", "batch")}, []Job{job("t", "train")}
	lend := []string{"lend s0 m/b surplus"}
	held := func(r Reason) []string { return []string{"hold s0 m/b " + string(r)} }
	for _, c := range []decideCase{
		{name: "none", models: same, slices: two, jobs: batch, want: lend},
		{name: "headroom low", models: with(func(m *Model) { m.P99 = 701 * time.Millisecond }), slices: two, jobs: batch, holds: held(LowHeadroom)},
		{name: "headroom at the mark", models: with(func(m *Model) { m.P99 = 700 * time.Millisecond }), slices: two, jobs: batch, want: lend},
		{name: "no headroom under traffic", models: with(func(m *Model) { m.Samples = 19 }), slices: two, jobs: batch, holds: held(NoHeadroom)},
		{name: "no headroom, but a law", models: with(func(m *Model) { m.Samples, m.Law = 19, Law{Quantile: 1} }), slices: two, jobs: batch, want: lend},
		{name: "a law, and hardly any headroom", models: with(func(m *Model) { m.P99, m.Law = 901*time.Millisecond, Law{Quantile: 1} }), slices: two, jobs: batch, holds: held(LowHeadroom)},
		{name: "no headroom, no traffic", models: with(func(m *Model) { m.Samples, m.InFlight = 0, 0 }), slices: two, jobs: batch, want: lend},
		{name: "no headroom, arrivals nine seconds ago", models: with(func(m *Model) { m.Samples, m.InFlight, m.Work = 0, 0, append([]float64{0.1}, steady(9, 0)...) }), slices: two, jobs: batch, holds: held(NoHeadroom)},
		{name: "no headroom, arrivals eleven seconds ago", models: with(func(m *Model) { m.Samples, m.InFlight, m.Work = 0, 0, append([]float64{0.1}, steady(10, 0)...) }), slices: two, jobs: batch, want: lend},
		{name: "another model's headroom: spares are shared", slices: two, jobs: batch, holds: held(LowHeadroom),
			models: append(with(func(*Model) {}), func() Model { n := chat("n", 0, 0, 1); n.P99 = n.Target; return n }())},
		{name: "surplus too young", policy: func(p *Policy) { p.Hold = 30 * time.Second }, slices: two, jobs: batch, holds: held(NotLongYet),
			models: with(func(m *Model) { m.SurplusFrom = noon.Add(-29 * time.Second) })},
		{name: "surplus old enough", policy: func(p *Policy) { p.Hold = 30 * time.Second }, slices: two, jobs: batch, want: lend,
			models: with(func(m *Model) { m.SurplusFrom = noon.Add(-30 * time.Second) })},
		{name: "surplus shorter than out and back costs", policy: func(p *Policy) { p.Hold = time.Second }, slices: two, jobs: batch, holds: held(NotLongYet),
			models: with(func(m *Model) { m.SurplusFrom, m.Out, m.Back = noon.Add(-9*time.Second), 4*time.Second, 6*time.Second })},
		{name: "just reclaimed", policy: func(p *Policy) { p.AfterReclaim = time.Minute }, slices: two, jobs: batch, holds: held(NotLongYet),
			models: with(func(m *Model) { m.Reclaimed = noon.Add(-59 * time.Second) })},
		{name: "reclaimed a minute ago", policy: func(p *Policy) { p.AfterReclaim = time.Minute }, slices: two, jobs: batch, want: lend,
			models: with(func(m *Model) { m.Reclaimed = noon.Add(-time.Minute) })},
		{name: "the cap after a broken bound", cap: 1, models: same, jobs: append(batch, holding(job("o", "batch"))),
			slices: append(slices.Clone(two), lentTo("o", on("s2", g1, JobRuns, ""))), holds: held(CapReached)},
		{name: "the spare", policy: func(p *Policy) { p.Spare = 1 }, models: same, slices: two, jobs: batch, holds: held(NeededSoon)},
		{name: "a spare is not wasted on the unhealthy", policy: func(p *Policy) { p.Spare = 1 }, models: same, jobs: batch, holds: held(NeededSoon),
			slices: append(slices.Clone(two), on("s2", g1, Unhealthy, ""))},
		{name: "a loan under way counts", policy: func(p *Policy) { p.Spare = 1 }, models: same, jobs: append(batch, holding(job("o", "batch"))),
			slices: []Slice{two[0], moving("o", lentTo("o", on("s1", g1, Asleep, "n"))), on("s2", g1, Free, "")}, holds: []string{"hold s2 b needed"}},
		{name: "the rise within the fast horizon", slices: append(slices.Clone(two), on("s2", g1, Ready, "m")), jobs: batch, want: lend,
			models: with(func(m *Model) { m.RiseFast, m.RiseSlow = 1, 2 })}, // 0.5 + 1 → 2 of 3 stay
		{name: "slow work has the lower line", slices: append(slices.Clone(two), on("s2", g1, Ready, "m")), jobs: train,
			models: with(func(m *Model) { m.RiseFast, m.RiseSlow = 1, 2 }), // 0.5 + 2 → all 3 stay
			holds:  []string{"hold s0 m/t needed"}},
		{name: "a slice is held once, for the head of the queue", policy: func(p *Policy) { p.Spare = 1 }, models: same, slices: two,
			jobs: []Job{job("t", "train"), job("b", "batch")}, holds: held(NeededSoon)},
	} {
		t.Run(c.name, func(t *testing.T) {
			plan := c.run(t)
			ready := 0
			for _, s := range c.slices {
				if s.Phase == Ready {
					ready++
				}
			}
			if have := plan.Needs["m"].Have; have != ready-len(c.want) {
				t.Errorf("has %d after the plan, want %d", have, ready-len(c.want))
			}
		})
	}
}

func TestDecideWarmPool(t *testing.T) {
	free := []Slice{on("s0", g1, Ready, "m"), on("s1", g2, Free, ""), on("s2", g1, Free, ""), on("s3", g1, Free, "")}
	for _, c := range []decideCase{
		{name: "no job waits: one more of each model a plan", models: []Model{chat("m", 0, 1, 3)}, slices: free,
			want: []string{"start s2 m warm_pool"}},
		{name: "not while one waits", models: []Model{chat("m", 0, 1, 3)}, slices: free, jobs: []Job{job("b", "batch")},
			want: []string{"lend s2 b free_slice"}},
		{name: "not above max", models: []Model{chat("m", 0, 1, 1)}, slices: free},
		{name: "not for a model that serves nothing", models: []Model{chat("n", 0, 0, 1)}, slices: free},
		{name: "not where a ready replica is never lent", policy: func(p *Policy) { p.Mode = ModeStatic },
			models: []Model{func() Model { m := chat("m", 0, 1, 3); m.Static = 1; return m }()}, slices: free},
		{name: "not by the guard", models: []Model{chat("m", 0, 1, 3)}, slices: free, guard: true},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t) })
	}
}

func TestDecideSettings(t *testing.T) {
	p := testPolicy()
	waits, none := []Job{job("b", "batch")}, []Job(nil)
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	for _, c := range []struct {
		name    string
		p99     time.Duration
		samples int
		jobs    []Job
		want    Setting
	}{
		// Headroom 0.65 is half-way from 0.3 to 1: half of 0.8.
		{"patience while jobs wait", ms(350), 100, waits, Setting{"m", 0.4, true}},
		{"none when nobody waits", ms(350), 100, none, Setting{"m", 0, true}},
		{"none at the mark", ms(700), 100, waits, Setting{"m", 0, true}},
		{"rows down to the lower mark", ms(899), 100, waits, Setting{"m", 0, true}},
		{"no rows below it", ms(901), 100, waits, Setting{"m", 0, false}},
		{"late already", ms(1500), 100, waits, Setting{"m", 0, false}},
		{"no headroom known: eager, rows ride", ms(0), 19, waits, Setting{"m", 0, true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := chat("m", 0, 0, 1)
			m.P99, m.Samples, m.Slots = c.p99, c.samples, 0 // merged calls
			got := p.Decide(Snapshot{Now: noon, Models: []Model{m}, Jobs: c.jobs, Cap: noCap}).Settings
			if len(got) != 1 || got[0].Rows != c.want.Rows || got[0].Model != "m" || !near(got[0].Eta, c.want.Eta) {
				t.Errorf("settings %+v, want %+v", got, c.want)
			}
		})
	}
}

// TestNoPatienceForGeneration: what is not merged gains nothing by waiting.
func TestNoPatienceForGeneration(t *testing.T) {
	m := chat("m", 0, 0, 1)
	if got := testPolicy().Decide(Snapshot{Now: noon, Models: []Model{m}, Jobs: []Job{job("b", "batch")}, Cap: noCap}).Settings[0]; got.Eta != 0 {
		t.Errorf("eta %v for a model with slots", got.Eta)
	}
}

func near(a, b float64) bool { return max(a-b, b-a) < 1e-9 }

// TestDecidePure: the same snapshot gives the same plan, whatever the order in
// which maps are walked, and is not changed by it.
func TestDecidePure(t *testing.T) {
	snapshot := func() Snapshot {
		s := Snapshot{Now: noon, Plan: true, Cap: noCap}
		for i := range 40 {
			name := fmt.Sprintf("m%d", i%8)
			id, shape := fmt.Sprintf("s%02d", i), []gpu.Shape{g1, g2, g3}[i%3]
			s.Slices = append(s.Slices, []Slice{on(id, shape, Ready, name), on(id, shape, Asleep, name), on(id, shape, Free, ""),
				lentTo(fmt.Sprintf("j%d", i), on(id, shape, JobRuns, name)), on(id, shape, Ready, name)}[i%5])
			s.Jobs = append(s.Jobs, Job{ID: fmt.Sprintf("j%d", i), Kind: []string{"batch", "train"}[i%2], Needs: g1, MaxWidth: 1 + i%2, Have: i % 2, Unsaved: time.Minute, Grace: time.Second})
		}
		for i := range 8 {
			s.Models = append(s.Models, chat(fmt.Sprintf("m%d", i), float64(i%4), 1, 6))
		}
		return s
	}
	s := snapshot()
	first := testPolicy().Decide(s)
	if len(first.Moves) < 10 {
		t.Fatalf("only %d moves: the snapshot shows nothing", len(first.Moves))
	}
	for range 100 {
		if again := testPolicy().Decide(s); !reflect.DeepEqual(first, again) {
			t.Fatalf("another plan from the same snapshot:\n%v\n%v", first, again)
		}
	}
	if !reflect.DeepEqual(s, snapshot()) {
		t.Error("Decide changed its snapshot")
	}
}

func TestPolicyValidate(t *testing.T) {
	for name, spoil := range map[string]func(*Policy){
		"mode":     func(p *Policy) { p.Mode = "" },
		"marks":    func(p *Policy) { p.LendAbove = p.ReclaimBelow },
		"rho 0":    func(p *Policy) { p.Rho = 0 },
		"rho high": func(p *Policy) { p.Rho = 1.01 },
		"spare":    func(p *Policy) { p.Spare = -1 },
		"samples":  func(p *Policy) { p.MinSamples = 0 },
		"hold":     func(p *Policy) { p.Hold = -1 },
		"after":    func(p *Policy) { p.AfterReclaim = -1 },
		"eta":      func(p *Policy) { p.MaxEta = 1.1 },
		"detect":   func(p *Policy) { p.Budget.Detect = 0 },
		"kill":     func(p *Policy) { p.Budget.Kill = 0 },
		"back":     func(p *Policy) { p.Budget.Back = 0 },
	} {
		p := testPolicy()
		spoil(&p)
		if p.Validate() == nil {
			t.Errorf("%s: a wrong policy passes", name)
		}
	}
	if err := testPolicy().Validate(); err != nil {
		t.Error(err)
	}
}

// TestMissedTarget: a p99 over its target asks for one more replica at a time,
// whatever the envelope says.
func TestMissedTarget(t *testing.T) {
	slow := chat("m", 0.5, 1, 3)
	slow.P99, slow.Samples = 2*slow.Target, 100
	p := testPolicy()
	s := Snapshot{Now: noon, Cap: noCap, Models: []Model{slow}, Jobs: []Job{job("b", "batch")},
		Slices: []Slice{on("s0", g1, Ready, "m"), lentTo("b", on("s1", g1, JobRuns, "m")), lentTo("b", on("s2", g1, JobRuns, "m"))}}
	plan := p.Decide(s)
	if len(plan.Moves) == 0 || plan.Moves[0].Action != Reclaim {
		t.Fatalf("moves %+v, want a reclaim", plan.Moves)
	}
	s.Slices[1] = moving("m", on("s1", g1, Loading, "m"))
	s.Jobs[0].Have = 1
	for _, m := range p.Decide(s).Moves {
		if m.Reason != SpareGone {
			t.Errorf("move %+v while one replica is on its way", m)
		}
	}
	slow.InFlight, slow.Work = 0, nil // nothing arrives: old latencies ask for nothing
	s.Slices[1], s.Models[0] = lentTo("b", on("s1", g1, JobRuns, "m")), slow
	if n := p.Decide(s).Needs["m"].Fast; n != 1 {
		t.Errorf("without traffic needs %d, want 1", n)
	}
}

// TestRoomMustLast: a slice that became lendable a moment ago stays, since the
// need that held it may come back; it went out and back three times in a minute
// before this rule.
func TestRoomMustLast(t *testing.T) {
	p := testPolicy()
	p.Hold = 3 * time.Second
	s := Snapshot{Now: noon, Plan: true, Cap: noCap, Models: []Model{chat("m", 0.5, 1, 2)}, Jobs: []Job{job("b", "batch")},
		Slices: []Slice{on("s0", g1, Ready, "m"), on("s1", g1, Ready, "m")}}
	for since, want := range map[time.Duration]string{2 * time.Second: "hold s1 m/b hold_time", 3 * time.Second: "lend s0 m/b surplus"} {
		s.RoomFrom = noon.Add(-since)
		plan := p.Decide(s)
		got := append(said(plan.Moves), said(plan.Holds)...)
		if len(got) != 1 || got[0][:4] != want[:4] {
			t.Errorf("room for %v: %q, want %q", since, got, want)
		}
	}
}
