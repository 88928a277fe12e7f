package arbiter

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// TestBerthing: when a gang can start, and where, worked out by hand.
func TestBerthing(t *testing.T) {
	idle := func(i int) berth { return berth{i: i, cost: room{1, 1}} }
	gives := func(i, slow int) berth { return berth{i: i, cost: room{0, slow}} }
	ends := func(i, minutes int) berth {
		return berth{i: i, free: time.Duration(minutes) * time.Minute, cost: room{1, 1}}
	}
	end := func(minutes, n, slow int) ending {
		return ending{time.Duration(minutes) * time.Minute, room{n, slow}}
	}
	for _, c := range []struct {
		name string
		all  []berth
		ends []ending
		want int
		has  room

		on   []int
		wait time.Duration
		left room
		not  bool
	}{
		{name: "idle ones are enough", all: []berth{idle(0), idle(1), idle(2)}, want: 2, has: room{5, 4}, on: []int{0, 1}, left: room{3, 2}},
		{name: "one gives way", all: []berth{idle(0), gives(1, 0)}, want: 2, has: room{5, 4}, on: []int{0, 1}, left: room{4, 3}},
		// No more may be lent, but what gives way is lent already.
		{name: "no room beside what gives way", all: []berth{idle(0), gives(1, 0), gives(2, 0)}, want: 2, on: []int{1, 2}},
		// Fast work gives way to a gang that must save: one more of the slow, of which there is room for one.
		{name: "no room for slow work", all: []berth{gives(0, 1), gives(1, 1), gives(2, 0)}, want: 2, has: room{0, 1}, on: []int{0, 2}},
		// The second is free after 5 min, the third after 9: three are there then.
		{name: "the first ends", all: []berth{idle(0), ends(1, 5), ends(2, 9), ends(3, 20)}, want: 3, has: room{9, 9}, on: []int{0, 1, 2}, wait: 9 * time.Minute, left: room{6, 6}},
		// Slices enough, but all that may be lent is lent: 1 + 2 once the jobs of 4 and
		// 7 min are over, and the gang takes 3.
		{name: "room alone is lacking", all: []berth{idle(0), idle(1), idle(2)}, ends: []ending{end(4, 1, 1), end(7, 2, 2), end(9, 1, 1)}, want: 3, has: room{0, 1},
			on: []int{0, 1, 2}, wait: 7 * time.Minute, left: room{0, 1}},
		// More is lent than may be: 2 too much, and 3 for the gang, so that five must end.
		{name: "more is lent than may be", all: []berth{idle(0), idle(1), idle(2)}, ends: []ending{end(4, 4, 0), end(8, 1, 0)}, want: 3, has: room{-2, 9},
			on: []int{0, 1, 2}, wait: 8 * time.Minute, left: room{0, 6}},
		{name: "too few slices", all: []berth{idle(0), ends(1, 5)}, want: 3, has: room{9, 9}, not: true},
		{name: "never room", all: []berth{idle(0), idle(1)}, ends: []ending{end(4, 1, 1)}, want: 2, not: true},
	} {
		on, wait, left, ok := berthing(c.all, c.ends, c.want, c.has)
		if got := indices(on); ok == c.not || ok && (!slices.Equal(got, c.on) || wait != c.wait || left != c.left) {
			t.Errorf("%s: %v after %v, left %+v, %v; want %v after %v, left %+v", c.name, got, wait, left, ok, c.on, c.wait, c.left)
		}
	}
}

