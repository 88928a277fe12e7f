package study

import (
	"aloft/arbiter"
	"aloft/sim"
)

// Unit is how a figure reads.
type Unit string

// The units.
const (
	Share   Unit = "%"      // kept as a share of 1
	Seconds Unit = "s"      //
	Times   Unit = "x"      // a factor
	Per100k Unit = "/100k"  // requests
	Count   Unit = ""       // and ratios as such
	Slices  Unit = "slices" //
)

// Figure is one number of a run, and what it means. docs/simulate.md repeats the
// meanings, and a test holds it to them.
type Figure struct {
	Name    string
	Unit    Unit
	Better  int // +1: more is better, −1: less is
	Meaning string
	// Relative figures are held against another run of the same world. Over seeds
	// their median counts, which one giant job disturbs less than a mean.
	Relative bool

	of func(world) (float64, bool) // false = the run has none
}

// world is a run with those of static and the pilot in the same world, which are
// nil where they were not run.
type world struct{ run, static, pilot *Run }

// judged reports whether requests were served: the fluid bound serves none.
func (r *Run) judged() bool { return r.Total.Requests > 0 }

func ratio(a, b float64) (float64, bool) {
	if b <= 0 {
		return 0, false
	}
	return a / b, true
}

// Figures are all that a study says of a run, in the order of its tables.
func Figures() []Figure { return figures }

