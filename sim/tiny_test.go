package sim

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"aloft/arbiter"
	"aloft/gpu"
	"aloft/sim/scenario"
)

const sec = time.Second

// tiny is a world that is computed by hand: two GPUs, ten minutes, one model m
// with the first as its share, nothing random. Ten requests, one every ten
// seconds from 100 s on: 500 prompt tokens at 1,000/s, then 100 steps of 10 ms, so
// that each has its first token after 0.5 s and is done 1 s later. The model is
// prefill-bound: each is 0.5 slice-seconds of knee work. A wake takes 3 s, a
// start from cold 45, a reshape 2.
func tiny(jobs ...scenario.Job) *scenario.World {
	sc := &scenario.Scenario{Name: "tiny", HorizonH: 1. / 6, Cluster: scenario.Cluster{GPUs: 2, GPUModel: "A100-SXM4-80GB", ServerGPUs: 2,
		SliceShape: "1g.10gb", WholeShape: "7g.80gb", ReshapeS: 2, Serving: 7, Jobs: 7},
		Models: []scenario.Model{{Name: "m", Static: 7,
			Service: scenario.Service{AlphaMs: 10, Slots: 4, PrefillPerS: 1000, SpeedWhenPrefill: 0.5},
			SLO:     scenario.SLO{TTFTS: 1, TPOTMs: 50},
			Start:   scenario.Start{WakeMedianS: 3, ColdMedianS: 45}}},
		Faults: scenario.Faults{RepairS: 100}}
	t := scenario.Traffic{Model: &sc.Models[0], Copies: 1, TimeScale: 1}
	for i := range 10 {
		t.Arrivals = append(t.Arrivals, scenario.Arrival{At: time.Duration(100+10*i) * sec, In: 500, Out: 100})
	}
	return &scenario.World{Scenario: sc, Seed: 1, Traffic: []scenario.Traffic{t}, Jobs: jobs, Horizon: 600 * sec}
}

func embed(id string, at, run time.Duration) scenario.Job {
	return scenario.Job{ID: id, Kind: scenario.EmbedJob, At: at, Run: run, Slices: 1, Start: 10 * sec, Stop: sec / 2, Loses: 5 * sec}
}

func quantize(id string, at, run time.Duration) scenario.Job {
	return scenario.Job{ID: id, Kind: scenario.QuantizeJob, At: at, Run: run, Slices: 1, Start: 10 * sec, Stop: sec / 2, LosesAll: true}
}

// train checkpoints every minute of progress, which takes save each time.
func train(id string, at, run, save time.Duration) scenario.Job {
	return scenario.Job{ID: id, Kind: scenario.TrainJob, At: at, Run: run, Slices: 1, Start: 30 * sec, Grace: 30 * sec,
		Save: scenario.Save{Every: 60 * sec, Median: save, Pauses: true}}
}

func backlog() *scenario.Job {
	j := embed("backlog", 0, 0)
	return &j
}

// script is a policy that does what it is told, when it is told.
type script struct {
	at   map[time.Duration][]arbiter.Move
	left []time.Duration
	got  []arbiter.Outcome
	when []time.Duration
	seen map[time.Duration]string // phases of all slices, one letter each, by the second
}

func plan(at map[time.Duration][]arbiter.Move) *script {
	return &script{at: at, left: slices.Sorted(maps.Keys(at)), seen: map[time.Duration]string{}}
}

func (p *script) Every() time.Duration { return sec / 4 }

func (p *script) Look(o arbiter.Observation, v *View) (out []arbiter.Order) {
	now := Since(o.Now)
	for len(p.left) > 0 && p.left[0] <= now {
		for i, m := range p.at[p.left[0]] {
			out = append(out, arbiter.Order{Move: m, Gen: uint64(now) + uint64(i)})
		}
		p.left = p.left[1:]
	}
	line := ""
	for _, sl := range v.Slices {
		line += map[arbiter.Phase]string{arbiter.Free: "-", arbiter.Loading: "l", arbiter.Ready: "R", arbiter.Draining: "d", arbiter.Asleep: "z",
			arbiter.JobStart: "s", arbiter.JobRuns: "J", arbiter.Checkpoint: "c", arbiter.Reshaping: "h", arbiter.Unhealthy: "x"}[sl.Phase]
	}
	p.seen[now] = line
	return out
}

