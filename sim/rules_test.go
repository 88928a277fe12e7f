package sim

import (
	"strings"
	"testing"
	"time"

	"aloft/arbiter"
	"aloft/sim/scenario"
)

// The rules of the standard scenarios (configs/scenarios/README.md), sentence by
// sentence, and the test that holds the engine to each:
//
//	every GPU starts as seven slices; shares from GPU 0 on   TestStart
//	multiples of seven are whole GPUs, at once               TestStaticByHand, TestRefusals
//	wider jobs that fit one server stay in one               TestOneServer
//	a change of shape costs reshape_s                        TestStaticByHand, TestReshapeEndsSleepers
//	replicas start ready; both ends are not judged           TestStart, TestEndsAreNotJudged
//	knee work of good requests alone is useful               TestLateIsNotUseful
//	one stream per cause                                     TestGPUFails, TestDrawsAreOfThePlace
//	useful job: progress that is still kept at the end       TestKeptAtTheEnd, TestReclaimByHand
//	lost work is charged when it is lost                     TestKeptAtTheEnd
//	overhead: starts, restarts, checkpoints                  TestStaticByHand
//	aloft: every slice-second powered on, broken ones too    TestGPUFails (the ledger sums up, or the run fails)
//	queueing: all seconds queued, after a preemption too     TestStops
//	completion: unfinished jobs with their age               TestKeptAtTheEnd
//	backlog and rows do not count in queueing                TestReclaimByHand
//	reclaim: from the decision to a ready replica            TestReclaimByHand, TestWakeFails
//	the bound is fixed before the run                        TestReclaimByHand, TestGangLeavesTogether
//	misses caused, gross and net                             TestCaused
//	rows take what serving leaves                            TestRows

func TestStart(t *testing.T) {
	w := tiny()
	w.Scenario.Models[0].Static = 9
	p := plan(nil)
	run(t, w, p, Options{Name: "nothing"})
	if got := p.seen[0]; got != "RRRRRRRRR-----" {
		t.Errorf("at the start the slices are %s", got)
	}
}

func TestOneServer(t *testing.T) {
	wide := train("w", 0, 100*sec, 20*sec)
	wide.Slices, wide.GPUs = 0, 2
	for _, servers := range []int{2, 1} { // 1: wider than a server, and so anywhere
		w := tiny(wide)
		w.Scenario.Models[0].Static, w.Scenario.Cluster.ServerGPUs = 0, servers
		w.Traffic[0].Arrivals = nil
		r := run(t, w, &Static{}, Options{Name: "static"})
		// Reshaped until 2, started until 32, runs 60, saves 20, runs 40.
		if j := r.Jobs.List[0]; j.FinishS != 152 || j.StartS != 2 {
			t.Errorf("servers of %d: %+v", servers, j)
		}
	}
	w := tiny(wide)
	w.Scenario.Models[0].Static, w.Scenario.Cluster.ServerGPUs, w.Scenario.Cluster.GPUs = 0, 2, 4
	w.Traffic[0].Arrivals = nil
	whole := do(arbiter.Lend, "g1/s0", "", "w", "g2/s0")
	p := plan(map[time.Duration][]arbiter.Move{0: {{Action: arbiter.Reshape, GPU: 1, Layout: wholeLayout()}, {Action: arbiter.Reshape, GPU: 2, Layout: wholeLayout()}},
		10 * sec: {whole}})
	run(t, w, p, Options{Name: "two servers"})
	if o := p.got[2]; o.Err == nil || !strings.Contains(o.Err.Error(), "must stay in one") {
		t.Errorf("a job in two servers: %+v", o)
	}
}

// Requests at 100, 110 … 190 s: of the first 105 s and the last 425 nobody counts.
func TestEndsAreNotJudged(t *testing.T) {
	w := tiny()
	w.Scenario.Measure = scenario.Measure{WarmUpS: 105, TailS: 425}
	r := run(t, w, &Static{}, Options{Name: "static"})
	if m := r.Models[0]; m.Judged != [2]int{1, 8} || m.Requests != 7 || m.Good != 7 || m.TTFT.N != 7 {
		t.Errorf("judged %v: %+v", m.Judged, m.Served)
	}
	if r.Ledger[arbiter.ServingUseful] != 5 {
		t.Errorf("useful %v, want the work of all ten", r.Ledger[arbiter.ServingUseful])
	}
}

