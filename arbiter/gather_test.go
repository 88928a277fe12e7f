package arbiter

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"aloft/gpu"
)

var g7 = gpu.Shape{Profile: "7g.80gb", ComputeSlices: 7, MemorySlices: 8, Bytes: 80 << 30}

// node is GPUs of seven 1g slices; fill says what is on each.
func node(gpus int, fill func(g, k int, s *Slice)) Snapshot {
	s := Snapshot{Now: noon, Plan: true, Cap: noCap}
	for g := range gpus {
		s.GPUs = append(s.GPUs, GPU{Index: g, Server: g / 2, Family: "A100-80GB", Health: gpu.Health{OK: true}})
		for k := range 7 {
			sl := on(gpu.SliceID(g, k), g1, Free, "")
			sl.GPU, sl.Start = g, k
			if fill != nil {
				fill(g, k, &sl)
			}
			s.Slices = append(s.Slices, sl)
		}
	}
	return s
}

func gang(id string, gpus int) Job {
	return Job{ID: id, Kind: "train", Needs: g7, MinWidth: gpus, MaxWidth: gpus, Created: noon.Add(-time.Hour), Stopping: Stopping{Leave: 30 * time.Second}}
}

func low(id string) Job {
	j := job(id, "batch")
	j.Priority, j.MaxWidth = -1, 1<<20
	return j
}

func counted(moves []Move) map[Action]int {
	n := map[Action]int{}
	for _, m := range moves {
		n[m.Action]++
	}
	return n
}

// TestGangGathers follows a gang of two GPUs step by step: the backlog leaves the
// cheapest two of one server, they are cut anew, and both are lent in one move.
func TestGangGathers(t *testing.T) {
	p := testPolicy()
	s := node(4, func(g, k int, sl *Slice) {
		switch {
		case g == 0:
			sl.Phase, sl.Job = JobRuns, "kept" // training: stays
		case g == 1 || g == 2 && k < 3 || g == 3 && k < 2:
			sl.Phase, sl.Job = JobRuns, "low"
		}
	})
	kept := Job{ID: "kept", Kind: "train", Needs: g1, MaxWidth: 7, Have: 7, Rest: time.Hour}
	s.Jobs = []Job{kept, low("low"), gang("g", 2)}
	s.Jobs[1].MaxWidth, s.Jobs[1].Have = 12, 12
	plan := p.Decide(s)
	// Server 0 has GPU 0 with training; server 1 has 3 + 2 slices of the backlog.
	if n := counted(plan.Moves); n[Vacate] != 5 || n[Lend] != 0 || n[Reshape] != 0 {
		t.Fatalf("%q, want five slices emptied", said(plan.Moves))
	}
	if len(plan.Claims) != 1 || !slices.Equal(plan.Claims[0].GPUs, []int{2, 3}) || plan.Claims[0].Job != "g" {
		t.Fatalf("claims %+v, want GPUs 2 and 3 for g", plan.Claims)
	}
	for i := range s.Slices {
		if g := s.Slices[i].GPU; g >= 2 {
			s.Slices[i].Phase, s.Slices[i].Job = Free, ""
		}
	}
	s.Claims, s.Plan, s.Jobs[1].Have = plan.Claims, false, 7 // the guard goes on with it
	plan = p.Decide(s)
	if n := counted(plan.Moves); n[Reshape] != 2 || len(plan.Moves) != 2 || len(plan.Moves[0].Layout) != 1 || plan.Moves[0].Layout[0].Profile != "7g.80gb" {
		t.Fatalf("%+v, want GPUs 2 and 3 cut to one instance", plan.Moves)
	}
	s.Slices = slices.DeleteFunc(s.Slices, func(sl Slice) bool { return sl.GPU >= 2 })
	for g := 2; g < 4; g++ {
		sl := on(gpu.SliceID(g, 0), g7, Free, "")
		sl.GPU = g
		s.Slices = append(s.Slices, sl)
	}
	s.Claims = plan.Claims
	plan = p.Decide(s)
	if len(plan.Moves) != 1 || plan.Moves[0].Action != Lend || plan.Moves[0].Slice != "g2/s0" || !slices.Equal(plan.Moves[0].Gang, []string{"g3/s0"}) || plan.Moves[0].Bound <= 0 {
		t.Fatalf("%+v, want both GPUs lent in one move", plan.Moves)
	}
	if len(plan.Claims) != 0 {
		t.Errorf("claims %+v are kept when met", plan.Claims)
	}
}