func (p *script) Settle(now time.Time, o arbiter.Outcome) {
	p.got, p.when = append(p.got, o), append(p.when, Since(now))
}

func do(a arbiter.Action, slice, model, job string, gang ...string) arbiter.Move {
	return arbiter.Move{Action: a, Slice: slice, Model: model, Job: job, Gang: gang, Reason: "test"}
}

// holds compares the accounts named with what they should be; all others must be 0.
func holds(t *testing.T, r *Result, want map[arbiter.Account]float64) {
	t.Helper()
	for _, a := range arbiter.Accounts {
		if got := r.Ledger[a]; got != want[a] {
			t.Errorf("%s is %v slice-seconds, want %v", a, got, want[a])
		}
	}
}

// A static day in small. Job a runs on one slice from 10 to 110 s. Job b needs a
// whole GPU at 200 s: reshaped until 202, started until 232, runs 60 s, saves 20,
// runs 60, saves 20, runs the last 30 and ends at 422.
func TestStaticByHand(t *testing.T) {
	b := train("b", 200*sec, 150*sec, 20*sec)
	b.Slices, b.GPUs = 0, 1
	r := run(t, tiny(embed("a", 0, 100*sec), b), &Static{}, Options{Name: "static", Spans: 100})
	holds(t, r, map[arbiter.Account]float64{
		arbiter.ServingUseful: 10 * 0.5,
		arbiter.WarmReserve:   7*600 - 5,
		arbiter.JobStarting:   10 + 30*7,
		arbiter.JobUseful:     100 + 150*7,
		arbiter.Checkpointing: 2 * 20 * 7,
		arbiter.ReshapeTime:   2 * 7,
		arbiter.FreeEmpty:     6*110 + 7*90 + 7*(600-422),
	})
	if want := (5 + 100 + 150*7) / (14. * 600); r.Aloft != want {
		t.Errorf("aloft ratio %v, want %v", r.Aloft, want)
	}
	if m := r.Models[0]; m.Good != 10 || m.TTFT.Max != 0.5 || m.TPOT.Max != 0.01 || m.ReadyMean != 7 {
		t.Errorf("serving %+v", m)
	}
	j := r.Jobs
	if j.Queueing.Mean != 1 || j.Completion.Mean != (110+222)/2. || j.Finished != 2 || j.QueuedBy != (QueuedBy{Shape: 2}) {
		t.Errorf("queueing %+v by %+v, completion %+v of %d", j.Queueing, j.QueuedBy, j.Completion, j.Finished)
	}
	if want := (100 + 150*7.) / (7 * 600); j.OfferedLoad != want {
		t.Errorf("offered load %v, want %v", j.OfferedLoad, want)
	}
	if want := (10 + 30*7 + 2*20*7) / (100 + 150*7.); j.Overhead != want || j.Lost != 0 {
		t.Errorf("overhead %v, want %v; lost %v", j.Overhead, want, j.Lost)
	}
	if m := r.Series; m.Minutes != 10 || m.Slices[arbiter.JobUseful][0] != 0.833 || m.Models[0].Ready[3] != 7 || m.Models[0].P99[2] != 0.5 {
		t.Errorf("series of %d minutes: %+v", m.Minutes, m)
	}
}

