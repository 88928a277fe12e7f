package arbiter

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"aloft/gpu"
)

const a100 = "A100-80GB"

// shaped is a job that waits for a slice of a profile.
func shaped(t testing.TB, id, profile string) Job {
	j := job(id, "evaluate")
	j.Needs = shapeOf(t, a100, profile)
	return j
}

// recuts says what a plan has cut, beside what else it does.
func recuts(plan Plan) (out []string) {
	for _, m := range plan.Moves {
		if m.Action == Reshape {
			out = append(out, fmt.Sprintf("reshape %d %s for %s", m.GPU, layout(m.Layout), m.Job))
		} else {
			out = append(out, said([]Move{m})...)
		}
	}
	return out
}

// TestRecast: a job whose shape is cut nowhere has it cut from what is idle or may be
// lent, where that loses least, and from nothing that a model may need.
func TestRecast(t *testing.T) {
	phases := func(ps ...Phase) func(g, k int, s *Slice) {
		return func(g, k int, s *Slice) {
			if p := ps[k]; p != Free {
				s.Phase, s.Model = p, "m"
			}
		}
	}
	const f, r, a = Free, Ready, Asleep
	want := func(profile string) []Job { return []Job{shaped(t, "j", profile)} }
	m := func(level float64) []Model { return []Model{chat("m", level, 0, 7)} }
	for _, c := range []struct {
		name   string
		policy func(*Policy)
		change func(*Snapshot)
		fill   func(g, k int, s *Slice)
		models []Model
		jobs   []Job
		want   []string
	}{
		// Of the starts 0, 2 and 4 the second has a replica in its way that is needed. At
		// the others 2 go and 1 comes, and what is left free takes one 2g and three 1g:
		// the first. The memory slice that no 1g starts at stays bare.
		{name: "idle", fill: phases(f, f, f, r, f, f, r), models: m(1.5), jobs: want("2g.20gb"),
			want: []string{"reshape 0 1g.10gb@2 1g.10gb@3 1g.10gb@4 1g.10gb@5 1g.10gb@6 2g.20gb@0 for j"}},
		{name: "3g where four are idle", fill: phases(r, f, f, f, f, f, f), models: m(0.5), jobs: want("3g.40gb"),
			want: []string{"reshape 0 1g.10gb@0 1g.10gb@1 1g.10gb@2 1g.10gb@3 3g.40gb@4 for j"}},
		// Of three pairs one is asleep, one half asleep and one serves: what is idle costs
		// less than a start from cold, and is emptied before it is cut.
		{name: "a sleeper goes first", fill: phases(r, r, a, f, r, r, r), models: m(4.5), jobs: want("2g.20gb"),
			want: []string{"vacate g0/s2 m for_job"}},
		{name: "the models need all of it", fill: phases(r, r, r, r, r, r, r), models: m(6.5), jobs: want("2g.20gb")},
		{name: "idle, but a model may need it soon", fill: phases(r, r, r, r, r, f, f), models: m(6.5), jobs: want("2g.20gb"),
			want: []string{"start g0/s5 m needs_more", "start g0/s6 m needs_more"}},
		{name: "closed by a window", policy: func(p *Policy) { p.ClosedGPUs = []int{0} }, fill: phases(f, f, f, f, f, f, f), models: m(0), jobs: want("2g.20gb")},
		{name: "cut a moment ago", change: func(s *Snapshot) { s.GPUs[0].Reshaped = noon.Add(-9 * time.Minute) },
			fill: phases(f, f, f, f, f, f, f), models: m(0), jobs: want("2g.20gb")},
		{name: "being cut", change: func(s *Snapshot) { s.GPUs[0].Shaping = true }, fill: phases(f, f, f, f, f, f, f), models: m(0), jobs: want("2g.20gb")},
		{name: "between plans", change: func(s *Snapshot) { s.Plan, s.Queue = false, true }, fill: phases(f, f, f, f, f, f, f), models: m(0), jobs: want("2g.20gb")},
		{name: "not in a maintenance window", policy: func(p *Policy) { p.Frozen = true }, fill: phases(f, f, f, f, f, f, f), models: m(0), jobs: want("2g.20gb")},
		// 3 steps of a second against a rest of two seconds.
		{name: "it would be over before it is cut", fill: phases(f, f, f, f, f, f, f), models: m(0), jobs: []Job{func() Job {
			j := shaped(t, "j", "2g.20gb")
			j.Rest = 2 * time.Second
			return j
		}()}},
		{name: "a GPU without MIG", change: func(s *Snapshot) { s.GPUs[0].Family = "" }, fill: phases(f, f, f, f, f, f, f), models: m(0), jobs: want("2g.20gb")},
	} {
		s := node(1, c.fill)
		s.Models, s.Jobs = c.models, c.jobs
		if c.change != nil {
			c.change(&s)
		}
		p := testPolicy()
		if c.policy != nil {
			c.policy(&p)
		}
		if got := recuts(p.Decide(s)); !slices.Equal(got, c.want) {
			t.Errorf("%s:\n got %q\nwant %q", c.name, got, c.want)
		}
	}
}