// TestGangWaits: where a job does not give way its GPU is kept, so that nobody
// moves in who would be there for longer; others may.
func TestGangWaits(t *testing.T) {
	p := testPolicy()
	s := node(2, func(g, k int, sl *Slice) {
		if k == 0 {
			sl.Phase, sl.Job = JobRuns, "kept"
		}
	})
	for i := range s.Slices {
		if s.Slices[i].GPU == 1 {
			s.Slices[i].Job, s.Slices[i].Phase = "kept", JobRuns
		}
	}
	kept := Job{ID: "kept", Kind: "train", Needs: g1, MaxWidth: 8, Have: 8, Rest: 10 * time.Minute}
	long, short, backlog := job("long", "train"), job("short", "evaluate"), low("low")
	long.Rest, short.Rest = 11*time.Minute, 9*time.Minute
	s.Jobs = []Job{kept, gang("g", 1), long, short, backlog}
	got := said(p.Decide(s).Moves)
	// GPU 0 has one slice of a job that is over in ten minutes, GPU 1 seven. The one
	// that is over in nine may use the wait, and the backlog, which gives way.
	want := []string{"lend g0/s1 short free_slice", "lend g0/s2 low free_slice", "lend g0/s3 low free_slice",
		"lend g0/s4 low free_slice", "lend g0/s5 low free_slice", "lend g0/s6 low free_slice"}
	if !slices.Equal(got, want) {
		t.Errorf("moves %q\nwant  %q", got, want)
	}
}

// TestGangsTurn: light work of its own priority gives way to a gang unless single
// jobs that stand before it (oldest for what is left to do) wait for a slice.
func TestGangsTurn(t *testing.T) {
	single := func(id string, age time.Duration) Job {
		j := job(id, "batch")
		j.MaxWidth, j.Rest, j.Created = 1, 10*time.Minute, noon.Add(-age)
		return j
	}
	emptied := "vacate g0/s0 held for_job"
	for _, c := range []struct {
		name string
		wait []Job
		free bool // the second GPU
		want string
	}{
		{name: "nobody else waits", want: emptied},
		// (3600 + 3600)/3600 = 2 for the gang, which is an hour old and runs an hour
		{name: "a younger one waits", wait: []Job{single("x", 9*time.Minute)}, want: emptied}, // (540 + 600)/600 = 1.9
		{name: "an older one waits", wait: []Job{single("x", 11*time.Minute)}},                // (660 + 600)/600 = 2.1
		{name: "an older one that finds a slice", wait: []Job{single("x", 11*time.Minute)}, free: true, want: emptied},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := testPolicy()
			s := node(2, func(g, _ int, sl *Slice) {
				if g == 0 || !c.free {
					sl.Phase, sl.Job = JobRuns, "held"
				}
				if g == 1 && c.free && sl.Start > 0 {
					sl.Phase, sl.Job = JobRuns, "kept"
				}
				if g == 1 && !c.free {
					sl.Job = "kept"
				}
			})
			held, kept := job("held", "batch"), job("kept", "train")
			held.MaxWidth, held.Have, kept.MaxWidth, kept.Have = 7, 7, 7, 7
			s.Jobs = append([]Job{held, kept, gang("g", 1)}, c.wait...)
			got := ""
			for _, m := range p.Decide(s).Moves {
				if m.Action == Vacate && got == "" {
					got = said([]Move{m})[0]
				}
			}
			if got != c.want {
				t.Errorf("first emptied %q, want %q", got, c.want)
			}
		})
	}
}