// A loan out and back: the ready replica has nothing to finish, the backlog starts
// at 10 s and runs from 20. The reclaim at 50 lets it stop until 50.5, which costs
// 5 s of work, and wakes the sleeper until 53.5.
func TestReclaimByHand(t *testing.T) {
	w := tiny()
	w.Backlog = backlog()
	p := plan(map[time.Duration][]arbiter.Move{
		10 * sec: {do(arbiter.Lend, "g0/s0", "m", "backlog")},
		50 * sec: {do(arbiter.Reclaim, "g0/s0", "m", "backlog")},
	})
	r := run(t, w, p, Options{Name: "script"})
	holds(t, r, map[arbiter.Account]float64{
		arbiter.ServingUseful: 5, arbiter.WarmReserve: 7*600 - 5 - 43.5,
		arbiter.JobStarting: 10, arbiter.JobUseful: 25, arbiter.LostWork: 5, arbiter.Checkpointing: 0.5,
		arbiter.LoadWake: 3, arbiter.Held: 7 * 600, // the backlog waits always
	})
	if o := p.got[1]; p.when[1] != 53500*time.Millisecond || o.Took != 3500*time.Millisecond || o.Lost != 5*sec || o.Err != nil || o.Gen != uint64(50*sec) {
		t.Errorf("reclaim ended at %v: %+v", p.when[1], o)
	}
	// Bound: twice the stop, half a second for a kill, and the wake, which never
	// takes longer than its median here.
	want := ReclaimTime{Class: "fast", Kept: 1, BoundS: 1 + 0.5 + 3, Took: spreadOf([]float64{3.5})}
	if len(r.Reclaims) != 1 || r.Reclaims[0] != want {
		t.Errorf("reclaims %+v, want %+v", r.Reclaims, want)
	}
	for at, want := range map[time.Duration]string{9 * sec: "RRRRRRR", 11 * sec: "sRRRRRR", 21 * sec: "JRRRRRR", 50250 * time.Millisecond: "cRRRRRR",
		51 * sec: "lRRRRRR", 54 * sec: "RRRRRRR"} {
		if got := p.seen[at][:7]; got != want {
			t.Errorf("at %v the slices are %s, want %s", at, got, want)
		}
	}
	if r.Jobs.BacklogS != 25 || r.Jobs.ProgressS != 30 || r.Jobs.LostS != 5 {
		t.Errorf("jobs %+v", r.Jobs)
	}
}

// What a stop takes from each kind, 100 s of progress after the start; the job is
// lent a slice at 0 and told to leave at 30 + 100 s, or 10 + 100 s.
func TestStops(t *testing.T) {
	for _, c := range []struct {
		name       string
		job        scenario.Job
		stopAt     time.Duration
		left, lost time.Duration // from the signal on
		incident   string
	}{
		// Saved at 60 s of progress until 110 s; 40 s more by 150.
		{"saves on signal", train("j", 0, 500*sec, 20*sec), 150 * sec, 20 * sec, 0, ""},
		// A save of 29 s at 90 to 119 s, 31 s of progress by 150, saved until 179.
		{"within its grace", train("j", 0, 500*sec, 29*sec), 150 * sec, 29 * sec, 0, ""},
		// A save of 31 s at 90 to 121 s; the one on signal takes longer than the grace:
		// 29 s since the last are lost.
		{"grace ends", train("j", 0, 500*sec, 31*sec), 150 * sec, 30 * sec, 29 * sec, "grace_ended"},
		// The signal at 100 s meets the save of 90 to 110 s, which is good.
		{"while it saves", train("j", 0, 500*sec, 20*sec), 100 * sec, 10 * sec, 0, ""},
		{"before it makes progress", train("j", 0, 500*sec, 20*sec), 20 * sec, 0, 0, ""},
		{"rows in flight", embed("j", 0, 500*sec), 110 * sec, sec / 2, 5 * sec, ""},
		{"fewer rows than that", embed("j", 0, 500*sec), 13 * sec, sec / 2, 3 * sec, ""},
		{"everything", quantize("j", 0, 500*sec), 110 * sec, sec / 2, 100 * sec, ""},
	} {
		p := plan(map[time.Duration][]arbiter.Move{0: {do(arbiter.Lend, "g1/s0", "", "j")}, c.stopAt: {do(arbiter.Vacate, "g1/s0", "", "j")}})
		r := run(t, tiny(c.job), p, Options{Name: c.name})
		if len(p.got) != 2 || p.got[1].Err != nil || p.got[1].Took != c.left || p.got[1].Lost != c.lost {
			t.Errorf("%s: %+v, want left after %v and %v lost", c.name, p.got[1:], c.left, c.lost)
		}
		if got := time.Duration(r.Jobs.LostS * 1e9); got != c.lost {
			t.Errorf("%s: %v lost in all, want %v", c.name, got, c.lost)
		}
		if (c.incident != "") != (len(r.Incidents) == 1) || c.incident != "" && r.Incidents[0].Kind != c.incident {
			t.Errorf("%s: incidents %+v, want %q", c.name, r.Incidents, c.incident)
		}
		// Queued again for good: from the moment it left to the end.
		if want := (600*sec - c.stopAt - c.left).Seconds(); r.Jobs.List[0].QueuedS != want || r.Jobs.List[0].Stops != 1 {
			t.Errorf("%s: queued %v s, want %v", c.name, r.Jobs.List[0].QueuedS, want)
		}
	}
}

