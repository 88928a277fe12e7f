package arbiter

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"aloft/gpu"
)

// TestClaims: one that is made again keeps its first timeout; then its claimant
// rests, twice as long each time; one that is met forgets its timeouts.
func TestClaims(t *testing.T) {
	at := func(s int) time.Time { return noon.Add(time.Duration(s) * time.Second) }
	wants := func(s int) []Claim {
		return []Claim{{Job: "g", Slices: []string{"a"}, Since: at(s), Until: at(s + 60)}}
	}
	to := timeouts{}
	var claims []Claim
	for _, step := range []struct {
		at   int
		plan []Claim
		want []Claim
	}{
		{0, wants(0), wants(0)},
		{10, wants(10), wants(0)},
		{59, wants(59), wants(0)},
		{60, nil, []Claim{{Job: "g", Since: at(60), Until: at(120), Tries: 1}}}, // as long as it tried
		{70, wants(70), []Claim{{Job: "g", Since: at(60), Until: at(120), Tries: 1}}},
		{120, wants(120), []Claim{{Job: "g", Slices: []string{"a"}, Since: at(120), Until: at(180), Tries: 1}}},
		{180, nil, []Claim{{Job: "g", Since: at(180), Until: at(300), Tries: 2}}}, // twice as long
		{300, wants(300), []Claim{{Job: "g", Slices: []string{"a"}, Since: at(300), Until: at(360), Tries: 2}}},
		{310, nil, nil}, // met
		{320, wants(320), wants(320)},
	} {
		claims = to.keep(to.expire(claims, at(step.at)), step.plan)
		if !(len(claims) == 0 && len(step.want) == 0) && !reflect.DeepEqual(claims, step.want) {
			t.Errorf("at %d s: %+v, want %+v", step.at, claims, step.want)
		}
	}
	to = timeouts{{job: "g"}: 40}
	claims = to.expire(wants(0), at(60))
	if rest := claims[0].Until.Sub(at(60)); rest != longestRest {
		t.Errorf("a rest of %v, want at most %v", rest, longestRest)
	}
}

// once gives each step's moves when its slices are at rest.
func once(steps ...[]Move) func(Snapshot) Plan {
	return func(s Snapshot) (p Plan) {
		if len(steps) == 0 || slices.ContainsFunc(s.Slices, func(s Slice) bool { return s.Moving }) {
			return p
		}
		p.Moves, steps = steps[0], steps[1:]
		return p
	}
}

// TestLoopGang: a job and a sleeper make room for a gang, which then gets all of
// its slices in one start.
func TestLoopGang(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, 2, chat("m", 0, 0, 2))
		w.ready("m", "s1")
		w.replicas[0].Phase = Asleep
		w.took["empty"] = 3 * time.Second
		victim, gang := trainer("v"), trainer("g")
		victim.Slices, victim.Running = []string{"s0"}, true
		gang.MinWidth, gang.MaxWidth = 2, 2
		w.submit(victim)
		w.submit(gang)
		w.script = once(
			[]Move{{Action: Vacate, Slice: "s0", Job: "v"}, {Action: Vacate, Slice: "s1", Model: "m"}},
			[]Move{{Action: Lend, Slice: "s0", Gang: []string{"s1"}, Job: "g", Bound: time.Minute}})
		r := begin(w, nil)
		defer r.end()
		pass(time.Second)
		v := r.View().Snapshot.Slices
		if v[0].Phase != Checkpoint || !v[0].Moving || !v[1].Moving {
			t.Errorf("while they are vacated: %+v", v)
		}
		pass(10 * time.Second)
		equal(t, "the gang has", w.has("g"), []string{"s0", "s1"})
		equal(t, "the victim has", w.has("v"), nil)
		v = r.View().Snapshot.Slices
		if v[0].Phase != JobRuns || v[1].Phase != JobRuns || v[1].Job != "g" || v[1].Model != "" || v[0].Moving {
			t.Errorf("at the end: %+v", v)
		}
		if n := r.View().Stats.Loans; n != 1 {
			t.Errorf("%d loans, want one for the gang", n)
		}
	})
}