// TestRecastStops: a job of lower priority makes room, one of its own does not.
func TestRecastStops(t *testing.T) {
	for _, c := range []struct {
		priority int
		want     []string
	}{
		{0, nil},
		{1, []string{"vacate g0/s0 low for_job", "vacate g0/s1 low for_job"}},
	} {
		s := node(1, func(g, k int, s *Slice) { s.Phase, s.Job = JobRuns, "low" })
		old := job("low", "batch")
		old.Have, old.MaxWidth = 7, 7
		j := shaped(t, "j", "2g.20gb")
		j.Priority = c.priority
		s.Jobs = []Job{old, j}
		plan := testPolicy().Decide(s)
		if got := recuts(plan); !slices.Equal(got, c.want) {
			t.Errorf("priority %d: %q, want %q", c.priority, got, c.want)
		}
		if len(c.want) > 0 && (len(plan.Claims) != 1 || plan.Claims[0].Cut != gpu.Placement{Profile: "2g.20gb", Size: 2}) {
			t.Errorf("claims %+v, want the place that is emptied", plan.Claims)
		}
	}
}

// TestRecastWayBack: a slice that is left too large for who waits now is cut again.
func TestRecastWayBack(t *testing.T) {
	s := node(1, func(g, k int, s *Slice) { s.Phase, s.Job = JobRuns, "low" })
	two := s.Slices[4]
	two.Shape, two.Phase, two.Job = shapeOf(t, a100, "2g.20gb"), Free, ""
	s.Slices = slices.Replace(s.Slices, 4, 6, two)
	old := job("low", "batch")
	old.Have, old.MaxWidth = 5, 5
	s.Jobs = []Job{old, job("j", "evaluate")}
	want := []string{"reshape 0 1g.10gb@0 1g.10gb@1 1g.10gb@2 1g.10gb@3 1g.10gb@6 1g.10gb@4 1g.10gb@5 for j"}
	if got := recuts(testPolicy().Decide(s)); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestLoopRecast: in a world of 1g slices that serve or sleep, jobs of 2g and 3g get
// what they ask for, the model keeps what it needs, and after them the small ones
// have it back.
func TestLoopRecast(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, 7, chat("m", 1.5, 2, 7))
		w.family = a100
		for i := range w.slices {
			w.slices[i].GPU, w.slices[i].Start = 0, i
		}
		w.took["reshape"] = 3 * time.Second
		w.ready("m", "s0", "s1", "s2", "s3", "s4", "s5", "s6")
		j := trainer("j")
		j.Needs = shapeOf(t, a100, "2g.20gb")
		w.submit(j)
		r := begin(w, func(o *Options) { o.Shaper, o.Core.Geometry = w, time.Hour })
		defer r.end()
		pass(5 * time.Minute)
		if got := w.has("j"); len(got) != 1 || got[0] != "g0/2g.20gb@4" && got[0] != "g0/2g.20gb@2" && got[0] != "g0/2g.20gb@0" {
			t.Fatalf("the job has %q, want a slice of two: %q", got, r.did(""))
		}
		if n := w.phase("m", Ready); n < 2 {
			t.Errorf("%d replicas ready, want 2", n)
		}
		if v := r.View().Stats.Violations; v != 0 {
			t.Errorf("%d invariants broken", v)
		}
		for _, x := range r.core.Claims() {
			t.Errorf("claim %+v is left", x)
		}
	})
}