// TestBackfill: who may use what is kept for a gang. Slice s0 is free, s1 and s2 are
// lent for 10 and 20 minutes, so that a gang of two starts in ten.
func TestBackfill(t *testing.T) {
	of := func(kind string, priority int, rest, waited time.Duration) Job {
		j := job("j", kind)
		j.Priority, j.Rest, j.Created = priority, rest, noon.Add(-waited)
		return j
	}
	holder := func(id string, rest time.Duration) Job {
		j := holding(job(id, "train"))
		j.Rest = rest
		return j
	}
	for _, c := range []struct {
		name   string
		j      Job
		waited time.Duration // of the gang
		two    bool          // a second slice is free
		want   []string
	}{
		{name: "over in time", j: of("evaluate", 0, 10*time.Minute, 0), want: []string{"lend s0 j free_slice"}},
		{name: "over a second late", j: of("evaluate", 0, 10*time.Minute+time.Second, 0)},
		{name: "nobody knows how long it runs", j: of("evaluate", 0, 0, 0)},
		{name: "it stands before the gang", j: of("evaluate", 0, 0, 2*time.Hour), want: []string{"lend s0 j free_slice"}},
		{name: "the gang no longer trusts such times", j: of("evaluate", 0, time.Minute, 0), waited: trustEnds},
		{name: "it gives way", j: of("batch", 0, 0, 0), want: []string{"lend s0 j free_slice"}},
		{name: "it is of lower priority", j: of("train", -1, 0, 0), want: []string{"lend s0 j free_slice"}},
		{name: "it is of higher priority", j: of("train", 1, 0, 0), want: []string{"lend s0 j free_slice"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := pair("g", 2, 2)
			g.Created = noon.Add(-c.waited)
			s := Snapshot{Now: noon, Plan: true, Cap: noCap, Jobs: []Job{g, c.j, holder("a", 10*time.Minute), holder("b", 20*time.Minute)},
				Slices: []Slice{on("s0", g1, Free, ""), lentTo("a", on("s1", g1, JobRuns, "")), lentTo("b", on("s2", g1, JobRuns, ""))}}
			if got := said(testPolicy().Decide(s).Moves); !slices.Equal(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// TestKeptRoom: slices are not all that a gang needs. Five are free and seven may be
// lent, but only three at once beside the four replicas that stay; two are lent,
// for 10 and 20 minutes. A gang of two may have one now: it starts in ten minutes, when
// three may be lent and one is. What is lent beyond it until then must be over.
func TestKeptRoom(t *testing.T) {
	single := func(rest time.Duration) Job {
		j := job("j", "evaluate")
		j.Rest, j.Created = rest, noon
		return j
	}
	for _, c := range []struct {
		name string
		j    Job
		want []string
	}{
		{"over in time", single(10 * time.Minute), []string{"lend s2 j free_slice"}},
		{"over later", single(11 * time.Minute), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := Snapshot{Now: noon, Plan: true, Cap: noCap, Models: []Model{chat("m", 4, 4, 4)}, Jobs: []Job{pair("g", 2, 2), c.j}}
			s.Jobs[0].Created = noon.Add(-time.Minute)
			for k := range 4 {
				s.Slices = append(s.Slices, on(fmt.Sprint("m", k), g1, Ready, "m"))
			}
			for k, rest := range []time.Duration{10 * time.Minute, 20 * time.Minute} {
				j := holding(job(fmt.Sprint("h", k), "train"))
				j.Rest = rest
				s.Jobs, s.Slices = append(s.Jobs, j), append(s.Slices, lentTo(j.ID, on(fmt.Sprint("s", k), g1, JobRuns, "")))
			}
			for k := range 5 {
				s.Slices = append(s.Slices, on(fmt.Sprint("s", 2+k), g1, Free, ""))
			}
			p := testPolicy()
			p.Spare = 4 // 11 − 4 − 4 = 3 may be lent
			if got := said(p.Decide(s).Moves); !slices.Equal(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// TestTenantsGang: a gang that would be more than its tenant may borrow holds the
// tenant's other jobs back, and nobody else's; one that could never be had does not.
func TestTenantsGang(t *testing.T) {
	for _, c := range []struct {
		limit float64 // the tenant has one slice
		width int
		want  []string
	}{
		{2. / 7, 2, []string{"lend s1 other free_slice"}},
		{2. / 7, 3, []string{"lend s1 other free_slice", "lend s2 mine free_slice"}}, // 3/7 are never had
		{3. / 7, 2, []string{"lend s1 g free_slice", "lend s3 other free_slice"}},
	} {
		s := Snapshot{Now: noon, Plan: true, Cap: noCap, Slices: []Slice{lentTo("has", on("s0", g1, JobRuns, ""))}}
		for k := range 3 {
			s.Slices = append(s.Slices, on(fmt.Sprint("s", 1+k), g1, Free, ""))
		}
		s.Jobs = []Job{holding(job("has", "train")), pair("g", c.width, c.width), job("mine", "train"), job("other", "train")}
		for k := range 3 {
			s.Jobs[k].Tenant = "a"
		}
		s.Jobs[1].Created = noon.Add(-time.Minute)
		p := testPolicy()
		p.Tenants = []Share{{Tenant: "a", Weight: 1, BorrowLimit: c.limit}}
		if got := said(p.Decide(s).Moves); !slices.Equal(got, c.want) {
			t.Errorf("limit %.2f, gang of %d: %q, want %q", c.limit, c.width, got, c.want)
		}
	}
}

// TestNoGangStarves: single jobs without end, one for each slice that is free, and
// each for an hour at most, though nobody is told of it. A gang that came after the
// first of them starts, whatever its width and whoever is ahead of it in the queue,
// once those that ran when it came have ended.
func TestNoGangStarves(t *testing.T) {
	const n = 6
	for _, c := range []struct {
		name string
		rest time.Duration // that singles say they have; their run time is drawn
	}{{"nobody says when it ends", 0}, {"all say ten minutes, always", 10 * time.Minute}} {
		t.Run(c.name, func(t *testing.T) {
			for width := 2; width <= n; width++ {
				left := [n]int{} // minutes that the job on each slice runs yet
				s := Snapshot{Plan: true, Cap: noCap}
				for k := range n {
					s.Slices, left[k] = append(s.Slices, lentTo(fmt.Sprint("first", k), on(fmt.Sprint("s", k), g1, JobRuns, ""))), 7+9*k
				}
				ends, latest := 0, 60+int(trustEnds.Minutes())
				for minute := 0; ; minute++ {
					if minute > latest {
						t.Fatalf("a gang of %d has not started after %d minutes, and %d jobs", width, minute, ends)
					}
					s.Now, s.Jobs = noon.Add(time.Duration(minute)*time.Minute), nil
					for k := range n {
						if s.Slices[k].Job != "" {
							if left[k]--; left[k] <= 0 {
								s.Slices[k], ends = on(s.Slices[k].ID, g1, Free, ""), ends+1
							}
						}
						if id := s.Slices[k].Job; id != "" {
							j := holding(job(id, "train"))
							j.Rest = c.rest
							s.Jobs = append(s.Jobs, j)
						}
						j := job(fmt.Sprintf("single %d.%d", minute, k), "train")
						j.Created, j.Rest = s.Now.Add(-time.Duration(k)*time.Minute), c.rest
						s.Jobs = append(s.Jobs, j)
					}
					g := pair("g", width, width)
					g.Created, g.Queued = noon, noon
					s.Jobs = append(s.Jobs, g)
					started := false
					for _, m := range testPolicy().Decide(s).Moves {
						started = started || m.Job == "g"
						for k := range n {
							if m.Action == Lend && s.Slices[k].ID == m.Slice {
								s.Slices[k], left[k] = lentTo(m.Job, on(m.Slice, g1, JobRuns, "")), 11+(13*minute+7*k)%49
							}
						}
					}
					if started {
						break
					}
				}
			}
		})
	}
}
