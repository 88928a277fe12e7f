package sim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"aloft/arbiter"
	"aloft/sim/scenario"
)

// work is the jobs.
type work struct {
	jobs    []*job // foreground by submission, then the backlog
	jobByID map[string]*job
	shown   []*job // as observed: those that wait or run, in order of submission
	totals  struct {
		progress, lost, backlog time.Duration // slice time
		preemptions             int
	}
}

// job is one job. All foreground jobs start on their full width or not at all.
type job struct {
	*scenario.Job
	backlog  bool
	kept     time.Duration // progress that was not lost
	saved    time.Duration // of it what a checkpoint holds
	tried    time.Duration // progress at the last try of a checkpoint
	saves    uint64        // tries
	queuedAt time.Duration
	lending  *move  // that brings it slices
	stint    *stint // foreground: while it holds slices
	held     []string
	stops    []time.Time // preemptions within the last hour
	result   JobResult
	ended    bool
}

// waits: it is in the queue, also while slices are made ready for it.
func (j *job) waits() bool { return !j.backlog && !j.ended && j.stint == nil }

// stint is a job on slices, from its start there until it has left. A backlog
// has one for each slice, another job one at most.
type stint struct {
	job     *job
	slots   []*slot
	units   int
	from    time.Duration // up to when its progress is counted
	made    time.Duration // progress of this stint
	running bool          // it makes progress
	saving  bool          // a checkpoint is under way that will be good
	leaving bool
	next    *event  // start, checkpoint, end, or that it has left
	waiters []*move // that want its slices
}

// submitAll lets every job come at its time.
func (r *engine) submitAll() {
	r.jobByID = map[string]*job{}
	for i := range r.world.Jobs {
		j := &job{Job: &r.world.Jobs[i]}
		j.result = JobResult{ID: j.ID, Kind: string(j.Kind), Width: j.Width(), AtS: seconds(j.At), StartS: -1, FinishS: -1}
		r.jobs = append(r.jobs, j)
		r.after(j.At, func() { r.submit(j) })
	}
	if b := r.world.Backlog; b != nil {
		j := &job{Job: b, backlog: true}
		r.jobs = append(r.jobs, j)
		r.submit(j)
	}
}

func (r *engine) submit(j *job) {
	r.jobByID[j.ID] = j
	r.shown = append(r.shown, j)
	r.seen.Jobs = append(r.seen.Jobs, r.describe(j))
	r.queue(j)
}

// queue: the job waits from now on.
func (r *engine) queue(j *job) {
	r.advance()
	j.queuedAt = r.now
	r.book.waiting(j, +1)
	r.kick = true
}

// dequeue: it has got its slices.
func (r *engine) dequeue(j *job) {
	r.advance()
	r.book.waiting(j, -1)
	j.result.QueuedS += (r.now - j.queuedAt).Seconds()
}

// begin starts a job on slices that are idle and its own now.
func (r *engine) begin(j *job, on []*slot) {
	t := &stint{job: j, slots: on}
	if !j.backlog {
		r.dequeue(j)
		j.stint = t
		if j.result.StartS < 0 {
			j.result.StartS = seconds(r.now)
		}
	}
	for _, s := range on {
		s.used = r.uses(j, s)
		t.units += s.used
		s.stint, s.phase = t, arbiter.JobStart
		j.held = append(j.held, s.ID)
		r.refresh(s)
	}
	t.next = r.after(j.Start, func() { r.proceed(t) })
}

// proceed lets a job make progress until its next checkpoint or its end.
func (r *engine) proceed(t *stint) {
	t.running, t.saving, t.from = true, false, r.now
	r.phase(t, arbiter.JobRuns)
	if t.job.backlog {
		return
	}
	j := t.job
	left := j.Run - j.kept
	if save := j.tried + j.Save.Every - j.kept; j.Grace > 0 && j.Save.Every > 0 && save < left {
		t.next = r.after(max(save, 0), func() { r.save(t) })
		return
	}
	t.next = r.after(max(left, 0), func() { r.finish(t) })
}

// phase sets the phase of all slices of a stint.
func (r *engine) phase(t *stint, p arbiter.Phase) {
	for _, s := range t.slots {
		s.phase = p
		r.refresh(s)
	}
}

// gain counts the progress up to now.
func (r *engine) gain(t *stint) {
	if !t.running {
		return
	}
	d := r.now - t.from
	t.from, t.made, t.job.kept = r.now, t.made+d, t.job.kept+d
	r.totals.progress += d * time.Duration(t.units)
}

// halt stops progress.
func (r *engine) halt(t *stint) {
	r.gain(t)
	t.running = false
	r.cancel(t.next)
}

// save takes a checkpoint by itself. The job makes no progress meanwhile.
func (r *engine) save(t *stint) {
	r.halt(t)
	took, ok := r.checkpoint(t.job)
	t.saving = ok
	r.phase(t, arbiter.Checkpoint)
	t.next = r.after(took, func() {
		r.saved(t.job, ok)
		r.proceed(t)
	})
}