// TestGangTooWide: wider than any server it takes GPUs of several; one that fits a
// server waits for one.
func TestGangTooWide(t *testing.T) {
	p := testPolicy()
	s := node(4, func(g, k int, sl *Slice) {
		if g == 0 {
			sl.Phase, sl.Model = Ready, "m"
		}
	})
	s.Models = []Model{chat("m", 7, 7, 7)}
	s.Jobs = []Job{gang("g", 3)}
	if c := p.Decide(s).Claims; len(c) != 1 || !slices.Equal(c[0].GPUs, []int{1, 2, 3}) {
		t.Errorf("claims %+v, want GPUs 1 to 3", c)
	}
	s.Jobs = []Job{gang("g", 2)}
	if c := p.Decide(s).Claims; len(c) != 1 || !slices.Equal(c[0].GPUs, []int{2, 3}) {
		t.Errorf("claims %+v, want GPUs 2 and 3, which are one server", c)
	}
}

// TestGangOfSlices: all or none of single slices.
func TestGangOfSlices(t *testing.T) {
	p := testPolicy()
	pair := Job{ID: "p", Kind: "train", Needs: g1, MinWidth: 2, MaxWidth: 2, Created: noon}
	s := Snapshot{Now: noon, Plan: true, Cap: noCap, Jobs: []Job{pair}, Slices: []Slice{on("s0", g1, Free, "")}}
	if m := p.Decide(s).Moves; len(m) != 0 {
		t.Errorf("%q with one slice", said(m))
	}
	s.Slices = append(s.Slices, on("s1", g1, Free, ""))
	if m := p.Decide(s).Moves; len(m) != 1 || m[0].Slice != "s0" || !slices.Equal(m[0].Gang, []string{"s1"}) {
		t.Errorf("%+v, want both slices in one move", m)
	}
	// One is held by the backlog: it is emptied, and both are kept meanwhile.
	s.Slices[1] = lentTo("low", on("s1", g1, JobRuns, ""))
	s.Jobs = append(s.Jobs, holding(func() Job { j := low("low"); j.MaxWidth = 1; return j }()))
	plan := p.Decide(s)
	if got := said(plan.Moves); !slices.Equal(got, []string{"vacate s1 low for_job"}) {
		t.Errorf("%q, want the backlog's slice emptied", got)
	}
	if len(plan.Claims) != 1 || !slices.Equal(plan.Claims[0].Slices, []string{"s0", "s1"}) {
		t.Errorf("claims %+v, want both slices", plan.Claims)
	}
}

func TestPriorityTakes(t *testing.T) {
	batch := func(id string) Job { j := job(id, "batch"); return j }
	for _, c := range []decideCase{
		{name: "from the backlog", jobs: []Job{holding(func() Job { j := low("low"); j.MaxWidth = 1; return j }()), batch("b")},
			slices: []Slice{lentTo("low", on("s0", g1, JobRuns, ""))}, want: []string{"vacate s0 low for_job"}},
		{name: "never from its equals", jobs: []Job{holding(batch("a")), batch("b")},
			slices: []Slice{lentTo("a", on("s0", g1, JobRuns, ""))}},
		{name: "an idle slice first", jobs: []Job{holding(func() Job { j := low("low"); j.MaxWidth = 1; return j }()), batch("b")},
			slices: []Slice{lentTo("low", on("s0", g1, JobRuns, "")), on("s1", g1, Free, "")}, want: []string{"lend s1 b free_slice"}},
		// s0 holds a sleeper: serving may want it back, and training would be stopped.
		{name: "work that is kept takes where nobody sleeps", jobs: []Job{holding(func() Job { j := low("low"); j.MaxWidth = 1; return j }()), job("t", "train")},
			models: []Model{chat("m", 0, 0, 1)},
			slices: []Slice{on("s0", g1, Asleep, "m"), lentTo("low", on("s1", g1, JobRuns, ""))}, want: []string{"vacate s1 low for_job"}},
		{name: "light work moves over", jobs: []Job{holding(batch("b")), job("t", "train")}, models: []Model{chat("m", 0, 0, 1)},
			slices: []Slice{on("s0", g1, Asleep, "m"), lentTo("b", on("s1", g1, JobRuns, ""))}, want: []string{"vacate s1 b for_job"}},
		{name: "but not with nowhere to go", jobs: []Job{holding(batch("b")), job("t", "train")},
			slices: []Slice{lentTo("b", on("s1", g1, JobRuns, ""))}},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t) })
	}
}