// A gang starts on all its slices or on none, and leaves them together; the model
// for which one is reclaimed has no sleeper there.
func TestGangLeavesTogether(t *testing.T) {
	g := train("g", 0, 500*sec, 20*sec)
	g.Slices = 2
	p := plan(map[time.Duration][]arbiter.Move{
		0:        {do(arbiter.Lend, "g1/s0", "", "g", "g1/s3")},
		50 * sec: {do(arbiter.Reclaim, "g1/s3", "m", "g")},
	})
	r := run(t, tiny(g), p, Options{Name: "script"})
	// Progress from 30 to 50 s, saved until 70, then a start from cold of 45 s.
	if o := p.got[1]; o.Took != 65*sec || o.Err != nil {
		t.Errorf("reclaim %+v", o)
	}
	for at, want := range map[time.Duration]string{1 * sec: "s--s---", 40 * sec: "J--J---", 60 * sec: "c--c---", 71 * sec: "---l---", 116 * sec: "---R---"} {
		if got := p.seen[at][7:]; got != want {
			t.Errorf("at %v the slices are %s, want %s", at, got, want)
		}
	}
	if c := r.Reclaims[0]; c.Class != "saves cold" || c.Kept != 1 || c.BoundS != 30.5+45 {
		t.Errorf("reclaims %+v", r.Reclaims)
	}
}

// A job that is told to leave leaves the sleeper beneath it; told again, the slice
// is emptied of that too. A reshape ends what sleeps on the GPU: to serve there
// again is a start from cold.
func TestReshapeEndsSleepers(t *testing.T) {
	small, _ := gpu.Lookup("A100-80GB")
	whole, _ := small.Profile("7g.80gb")
	one, _ := small.Profile("1g.10gb")
	at := map[time.Duration][]arbiter.Move{}
	for _, id := range []string{"g0/s0", "g0/s1", "g0/s2", "g0/s3", "g0/s4", "g0/s5", "g0/s6"} {
		at[10*sec] = append(at[10*sec], do(arbiter.Lend, id, "m", "backlog"))
		at[15*sec] = append(at[15*sec], do(arbiter.Vacate, id, "", ""))
	}
	at[17*sec] = []arbiter.Move{do(arbiter.Vacate, "g0/s6", "", "")}
	at[20*sec] = []arbiter.Move{{Action: arbiter.Reshape, GPU: 0, Layout: whole.Placements()}}
	at[30*sec] = []arbiter.Move{{Action: arbiter.Reshape, GPU: 0, Layout: one.Placements()[:7]}}
	at[40*sec] = []arbiter.Move{do(arbiter.Wake, "g0/s0", "m", ""), do(arbiter.Start, "g0/s1", "m", "")}
	p := plan(at)
	w := tiny()
	w.Backlog = backlog()
	r := run(t, w, p, Options{Name: "script"})
	for at, want := range map[time.Duration]string{11 * sec: "sssssss-------", 16 * sec: "zzzzzzz-------", 18 * sec: "zzzzzz--------", 21 * sec: "hhhhhhh-------", 23 * sec: "--------", 31 * sec: "h-------",
		33 * sec: "--------------", 41 * sec: "-l------------", 86 * sec: "-R------------"} {
		if got := p.seen[at]; got != want {
			t.Errorf("at %v the slices are %s, want %s", at, got, want)
		}
	}
	wake := p.got[slices.IndexFunc(p.got, func(o arbiter.Outcome) bool { return o.Move.Action == arbiter.Wake })]
	if wake.Err == nil || !strings.Contains(wake.Err.Error(), "none of the model sleeps there") {
		t.Errorf("a wake without a sleeper: %+v", wake)
	}
	// 2 s × 7, twice.
	if r.Ledger[arbiter.ReshapeTime] != 28 || r.Ledger[arbiter.LoadWake] != 45 {
		t.Errorf("reshape %v, load %v", r.Ledger[arbiter.ReshapeTime], r.Ledger[arbiter.LoadWake])
	}
}