// checkpoint draws the job's next one: how long it takes and whether it is good.
func (r *engine) checkpoint(j *job) (took time.Duration, ok bool) {
	rnd := r.world.Rand("checkpoint/"+j.ID, j.saves)
	j.saves++
	took = lognormal(rnd, j.Save.Median, j.Save.Sigma)
	return took, rnd.Float64() >= r.world.Scenario.Faults.Checkpoint
}

func lognormal(rnd *rand.Rand, median time.Duration, sigma float64) time.Duration {
	return time.Duration(float64(median) * math.Exp(sigma*rnd.NormFloat64()))
}

// saved notes how a checkpoint ended.
func (r *engine) saved(j *job, ok bool) {
	j.tried = j.kept
	if ok {
		j.saved = j.kept
		return
	}
	r.incident(Incident{Kind: "checkpoint_failed", Job: j.ID, Fault: true})
}

// stop asks a job to leave its slices. One that can save does so within its
// grace, from the signal on; a checkpoint under way counts. What else it does not
// hold on to it loses.
func (r *engine) stop(t *stint) {
	j := t.job
	t.leaving = true
	starting := !t.running && t.slots[0].phase == arbiter.JobStart
	under := t.next // a checkpoint that is under way
	saving := !t.running && !starting
	if !saving {
		r.halt(t)
	}
	if !j.backlog {
		r.totals.preemptions++
		j.result.Stops++
		j.stops = append(j.stops, epoch.Add(r.now))
	}
	took, good := j.Stop, true
	switch {
	case starting:
	case j.Grace > 0 && saving:
		took, good = under.at-r.now, t.saving
		r.cancel(under)
	case j.Grace > 0:
		took, good = r.checkpoint(j)
	}
	if j.Grace > 0 && took > j.Grace { // killed; what was being written is no use
		took, good = j.Grace, false
		r.incident(Incident{Kind: "grace_ended", Job: j.ID})
		saving, starting = false, true
	}
	took += r.hangs(t)
	r.phase(t, arbiter.Checkpoint)
	t.next = r.after(took, func() {
		if j.Grace > 0 && !starting {
			r.saved(j, good)
		}
		r.lose(t)
		r.leave(t)
	})
}

// lose takes back the progress that the job does not keep, now that it stops.
func (r *engine) lose(t *stint) {
	j := t.job
	lost := min(j.Loses, t.made)
	switch {
	case j.LosesAll:
		lost = j.kept
	case j.Grace > 0:
		lost = j.kept - j.saved
	}
	j.kept -= lost
	j.tried = min(j.tried, j.kept)
	d := lost * time.Duration(t.units)
	r.totals.lost += d
	r.book.lose(d)
	j.result.LostS += d.Seconds()
	for _, m := range t.waiters[:min(1, len(t.waiters))] { // once, not for each slice
		m.lost = lost * time.Duration(len(t.slots))
	}
}

// leave empties the slices of a stint. Whoever waits for one goes on.
func (r *engine) leave(t *stint) {
	j := t.job
	r.vacant(t)
	if j.backlog {
		r.totals.backlog += t.made - min(j.Loses, t.made)
	} else {
		j.stint = nil
		r.queue(j)
	}
	for _, m := range t.waiters {
		if m.err == nil {
			r.vacated(m)
		}
	}
	r.kick = true
}

// vacant takes the job off its slices.
func (r *engine) vacant(t *stint) {
	for _, s := range t.slots {
		s.stint, s.phase = nil, arbiter.Free
		t.job.held = slices.DeleteFunc(t.job.held, func(id string) bool { return id == s.ID })
		r.refresh(s)
	}
}

// finish ends a job that has done all its work.
func (r *engine) finish(t *stint) {
	r.halt(t)
	j := t.job
	j.ended, j.stint = true, nil
	j.result.FinishS = seconds(r.now)
	r.vacant(t)
	i := slices.Index(r.shown, j)
	r.shown = slices.Delete(r.shown, i, i+1)
	r.seen.Jobs = slices.Delete(r.seen.Jobs, i, i+1)
	delete(r.jobByID, j.ID)
	r.kick = true
}

// kill ends a stint at once: its GPU has failed. What was not saved is lost.
func (r *engine) kill(t *stint) {
	r.halt(t)
	r.lose(t)
	r.leave(t)
}

// fitsJob says why a job cannot start on slices; "" = it can.
func (r *engine) fitsJob(j *job, on []*slot) string {
	want, shape := j.Slices, r.needsOf(j)
	if j.GPUs > 0 {
		want = j.GPUs
	}
	if j.backlog {
		want = 1
	}
	if len(on) != want {
		return fmt.Sprintf("%s starts on %d slices at once, not %d", j.ID, want, len(on))
	}
	server := r.gpus[on[0].GPU].server
	for _, s := range on {
		if !suits(s.Shape, shape) {
			return fmt.Sprintf("%s needs %s, %s is %s", j.ID, shape.Profile, s.ID, s.Shape.Profile)
		}
		if j.GPUs > 0 && j.GPUs <= r.world.Scenario.Cluster.ServerGPUs && r.gpus[s.GPU].server != server {
			return fmt.Sprintf("%s fits one server and must stay in one", j.ID)
		}
	}
	return ""
}