// TestClaimKeeps: a slice that was emptied for one job goes to no other, also not
// to one that is ahead of it in the queue now (Kueue #13662).
func TestClaimKeeps(t *testing.T) {
	p := testPolicy()
	first := job("first", "batch")
	first.Priority = 5
	s := Snapshot{Now: noon, Plan: true, Cap: noCap, Jobs: []Job{first, job("b", "batch")}, Slices: []Slice{on("s0", g1, Free, "")},
		Claims: []Claim{{Job: "b", Slices: []string{"s0"}, Since: noon, Until: noon.Add(time.Minute)}}}
	if got := said(p.Decide(s).Moves); !slices.Equal(got, []string{"lend s0 b free_slice"}) {
		t.Errorf("%q, want s0 for its claimant", got)
	}
	s.Jobs = s.Jobs[:1] // the claimant is gone
	if got := said(p.Decide(s).Moves); len(got) != 0 {
		t.Errorf("%q in the look that drops the claim", got)
	}
	s.Claims = nil
	if got := said(p.Decide(s).Moves); !slices.Equal(got, []string{"lend s0 first free_slice"}) {
		t.Errorf("%q afterwards", got)
	}
}

// TestRecut: an idle whole GPU for which no gang waits is cut for those who wait.
func TestRecut(t *testing.T) {
	p := testPolicy()
	s := Snapshot{Now: noon, Plan: true, Cap: noCap, GPUs: []GPU{{Index: 0, Family: "A100-80GB", Health: gpu.Health{OK: true}}},
		Slices: []Slice{on("g0/s0", g7, Free, "")}, Jobs: []Job{job("b", "batch")}}
	m := p.Decide(s).Moves
	if len(m) != 1 || m[0].Action != Reshape || len(m[0].Layout) != 7 || m[0].Layout[0].Profile != "1g.10gb" {
		t.Errorf("%+v, want seven instances", m)
	}
	s.Jobs = append(s.Jobs, gang("g", 1))
	if got := said(p.Decide(s).Moves); !slices.Equal(got, []string{"lend g0/s0 g free_slice"}) {
		t.Errorf("%q, want the GPU for the gang", got)
	}
}