// Orders that are not legal in the state that they meet are refused, each with an
// outcome, and change nothing.
func TestRefusals(t *testing.T) {
	wide := train("w", 0, 500*sec, 20*sec)
	wide.Slices, wide.GPUs = 0, 1
	for why, m := range map[string]arbiter.Move{
		"no slice":                  do(arbiter.Start, "g9/s0", "m", ""),
		"no model":                  do(arbiter.Start, "g1/s0", "x", ""),
		"the slice is ready":        do(arbiter.Start, "g0/s1", "m", ""),
		"takes one slice":           do(arbiter.Start, "g1/s0", "m", "", "g1/s1"),
		"no job \"x\" waits":        do(arbiter.Lend, "g1/s0", "", "x"),
		"on 1 slices at once":       do(arbiter.Lend, "g1/s0", "", "a", "g1/s1"),
		"named twice":               do(arbiter.Lend, "g1/s0", "", "a", "g1/s0"),
		"needs 7g.80gb":             do(arbiter.Lend, "g1/s0", "", "w"),
		"no job is there":           do(arbiter.Reclaim, "g1/s0", "m", ""),
		"has its slices already":    do(arbiter.Lend, "g1/s1", "", "here"),
		"here is there":             do(arbiter.Reclaim, "g1/s6", "m", "a"),
		"g1/s6 is not idle":         {Action: arbiter.Reshape, GPU: 1, Layout: []gpu.Placement{{Profile: "7g.80gb", Size: 8}}},
		"has that shape":            {Action: arbiter.Reshape, GPU: 1, Layout: sevenths()},
		"neither 7 of 1g.10gb":      {Action: arbiter.Reshape, GPU: 1, Layout: sevenths()[:6]},
		"no such GPU":               {Action: arbiter.Reshape, GPU: 2, Layout: sevenths()},
		"nothing that can be done":  do("fly", "g1/s0", "", ""),
		"is moving already":         do(arbiter.Lend, "g0/s0", "", "a"),
		"sleeps there":              do(arbiter.Wake, "g1/s0", "m", ""),
		"\"\" waits":                do(arbiter.Lend, "g1/s0", "", ""),
		"there is no slice \"\"":    do(arbiter.Vacate, "", "", ""),
		"is moving already: vacate": do(arbiter.Vacate, "g0/s0", "", ""),
	} {
		p := plan(map[time.Duration][]arbiter.Move{
			0: {do(arbiter.Lend, "g1/s6", "", "here")},
			// A request is there from 100 s on: it drains until 101.5.
			100*sec + sec/4: {do(arbiter.Vacate, "g0/s0", "", "")},
			100*sec + sec/2: {m},
		})
		w := tiny(embed("a", 0, 100*sec), embed("here", 0, 500*sec), wide)
		r := run(t, w, p, Options{Name: why})
		found := false
		for _, o := range p.got {
			found = found || o.Err != nil && strings.Contains(o.Err.Error(), why)
			if o.Err != nil && o.Took != 0 {
				t.Errorf("%s: refused after %v", why, o.Took)
			}
		}
		if !found {
			t.Errorf("%q was not the answer: %+v", why, p.got)
		}
		refused := 0
		for _, c := range r.Moves {
			refused += c.Refused
		}
		if refused != 1 {
			t.Errorf("%s: %d refused: %+v", why, refused, r.Moves)
		}
	}
}

func sevenths() []gpu.Placement {
	f, _ := gpu.Lookup("A100-80GB")
	p, _ := f.Profile("1g.10gb")
	return p.Placements()[:7]
}