// TestLoopGangFails: all of its slices are free again.
func TestLoopGangFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, 2, chat("m", 0, 0, 2))
		gang := trainer("g")
		gang.MinWidth, gang.MaxWidth = 2, 2
		w.submit(gang)
		w.fail["start job"] = 1
		w.script = once([]Move{{Action: Lend, Slice: "s0", Gang: []string{"s1"}, Job: "g", Bound: time.Minute}})
		r := begin(w, func(o *Options) { o.Core.Plan = time.Hour })
		defer r.end()
		pass(10 * time.Second)
		for id, l := range r.core.Leases() {
			if l.Moving || l.Job != "" {
				t.Errorf("%s: %+v", id, l)
			}
		}
		equal(t, "failed", r.did("failed"), []string{"lend s0 g "})
	})
}

// TestLoopReshape: while a GPU is cut anew none of it can be had, new instances
// included, and its time is booked; what stays is left alone.
func TestLoopReshape(t *testing.T) {
	layout := []gpu.Placement{{Profile: "3g.40gb", Start: 0, Size: 4}, {Profile: "1g.10gb", Start: 4, Size: 1}}
	node := func(t *testing.T) *world {
		w := newWorld(t, 7, chat("m", 0, 0, 2))
		w.family = "A100-80GB"
		for i := range w.slices {
			w.slices[i].GPU, w.slices[i].Start = 0, i
		}
		w.took["reshape"] = 4 * time.Second
		w.ready("m", "s4")
		return w
	}
	bubble(t, func(t *testing.T) {
		w := node(t)
		w.script = once([]Move{{Action: Reshape, GPU: 0, Layout: layout}})
		r := begin(w, func(o *Options) { o.Shaper, o.Core.Geometry = w, time.Hour })
		defer r.end()
		pass(2 * time.Second)
		v := r.View().Snapshot.Slices
		if len(v) != 1 || v[0].ID != "s4" || v[0].Phase != Ready || v[0].Moving {
			t.Errorf("half-way: %+v, want what stays, at work", v)
		}
		pass(5 * time.Second)
		v = r.View().Snapshot.Slices
		if len(v) != 2 || v[1].ID != "g0/3g.40gb@0" || v[1].Phase != Free || v[1].Moving {
			t.Errorf("at the end: %+v", v)
		}
		if g := r.View().Snapshot.GPUs[0]; g.Mask != 0b11111 || g.Reshaped.IsZero() || g.Family != w.family {
			t.Errorf("%+v", g)
		}
		b := r.View().Balance
		if s := b.Share[ReshapeTime] * b.Total; s < 20 || s > 28 { // 6 of 7 for 4 s, in looks of 0.5 s
			t.Errorf("%.1f slice-seconds booked as reshape, want about 24", s)
		}
		equal(t, "done", r.did("done"), []string{"reshape   "})
	})
	bubble(t, func(t *testing.T) {
		w := node(t)
		w.fail["reshape"] = 1
		w.script = once([]Move{{Action: Reshape, GPU: 0, Layout: layout}})
		r := begin(w, func(o *Options) { o.Shaper, o.Core.Geometry = w, time.Hour })
		defer r.end()
		pass(10 * time.Second)
		if v := r.View().Snapshot.Slices; len(v) != 1 || v[0].Moving {
			t.Errorf("after a failure: %+v, want what the driver says", v)
		}
		equal(t, "failed", r.did("failed"), []string{"reshape   "})
	})
	bubble(t, func(t *testing.T) {
		w := node(t)
		geometry := false
		w.script = func(s Snapshot) (p Plan) { geometry = geometry || s.Geometry; return p }
		r := begin(w, func(o *Options) { o.Core.Geometry = time.Minute })
		defer r.end()
		pass(5 * time.Minute)
		if geometry {
			t.Error("a reshape was planned, and nothing can carry it out")
		}
	})
}