// TestRefit: small replicas that came onto whole GPUs move out when others could
// use the rest, one a plan, and never one that is needed now; a whole GPU is a
// model's last resort, and is cut for it while there is time.
func TestRefit(t *testing.T) {
	whole := func(phases ...Phase) (s Snapshot) {
		s = Snapshot{Now: noon, Plan: true, Cap: noCap, Jobs: []Job{job("b", "batch")}}
		for g, phase := range phases {
			sl := on(gpu.SliceID(g, 0), g7, phase, "m")
			if sl.GPU = g; phase == Free {
				sl.Model = ""
			}
			s.Slices = append(s.Slices, sl)
			s.GPUs = append(s.GPUs, GPU{Index: g, Family: "A100-80GB", Health: gpu.Health{OK: true}})
		}
		return s
	}
	small := func(s Snapshot) Snapshot {
		sl := on("g9/s0", g1, Asleep, "m")
		sl.GPU = 9
		s.Slices, s.GPUs = append(s.Slices, sl), append(s.GPUs, GPU{Index: 9, Family: "A100-80GB", Health: gpu.Health{OK: true}})
		return s
	}
	wide := []Job{gang("g", 9)}
	for _, c := range []struct {
		name string
		s    Snapshot
		busy float64 // of the model
		jobs []Job
		want []string
	}{
		{"needs 1, has 3: one moves out", whole(Ready, Ready, Ready), 0.5, nil, []string{"vacate g0/s0 m shape"}},
		{"both are needed", whole(Ready, Ready), 1.5, nil, nil},
		{"a sleeper too", whole(Ready, Asleep), 0.5, nil, []string{"vacate g1/s0 m shape"}},
		{"nobody waits for less than a GPU", whole(Ready, Asleep), 0.5, wide, nil},
		{"needs 2: a small sleeper before a whole one", small(whole(Ready, Asleep)), 1.5, wide, []string{"wake g9/s0 m needs_more"}},
		{"needs 2, only a whole one is there", whole(Ready, Free), 1.5, []Job{}, []string{"start g1/s0 m needs_more"}},
	} {
		m := chat("m", c.busy, 1, 9)
		c.s.Models = []Model{m}
		if c.jobs != nil {
			c.s.Jobs = c.jobs
		}
		if got := said(testPolicy().Decide(c.s).Moves); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	ahead := whole(Ready, Free)
	m := chat("m", 0.5, 1, 9)
	m.RiseFast = 1
	ahead.Models, ahead.Jobs = []Model{m}, wide
	if got := testPolicy().Decide(ahead).Moves; len(got) != 1 || got[0].Action != Reshape || got[0].GPU != 1 || len(got[0].Layout) != 7 {
		t.Errorf("a rise ahead: %+v, want GPU 1 cut into seven", got)
	}
}

// TestQueue: tenants in turn by what they have borrowed for their weight, limits,
// and ageing after four stops within the hour.
func TestQueue(t *testing.T) {
	p := testPolicy()
	p.Tenants = []Share{{Tenant: "a", Weight: 2}, {Tenant: "b", Weight: 1}, {Tenant: "c", Weight: 1, BorrowLimit: 1.0 / 7}}
	s := Snapshot{Now: noon, Plan: true, Cap: noCap}
	for i := range 6 {
		s.Slices = append(s.Slices, on(fmt.Sprintf("s%d", i), g1, Free, ""))
	}
	for _, tenant := range []string{"a", "b", "c"} {
		for i := range 4 {
			j := job(fmt.Sprint(tenant, i), "batch")
			j.Tenant, j.Created = tenant, noon.Add(-time.Hour+time.Duration(i)*time.Minute)
			s.Jobs = append(s.Jobs, j)
		}
	}
	var got []string
	for _, m := range p.Decide(s).Moves {
		got = append(got, m.Job)
	}
	// Borrowed over weight, in sevenths: a 0 b 0 c 0 → a0 (0.5), b0 (1), c0 (1, its
	// limit), a1 (1), then a and b are equal: a2 (1.5), b1.
	if want := []string{"a0", "b0", "c0", "a1", "a2", "b1"}; !slices.Equal(got, want) {
		t.Errorf("in the order %q, want %q", got, want)
	}
	j := job("t", "train")
	for i := range 4 {
		j.Preempted = append(j.Preempted, noon.Add(-time.Duration(i*10)*time.Minute))
	}
	if p.aged(noon, &j) != 1 || p.aged(noon.Add(31*time.Minute), &j) != 0 {
		t.Error("four stops within the hour make a priority more, three do not")
	}
}

func TestWorth(t *testing.T) {
	for _, c := range []struct {
		w    Worth
		want time.Duration
	}{
		{Worth{Idle: time.Minute, OutBack: 20 * time.Second}, 40 * time.Second},
		{Worth{Idle: time.Minute, Rest: 30 * time.Second, OutBack: 20 * time.Second}, 10 * time.Second},
		// Half a chance to lose 50 s: 60 − 25 − 20.
		{Worth{Idle: time.Minute, Chance: 0.5, Stop: 50 * time.Second, OutBack: 20 * time.Second}, 15 * time.Second},
		{Worth{Idle: 10 * time.Second, OutBack: 20 * time.Second}, -10 * time.Second},
	} {
		if got := c.w.Value(); got != c.want {
			t.Errorf("%+v is worth %v, want %v", c.w, got, c.want)
		}
	}
}

// TestStaticShare: in mode static a model keeps its share, and what it may lend
// otherwise has limits too.
func TestLimits(t *testing.T) {
	two := []Slice{on("s0", g1, Ready, "m"), on("s1", g1, Ready, "m")}
	with := func(f func(*Model)) []Model { m := chat("m", 0.5, 1, 9); f(&m); return []Model{m} }
	b := []Job{job("b", "batch")}
	for _, c := range []decideCase{
		{name: "static keeps its share ready", policy: func(p *Policy) { p.Mode = ModeStatic }, models: with(func(m *Model) { m.Static = 2 }), jobs: b,
			slices: []Slice{two[0], on("s1", g1, Asleep, "m"), on("s2", g1, Free, "")}, want: []string{"wake s1 m rise_ahead", "lend s2 b free_slice"}},
		{name: "static, none configured: all that it may have", policy: func(p *Policy) { p.Mode = ModeStatic }, models: with(func(m *Model) { m.Max = 2 }), jobs: b,
			slices: []Slice{two[0], on("s1", g1, Free, ""), on("s2", g1, Free, "")}, want: []string{"start s1 m rise_ahead", "lend s2 b free_slice"}},
		{name: "frozen", models: with(func(m *Model) { m.Frozen = true }), slices: two, jobs: b, holds: []string{"hold s0 m/b limit"}},
		{name: "all lending stopped, of free slices too", policy: func(p *Policy) { p.Frozen = true }, models: with(func(*Model) {}),
			slices: append(slices.Clone(two), on("s2", g1, Free, "")), jobs: b, holds: []string{"hold s2 b limit"}},
		{name: "pinned", models: with(func(m *Model) { m.Pinned = []string{"s0"} }), slices: two, jobs: b, want: []string{"lend s1 m/b surplus"}},
		{name: "closed slices", policy: func(p *Policy) { p.ClosedSlices = []string{"s0"} }, models: with(func(*Model) {}), slices: two, jobs: b, want: []string{"lend s1 m/b surplus"}},
		{name: "at its lend limit", models: with(func(m *Model) { m.LendLimit = 1 }), jobs: append(b, holding(job("o", "batch"))),
			slices: append(slices.Clone(two), lentTo("o", on("s2", g1, JobRuns, "m"))), holds: []string{"hold s0 m/b limit"}},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t) })
	}
}