// A wake that fails takes its 3 s and then 45 from cold, and is an injected fault.
func TestWakeFails(t *testing.T) {
	w := tiny()
	w.Backlog, w.Scenario.Faults.Wake = backlog(), 1
	p := plan(map[time.Duration][]arbiter.Move{
		10 * sec: {do(arbiter.Lend, "g0/s0", "m", "backlog")},
		50 * sec: {do(arbiter.Reclaim, "g0/s0", "m", "backlog")},
	})
	r := run(t, w, p, Options{Name: "script"})
	if o := p.got[1]; o.Took != 48*sec+sec/2 || !o.Fault || o.Err != nil {
		t.Errorf("reclaim %+v", o)
	}
	if c := r.Reclaims[0]; c.Faulted != 1 || c.Broken != 0 || c.Kept != 0 {
		t.Errorf("reclaims %+v", c)
	}
	if len(r.Incidents) != 2 || r.Incidents[0].Kind != "wake_failed" || r.Incidents[1].Kind != "bound_broken" || !r.Incidents[1].Fault {
		t.Errorf("incidents %+v", r.Incidents)
	}
}

// Every failure of a checkpoint loses what came since the last good one.
func TestCheckpointFails(t *testing.T) {
	w := tiny(train("j", 0, 500*sec, 20*sec))
	w.Scenario.Faults.Checkpoint = 1
	p := plan(map[time.Duration][]arbiter.Move{0: {do(arbiter.Lend, "g1/s0", "", "j")}, 150 * sec: {do(arbiter.Vacate, "g1/s0", "", "")}})
	r := run(t, w, p, Options{Name: "script"})
	// Runs 30 to 90, saves in vain to 110, runs to 150: 100 s, all lost at 170.
	if p.got[1].Lost != 100*sec || p.got[1].Took != 20*sec || r.Jobs.LostS != 100 {
		t.Errorf("%+v, lost %v", p.got[1], r.Jobs.LostS)
	}
}

// A GPU that fails takes everything on it away and returns empty, in the same
// shape, after its repair. What fails is the same under every policy.
func TestGPUFails(t *testing.T) {
	w := tiny(embed("a", 0, 1000*sec))
	w.Seed, w.Scenario.Faults.GPU = 2, 24*60/4. // a failure in four minutes
	var at [2][]float64
	for i, p := range []Policy{&Static{}, plan(map[time.Duration][]arbiter.Move{0: {do(arbiter.Lend, "g1/s0", "", "a")}})} {
		r := run(t, w, p, Options{Name: "faults", Spans: 1000})
		for _, in := range r.Incidents {
			if in.Kind == "gpu_failed" {
				at[i] = append(at[i], in.AtS)
			}
		}
		if i == 0 && (r.Ledger[arbiter.Broken] == 0 || r.Ledger[arbiter.LoadWake] == 0 || r.Ledger[arbiter.LostWork] == 0) {
			t.Errorf("static: %+v", r.Ledger)
		}
	}
	if len(at[0]) < 3 || !slices.Equal(at[0], at[1]) {
		t.Errorf("failures at %v under one policy, %v under the other", at[0], at[1])
	}
}

func wholeLayout() []gpu.Placement { return []gpu.Placement{{Profile: "7g.80gb", Size: 8}} }

// TestReplicas: the arbiter is told how many replicas an operator allows; where a
// scenario does not say, one and a quarter more than the share of seven, rounded up.
func TestReplicas(t *testing.T) {
	for said, want := range map[scenario.Replicas][2]int{{}: {1, 9}, {Min: 2, Max: 7}: {2, 7}, {Min: 0, Max: 12}: {0, 12}} {
		w := tiny()
		w.Scenario.Models[0].Replicas = said
		r, err := newRun(w, plan(nil), Options{})
		if err != nil {
			t.Fatal(err)
		}
		r.observe()
		if m := r.seen.Models[0]; m.Min != want[0] || m.Max != want[1] {
			t.Errorf("%+v: from %d to %d replicas, want %v", said, m.Min, m.Max, want)
		}
	}
}
