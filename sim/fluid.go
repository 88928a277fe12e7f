package sim

import (
	"cmp"
	"slices"
	"time"

	"aloft/arbiter"
	"aloft/sim/scenario"
)

// Fluid is the bound that no policy can pass: serving costs its knee work and
// nothing else, and jobs have every other slice-second, divisible, without starts,
// shapes or checkpoints. Knee work is the least that a request can cost and a ledger cannot
// exceed the hours there are, so the useful work is a true upper bound, and a loose
// one. Its jobs run in the order of the shortest rest, none on more slices than its
// width; their figures are indicative, not proven bounds. It serves no requests
// one by one, so that it has no attainment.
func Fluid(w *scenario.World) *Result {
	all := w.Scenario.Cluster.Slices()
	seconds := int((w.Horizon + time.Second - 1) / time.Second)
	room := make([]float64, seconds) // slice-seconds left to jobs in each second
	for i := range room {
		room[i] = float64(all) * min(1, (w.Horizon-time.Duration(i)*time.Second).Seconds())
	}
	res := &Result{Scenario: w.Scenario.Name, Policy: "bound", Seed: w.Seed, HorizonS: w.Horizon.Seconds(), Slices: all, Ledger: map[arbiter.Account]float64{}}
	serving := spend(w, room)
	jobs, foreground := fluid(w, room)
	spare := 0.0
	for _, left := range room {
		spare += left
	}
	if w.Backlog != nil {
		jobs.BacklogS, spare = spare, 0
	}
	jobs.ProgressS = foreground + jobs.BacklogS
	res.Jobs = jobs
	res.Ledger[arbiter.ServingUseful], res.Ledger[arbiter.JobUseful], res.Ledger[arbiter.FreeEmpty] = serving, jobs.ProgressS, spare
	res.Aloft = (serving + jobs.ProgressS) / (float64(all) * w.Horizon.Seconds())
	return res
}

// spend takes the knee work of all requests out of the seconds in which it
// arrives; what is more than a second has waits for the next. It returns what was
// done.
func spend(w *scenario.World, room []float64) float64 {
	arrived := make([]float64, len(room))
	for i := range w.Traffic {
		t := &w.Traffic[i]
		for _, a := range t.Arrivals {
			arrived[a.At/time.Second] += t.Knee(a.In, a.Out)
		}
	}
	done, waiting := 0.0, 0.0
	for i := range room {
		waiting += arrived[i]
		now := min(waiting, room[i])
		room[i] -= now
		waiting -= now
		done += now
	}
	return done
}

// fluidJob is a job under it.
type fluidJob struct {
	*scenario.Job
	rest float64 // slice-seconds
}

// fluid runs the foreground jobs in the room that serving leaves.
func fluid(w *scenario.World, room []float64) (f JobFigures, done float64) {
	f.Submitted = len(w.Jobs)
	offered := 0.0
	var active []fluidJob
	var queued, took []float64
	next := 0
	for i := range room {
		end := time.Duration(i+1) * time.Second
		for ; next < len(w.Jobs) && w.Jobs[next].At < end; next++ {
			active = append(active, fluidJob{&w.Jobs[next], w.Jobs[next].Work()})
			offered += w.Jobs[next].Work()
		}
		slices.SortFunc(active, func(a, b fluidJob) int { return cmp.Or(cmp.Compare(a.rest, b.rest), cmp.Compare(a.ID, b.ID)) })
		left := active[:0]
		for _, j := range active {
			now := min(j.rest, float64(j.Width()), room[i])
			room[i] -= now
			done += now
			if j.rest -= now; j.rest > 1e-9 {
				left = append(left, j)
				continue
			}
			c := (end - j.At).Seconds()
			f.Finished++
			took, queued = append(took, c), append(queued, max(0, c-j.Run.Seconds()))
		}
		active = left
	}
	for _, j := range active {
		age := (w.Horizon - j.At).Seconds()
		took, queued = append(took, age), append(queued, max(0, age-(j.Work()-j.rest)/float64(j.Width())))
	}
	f.Unfinished = f.Submitted - f.Finished
	f.Queueing, f.Completion = spreadOf(queued), spreadOf(took)
	if share := float64(w.Scenario.Cluster.Jobs); share > 0 {
		f.OfferedLoad = offered / (share * w.Horizon.Seconds())
	}
	return f, done
}
