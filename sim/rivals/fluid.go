package rivals

import (
	"cmp"
	"slices"
	"time"

	"aloft/sim/scenario"
)

// Bound is what no policy can pass in useful work: serving costs its knee work and
// nothing else, and jobs take every other slice-second, divisible, without starts,
// shapes or checkpoints. Its times of jobs, with the shortest rest first, are an
// indication and no bound. Nothing is run for it.
type Bound struct {
	Aloft      float64
	Queueing   float64 // seconds, mean: what a job took longer than its run
	Completion float64 // seconds, mean
	P95        float64 // of the completion, seconds
}

// fluidJob is a job with the work that it still needs, in slice-seconds.
type fluidJob struct {
	*scenario.Job
	rest float64
}

// Fluid computes the bound of a world.
func Fluid(w *scenario.World) Bound {
	slots, horizon := float64(w.Scenario.Cluster.Slices()), w.Horizon.Seconds()
	serving := knee(w)
	var waiting []fluidJob
	var took, run []float64
	used, next, carried := 0.0, 0, 0.0
	for second := range int(horizon) {
		for ; next < len(w.Jobs) && w.Jobs[next].At < time.Duration(second+1)*time.Second; next++ {
			j := &w.Jobs[next]
			at, _ := slices.BinarySearchFunc(waiting, j.Work(), func(f fluidJob, rest float64) int { return cmp.Compare(f.rest, rest) })
			waiting = slices.Insert(waiting, at, fluidJob{j, j.Work()})
		}
		carried += serving[second] // more than all slices can do waits a second
		busy := min(carried, slots)
		carried -= busy
		left := slots - busy
		used += busy
		for i := 0; i < len(waiting) && left > 0; i++ { // the order by rest stays: the first lose the most
			j := &waiting[i]
			got := min(left, float64(j.Width()), j.rest)
			left, used, j.rest = left-got, used+got, j.rest-got
			if j.rest <= 0 {
				took, run = append(took, float64(second+1)-j.At.Seconds()), append(run, j.Run.Seconds())
			}
		}
		waiting = slices.DeleteFunc(waiting, func(j fluidJob) bool { return j.rest <= 0 })
		slices.SortStableFunc(waiting, func(a, b fluidJob) int { return cmp.Compare(a.rest, b.rest) })
		if w.Backlog != nil {
			used += left
		}
	}
	for _, j := range waiting {
		took, run = append(took, horizon-j.At.Seconds()), append(run, j.Run.Seconds())
	}
	b := Bound{Aloft: used / (slots * horizon)}
	for i := range took {
		b.Completion += took[i] / float64(len(took))
		b.Queueing += max(0, took[i]-run[i]) / float64(len(took))
	}
	if slices.Sort(took); len(took) > 0 {
		b.P95 = took[(len(took)*95+99)/100-1]
	}
	return b
}

// knee is the knee work that arrives in each second, of all models.
func knee(w *scenario.World) []float64 {
	work := make([]float64, int(w.Horizon.Seconds())+1)
	for i := range w.Traffic {
		t := &w.Traffic[i]
		for _, a := range t.Arrivals {
			if second := int(a.At / time.Second); second < len(work) {
				work[second] += t.Knee(a.In, a.Out)
			}
		}
	}
	return work
}