var figures = []Figure{
	{"attainment", Share, +1, "judged requests that were good, over all judged requests: finished, first token and later tokens within the targets", false, func(w world) (float64, bool) {
		return w.run.Total.Attainment, w.run.judged()
	}},
	{"attainment_worst", Share, +1, "the same of the model that has the lowest", false, func(w world) (float64, bool) {
		return worst(w.run).Attainment, w.run.judged()
	}},
	{"caused", Per100k, -1, "misses caused by lending: requests that miss here and are good when the same arrivals meet the full static share, per 100,000 judged requests", false, func(w world) (float64, bool) {
		return all(w.run).GrossPer, len(w.run.Caused) > 0
	}},
	{"caused_net", Per100k, -1, "the same, less the requests that go the other way", false, func(w world) (float64, bool) {
		return all(w.run).NetPer, len(w.run.Caused) > 0
	}},
	{"aloft_ratio", Count, +1, "useful slice-seconds (knee work of good requests, job progress that was kept) over all powered-on slice-seconds", false, func(w world) (float64, bool) {
		return w.run.Aloft, true
	}},
	{"aloft_to_static", Times, +1, "aloft ratio over static's in the same world", true, func(w world) (float64, bool) {
		if w.static == nil {
			return 0, false
		}
		return ratio(w.run.Aloft, w.static.Aloft)
	}},
	{"aloft_to_pilot", Times, +1, "aloft ratio over the pilot's in the same world", true, func(w world) (float64, bool) {
		if w.pilot == nil {
			return 0, false
		}
		return ratio(w.run.Aloft, w.pilot.Aloft)
	}},
	{"queueing", Seconds, -1, "seconds that a submitted job was queued, also after a preemption; mean", false, func(w world) (float64, bool) {
		return w.run.Jobs.Queueing.Mean, w.run.Jobs.Queueing.N > 0
	}},
	{"queueing_p95", Seconds, -1, "the same, p95 over submitted jobs", false, func(w world) (float64, bool) {
		return w.run.Jobs.Queueing.P95, w.run.Jobs.Queueing.N > 0
	}},
	{"queueing_shorter", Times, +1, "static's mean queueing over this one's, same world", true, func(w world) (float64, bool) {
		if w.static == nil {
			return 0, false
		}
		return ratio(w.static.Jobs.Queueing.Mean, w.run.Jobs.Queueing.Mean)
	}},
	{"queueing_gap", Share, +1, "how much of the gap between static and the pilot is closed: (static − this) / (static − pilot) of mean queueing", true, func(w world) (float64, bool) {
		return gap(w, func(r *Run) float64 { return r.Jobs.Queueing.Mean })
	}},
	{"completion", Seconds, -1, "finish − submission of a submitted job, mean; an unfinished one counts with its age", false, func(w world) (float64, bool) {
		return w.run.Jobs.Completion.Mean, w.run.Jobs.Completion.N > 0
	}},
	{"completion_p95", Seconds, -1, "the same, p95 over submitted jobs", false, func(w world) (float64, bool) {
		return w.run.Jobs.Completion.P95, w.run.Jobs.Completion.N > 0
	}},
	{"completion_shorter", Times, +1, "static's mean completion over this one's, same world", true, func(w world) (float64, bool) {
		if w.static == nil {
			return 0, false
		}
		return ratio(w.static.Jobs.Completion.Mean, w.run.Jobs.Completion.Mean)
	}},
	{"completion_gap", Share, +1, "the gap closed, of mean completion", true, func(w world) (float64, bool) {
		return gap(w, func(r *Run) float64 { return r.Jobs.Completion.Mean })
	}},
	{"unfinished", Count, -1, "submitted jobs that were not finished at the end", false, func(w world) (float64, bool) {
		return float64(w.run.Jobs.Unfinished), w.run.Jobs.Submitted > 0
	}},
	{"job_load", Share, 0, "work of the submitted jobs over job share × horizon; factors belong to it", false, func(w world) (float64, bool) {
		return w.run.Jobs.OfferedLoad, w.run.Jobs.Submitted > 0
	}},
	{"lost", Share, -1, "job progress that was taken back, charged when it was lost, over progress made", false, func(w world) (float64, bool) {
		return w.run.Jobs.Lost, w.run.Jobs.ProgressS > 0
	}},
	{"overhead", Share, -1, "starts, restarts and checkpoints of jobs over progress made", false, func(w world) (float64, bool) {
		return w.run.Jobs.Overhead, w.run.Jobs.ProgressS > 0
	}},
	{"preemptions", Count, -1, "times that a submitted job was stopped", false, func(w world) (float64, bool) {
		return float64(w.run.Jobs.Preemptions), w.run.Jobs.Submitted > 0
	}},
	{"reclaims", Count, 0, "slices taken back from jobs for serving", false, func(w world) (float64, bool) {
		kept, broken, faulted := w.run.Reclaimed()
		return float64(kept + broken + faulted), w.run.judged()
	}},
	{"reclaims_kept", Share, +1, "reclaims that were ready within their bound, fixed before the run, over those that no injected fault hit", false, func(w world) (float64, bool) {
		kept, broken, _ := w.run.Reclaimed()
		return ratio(float64(kept), float64(kept+broken))
	}},
	{"ready", Slices, 0, "replicas that were ready to serve, mean over the time, all models", false, func(w world) (float64, bool) {
		sum := 0.0
		for _, m := range w.run.Models {
			sum += m.ReadyMean
		}
		return sum, w.run.judged()
	}},
	{"warm_reserve", Share, -1, "slice-seconds of replicas that were ready and had nothing to do, of all", false, func(w world) (float64, bool) {
		return ratio(w.run.Ledger[arbiter.WarmReserve], float64(w.run.Slices)*w.run.HorizonS)
	}},
}

// gap is how much of the gap between static and the pilot is closed.
func gap(w world, of func(*Run) float64) (float64, bool) {
	if w.static == nil || w.pilot == nil {
		return 0, false
	}
	return ratio(of(w.static)-of(w.run), of(w.static)-of(w.pilot))
}

// worst is the model with the lowest attainment.
func worst(r *Run) *sim.ModelResult {
	if len(r.Models) == 0 {
		return &sim.ModelResult{}
	}
	out := &r.Models[0]
	for i := range r.Models {
		if m := &r.Models[i]; m.Attainment < out.Attainment {
			out = m
		}
	}
	return out
}

// all is the row of Caused that is over all models.
func all(r *Run) sim.Cause {
	if len(r.Caused) == 0 {
		return sim.Cause{}
	}
	return r.Caused[len(r.Caused)-1]
}