// TestGangStartsFromNothing: a gang of two that has lost a member leaves the other
// slice before it gathers again, though an idle one would make it whole at once.
// What already leaves is not asked twice.
func TestGangStartsFromNothing(t *testing.T) {
	for _, moving := range []bool{false, true} {
		s := node(1, func(_, k int, sl *Slice) {
			if k == 0 {
				sl.Phase, sl.Job, sl.Moving = JobRuns, "g", moving
			}
		})
		g := gang("g", 2)
		g.Needs, g.Have = g1, 1
		s.Jobs = []Job{g}
		moves := testPolicy().Decide(s).Moves
		if moving && len(moves) != 0 {
			t.Errorf("%q while a slice leaves, want nothing", said(moves))
		}
		if !moving && (len(moves) != 1 || moves[0].Action != Vacate || moves[0].Slice != "g0/s0" || moves[0].Reason != LostMember) {
			t.Errorf("%q, want g0/s0 emptied", said(moves))
		}
		s.Slices[0].Job, s.Slices[0].Phase, s.Slices[0].Moving, s.Jobs[0].Have = "", Free, false, 0
		if moves = testPolicy().Decide(s).Moves; len(moves) != 1 || moves[0].Action != Lend || len(moves[0].Gang) != 1 {
			t.Errorf("%q, want two slices lent in one move", said(moves))
		}
	}
}