// A target that the prompts alone need longer for: all miss, would on any replica,
// and their knee work is late.
func TestLateIsNotUseful(t *testing.T) {
	w := tiny()
	w.Scenario.Models[0].SLO.TTFTS = 0.4
	r := run(t, w, &Static{}, Options{Name: "static"})
	m := r.Models[0]
	if m.Good != 0 || m.Hopeless != 10 || r.Ledger[arbiter.ServingUseful] != 0 {
		t.Errorf("%+v, useful %v", m.Served, r.Ledger[arbiter.ServingUseful])
	}
	if got := r.Ledger[arbiter.ServingLate] + 0.5*float64(m.Refused); got != 5 {
		t.Errorf("late %v slice-seconds and %d refused, want the work of all ten", got, m.Refused)
	}
}

// Job e runs from 10 s on and is still at it at 600. Job q runs from 10 s on, loses
// its 50 s at 60, and never comes back.
func TestKeptAtTheEnd(t *testing.T) {
	p := plan(map[time.Duration][]arbiter.Move{
		0:        {do(arbiter.Lend, "g1/s0", "", "e"), do(arbiter.Lend, "g1/s1", "", "q")},
		60 * sec: {do(arbiter.Vacate, "g1/s1", "", "")},
	})
	r := run(t, tiny(embed("e", 0, 1000*sec), quantize("q", 0, 1000*sec)), p, Options{Name: "script"})
	if r.Ledger[arbiter.JobUseful] != 590 || r.Ledger[arbiter.LostWork] != 50 {
		t.Errorf("useful %v, lost %v", r.Ledger[arbiter.JobUseful], r.Ledger[arbiter.LostWork])
	}
	if j := r.Jobs; j.Unfinished != 2 || j.Completion.Mean != 600 || j.ProgressS != 640 || j.Lost != 50/640. {
		t.Errorf("jobs %+v", j)
	}
	// Until 60 s both ran, 50 s each. The loss comes in the second minute, which has
	// 60 s of e to take it from.
	useful, lost := r.Series.Slices[arbiter.JobUseful], r.Series.Slices[arbiter.LostWork]
	if useful[0] != 1.667 || useful[1] != 0.167 || lost[0] != 0 || lost[1] != 0.833 || useful[2] != 1 {
		t.Errorf("useful by the minute %v, lost %v", useful, lost)
	}
}

// The same start on the same slice takes the same time, whatever else a policy did.
func TestDrawsAreOfThePlace(t *testing.T) {
	var took [2]time.Duration
	for i, before := range [][]arbiter.Move{nil, {do(arbiter.Start, "g1/s5", "m", ""), do(arbiter.Start, "g1/s4", "m", "")}} {
		w := tiny()
		w.Scenario.Models[0].Start.Sigma = 0.15
		p := plan(map[time.Duration][]arbiter.Move{10 * sec: before, 20 * sec: {do(arbiter.Start, "g1/s0", "m", "")}})
		run(t, w, p, Options{Name: "script"})
		for _, o := range p.got {
			if o.Move.Slice == "g1/s0" {
				took[i] = o.Took
			}
		}
	}
	if took[0] == 0 || took[0] != took[1] || took[0] == 45*sec {
		t.Errorf("the start took %v and, after others, %v", took[0], took[1])
	}
}

// Rows ride in ready replicas: up to 0.85 of one, of which 0.8 comes out. The seven
// replicas do 5 slice-seconds of serving, which is their time less.
func TestRows(t *testing.T) {
	w := tiny()
	w.Rows = true
	r := run(t, w, &rowsOn{}, Options{Name: "rows"})
	if got, most := r.Ledger[arbiter.JobUseful], 0.8*0.85*7*600; got > most || got < most-0.8*5-1 {
		t.Errorf("rows did %v slice-seconds, want about %v less what requests took", got, most)
	}
}

// rowsOn is static with rows.
type rowsOn struct{ Static }

func (p *rowsOn) Look(o arbiter.Observation, v *View) []arbiter.Order {
	v.Tune(arbiter.Setting{Model: "m", Rows: true})
	return p.Static.Look(o, v)
}

// Job four meets two idle slices and two of the backlog, which leaves them within
// 0.5 s. A job that comes meanwhile waits behind it: what four has is kept for it.
func TestQueueKeepsWhileMoreComes(t *testing.T) {
	three, four := train("three", 0, 400*sec, 20*sec), train("four", 100*sec, 100*sec, 20*sec)
	three.Slices, four.Slices = 3, 4
	two := embed("two", 0, 90*sec) // until 100
	two.Slices = 2
	w := tiny(three, two, four, embed("behind", 100200*time.Millisecond, 10*sec))
	w.Backlog = backlog()
	r := run(t, w, &Static{}, Options{Name: "static"})
	if j := r.Jobs.List[2]; j.StartS != 100.5 {
		t.Errorf("four starts at %v s, want 100.5", j.StartS)
	}
}
