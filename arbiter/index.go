package arbiter

import (
	"slices"
	"time"

	"aloft/gpu"
)

// index finds jobs and claims without looking through all of them. It is made
// once a decision, and only if somebody asks.
type index struct {
	last      int // the model that was found last
	jobAt     map[string]int
	on        []*Job          // by slice: whose it is when it is lent; nil = not yet asked
	owner     []int           // by slice: one more than the claim that keeps it; nil = not worked out
	claimants map[string]bool // jobs with a claim; nil = not worked out
	shut      map[string]bool // slices that no move may begin on
	shutIs    bool            // shut has been worked out
}

// job is a job by ID; one that is not listed has no cost and no grace.
func (d *decision) job(id string) *Job {
	if d.jobAt == nil {
		d.jobAt = make(map[string]int, len(d.Jobs))
		for i := range d.Jobs {
			d.jobAt[d.Jobs[i].ID] = i
		}
	}
	if i, ok := d.jobAt[id]; ok {
		return &d.Jobs[i]
	}
	return &Job{ID: id}
}

// holderOf is the job that a lent slice has, or is given.
func (d *decision) holderOf(i int) *Job {
	if d.on == nil {
		d.on = make([]*Job, len(d.slices))
	}
	if d.on[i] == nil {
		d.on[i] = d.job(d.slices[i].Job)
	}
	return d.on[i]
}

// claimed reports whether a claim keeps the slice.
func (d *decision) claimed(i int) bool { return d.claimOf(i) > 0 }

// claimOf is one more than the index of the claim that keeps a slice; 0 = none.
func (d *decision) claimOf(i int) int {
	if len(d.Claims) == 0 && len(d.plan.Claims) == 0 {
		return 0
	}
	if d.owner == nil {
		d.owners()
	}
	return d.owner[i]
}

// owners enters the claims of the snapshot in the index, all in one pass. Of two
// that keep one slice the later has it.
func (d *decision) owners() {
	d.owner = make([]int, len(d.slices))
	byID, byGPU := map[string]int{}, map[int][]int{}
	for k := range d.Claims {
		for _, id := range d.Claims[k].Slices {
			byID[id] = k + 1
		}
		for _, g := range d.Claims[k].GPUs {
			byGPU[g] = append(byGPU[g], k)
		}
	}
	if len(byID)+len(byGPU) == 0 {
		return
	}
	for i := range d.slices {
		s := &d.slices[i]
		d.owner[i] = byID[s.ID]
		for _, k := range byGPU[s.GPU] {
			if cut := d.Claims[k].Cut; cut.Size == 0 || cut.Mask()&gpu.Mask(s.Start, s.Shape.MemorySlices) != 0 {
				d.owner[i] = max(d.owner[i], k+1)
			}
		}
	}
}

// closed reports whether no move may begin on the slice: a maintenance window.
func (d *decision) closed(s *Slice) bool {
	if len(d.ClosedSlices) == 0 && len(d.ClosedGPUs) == 0 {
		return false
	}
	return slices.Contains(d.ClosedGPUs, s.GPU) || slices.Contains(d.ClosedSlices, s.ID)
}

// pinned reports whether only the serving of one model may have the slice.
func (d *decision) pinned(s *Slice) bool {
	if !d.shutIs {
		d.shutIs = true
		for i := range d.Models {
			for _, id := range d.Models[i].Pinned {
				if d.shut == nil {
					d.shut = map[string]bool{}
				}
				d.shut[id] = true
			}
		}
	}
	return d.shut[s.ID]
}

// leaving is how long the job takes to leave a slice.
func (j *Job) leaving() time.Duration {
	switch {
	case j.Leave > 0:
		return j.Leave
	case j.Fast():
		return 0
	}
	return j.Grace
}

// often is the cost, beside its own, of stopping a job that was stopped too often
// within the hour: others go first, but none is beyond reach when serving needs it.
const often = time.Hour

// preemptCost is what stopping the job costs in slice time, all its slices.
func (d *decision) preemptCost(j *Job) time.Duration {
	cost := j.Cost()
	if j.MinWidth > 1 && j.Have <= j.MinWidth { // a gang stops whole
		cost *= time.Duration(max(j.Have, 1))
	}
	if len(j.Preempted) > 0 && j.stopped(d.Now) >= d.mostStops() {
		cost += often
	}
	return cost
}

// stopped is how often the job was stopped within the last hour.
func (j *Job) stopped(now time.Time) (n int) {
	for _, t := range j.Preempted {
		if now.Sub(t) < time.Hour {
			n++
		}
	}
	return n
}
