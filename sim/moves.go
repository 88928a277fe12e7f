package sim

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"aloft/arbiter"
	"aloft/sim/scenario"
)

// move is an order that is being carried out.
type move struct {
	arbiter.Move
	Gen    uint64
	at     time.Duration // decided
	model  int           // −1 = none
	job    *job
	slots  []*slot // that it touches
	device *device // reshape
	drains int     // slices that still drain for it
	next   *event  // a start or a reshape
	class  string  // of a reclaim
	bound  time.Duration
	lost   time.Duration
	fault  bool
	ended  bool
	err    error
}

// to is who the slice goes to.
func (m *move) to() string {
	if m.Action == arbiter.Lend || m.Model == "" {
		return m.Job
	}
	return m.Model
}

// errFault is how a move ends that a failing device has cut off.
var errFault = errors.New("sim: the GPU failed")

// carryOut begins an order, or refuses it where it is not legal in the state that
// it meets.
func (r *engine) carryOut(o arbiter.Order) {
	m := &move{Move: o.Move, Gen: o.Gen, at: r.now, model: r.modelOf(o.Move.Model)}
	m.job = r.jobByID[o.Move.Job]
	var why string
	switch o.Move.Action {
	case arbiter.Start, arbiter.Wake:
		why = r.bring(m)
	case arbiter.Lend:
		why = r.lend(m)
	case arbiter.Reclaim:
		why = r.reclaim(m)
	case arbiter.Vacate:
		why = r.vacate(m)
	case arbiter.Reshape:
		why = r.shape(m)
	default:
		why = "is nothing that can be done"
	}
	if why != "" {
		m.err = fmt.Errorf("sim: %s of %s refused: %s", o.Move.Action, m.what(), why)
		m.ended = true
		r.tally(m, refused)
		r.ordered = append(r.ordered, m)
	}
}

func (m *move) what() string {
	if m.Action == arbiter.Reshape {
		return fmt.Sprintf("gpu %d", m.GPU)
	}
	return m.Slice
}

// modelOf finds a model by name; −1 = none of that name.
func (r *engine) modelOf(name string) int {
	return slices.IndexFunc(r.serving, func(m served) bool { return name != "" && m.traffic.Model.Name == name })
}

// take finds the slices of a move and sees that no other move has them.
func (r *engine) take(m *move) string {
	for i := -1; i < len(m.Gang); i++ {
		id := m.Slice
		if i >= 0 {
			id = m.Gang[i]
		}
		s := r.byID[id]
		switch {
		case s == nil:
			return fmt.Sprintf("there is no slice %q", id)
		case s.phase == arbiter.Unhealthy:
			return fmt.Sprintf("%s is broken", id)
		case s.move != nil:
			return fmt.Sprintf("%s is moving already: %s", id, s.move.Action)
		case slices.Contains(m.slots, s):
			return fmt.Sprintf("%s is named twice", id)
		}
		m.slots = append(m.slots, s)
	}
	return ""
}

// mark enters a move in its slices.
func (r *engine) mark(m *move) {
	for _, s := range m.slots {
		s.move = m
		r.refresh(s)
	}
}

// bring is Start and Wake: a replica on an idle slice.
func (r *engine) bring(m *move) string {
	if why := r.take(m); why != "" {
		return why
	}
	s := m.slots[0]
	switch {
	case m.model < 0:
		return fmt.Sprintf("there is no model %q", m.Model)
	case len(m.slots) > 1:
		return "a replica takes one slice"
	case !r.suitsModel(s, m.Model):
		return "the slice is too small"
	case !s.idle():
		return "the slice is " + string(s.phase)
	case m.Action == arbiter.Wake && s.asleep&(1<<m.model) == 0:
		return "none of the model sleeps there"
	}
	r.mark(m)
	r.load(m)
	return ""
}

// load wakes the sleeper of the move's model on its slice, or starts a replica
// from cold. A wake that fails takes its time and then the start from cold.
func (r *engine) load(m *move) {
	s, at := m.slots[0], &r.serving[m.model]
	start := at.traffic.Model.Start
	s.model, s.phase = m.model, arbiter.Loading
	took := time.Duration(0)
	if m.Action == arbiter.Start { // from cold, beside a sleeper too, which ends
		s.asleep &^= 1 << m.model
	}
	if s.asleep&(1<<m.model) != 0 {
		rnd := r.draw("wake", at, s)
		took = lognormal(rnd, start.WakeMedianS.Duration(), start.Sigma)
		if rnd.Float64() < r.world.Scenario.Faults.Wake {
			m.fault = true
			s.asleep &^= 1 << m.model
			r.incident(Incident{Kind: "wake_failed", Slice: s.ID, Model: m.Model, Fault: true})
		}
	}
	if s.asleep&(1<<m.model) == 0 {
		took += lognormal(r.draw("cold", at, s), start.ColdMedianS.Duration(), start.Sigma)
	}
	r.refresh(s)
	m.next = r.after(took, func() {
		s.asleep &^= 1 << m.model
		s.phase = arbiter.Ready
		at.add(r, s)
		r.end(m, nil)
	})
}

// lend gives idle slices to a job, all at once; what serves there drains first.
func (r *engine) lend(m *move) string {
	if why := r.take(m); why != "" {
		return why
	}
	switch {
	case m.job == nil:
		return fmt.Sprintf("no job %q waits", m.Job)
	case !m.job.backlog && (m.job.stint != nil || m.job.lending != nil):
		return "the job has its slices already"
	}
	if why := r.fitsJob(m.job, m.slots); why != "" {
		return why
	}
	for _, s := range m.slots {
		if !s.idle() && s.phase != arbiter.Ready {
			return s.ID + " is " + string(s.phase)
		}
	}
	m.job.lending = m
	r.mark(m)
	if !r.unstored(m) {
		r.drain(m)
	}
	return ""
}

// drain lets what serves on the slices of a move finish. Nothing is cut off: a
// sequence takes as long as it takes.
func (r *engine) drain(m *move) {
	m.drains = 1 // it is not done before all have begun
	for _, s := range m.slots {
		if s.phase != arbiter.Ready {
			continue
		}
		m.drains++
		model := s.model
		s.phase = arbiter.Draining
		r.serving[model].remove(r, s)
		r.refresh(s)
		r.rested(model)
	}
	m.drains--
	r.drained(m)
}

// rested puts the replicas of a model to sleep whose last sequence has ended.
func (r *engine) rested(model int) {
	at := &r.serving[model]
	for i := 0; i < len(at.draining); {
		s := at.draining[i]
		if !at.server.Idle(s.number()) {
			i++
			continue
		}
		at.draining = slices.Delete(at.draining, i, i+1)
		at.out(r.now - s.since)
		s.asleep |= 1 << model
		s.model, s.phase = -1, arbiter.Asleep
		r.refresh(s)
		if m := s.move; m != nil {
			m.drains--
			r.drained(m)
		}
	}
}

// drained goes on with a move when nothing drains for it any more.
func (r *engine) drained(m *move) {
	if m.drains > 0 {
		return
	}
	switch m.Action {
	case arbiter.Lend:
		m.job.lending = nil
		for _, s := range m.slots {
			s.move = nil
		}
		r.begin(m.job, m.slots)
		r.end(m, nil)
	case arbiter.Vacate:
		if m.Move.Reason != arbiter.Surplus { // rivals that shrink before they lend leave a sleeper
			m.slots[0].asleep = 0
		}
		r.end(m, nil)
	}
}

// reclaim takes a slice back from a job for a model. A job leaves all its slices.
func (r *engine) reclaim(m *move) string {
	if why := r.take(m); why != "" {
		return why
	}
	s := m.slots[0]
	switch {
	case m.model < 0:
		return fmt.Sprintf("there is no model %q", m.Model)
	case len(m.slots) > 1:
		return "a replica takes one slice"
	case !r.suitsModel(s, m.Model):
		return "the slice is too small"
	case s.stint == nil:
		return "no job is there"
	case m.Job != "" && m.Job != s.stint.job.ID:
		return s.stint.job.ID + " is there"
	}
	m.job = s.stint.job
	asleep := s.asleep&(1<<m.model) != 0
	m.class = classOf(m.job.Job, asleep)
	m.bound = r.boundOf(m.job.Job, m.model, asleep)
	if m.Bound > 0 {
		m.bound = m.Bound
	}
	r.evict(m)
	return ""
}

// vacate empties a slice: of a job, or else of what serves or sleeps there. A
// sleeper beneath a job stays, and a replica that goes as surplus sleeps.
func (r *engine) vacate(m *move) string {
	if why := r.take(m); why != "" {
		return why
	}
	for _, s := range m.slots {
		if s.phase == arbiter.Loading || s.phase == arbiter.Draining {
			return s.ID + " is " + string(s.phase)
		}
	}
	s := m.slots[0]
	switch {
	case len(m.slots) > 1:
		return "one slice at a time"
	case s.stint != nil:
		m.job = s.stint.job
		r.evict(m)
	case s.phase == arbiter.Ready:
		r.mark(m)
		r.drain(m)
	default:
		s.asleep = 0
		r.refresh(s)
		r.end(m, nil)
	}
	return ""
}

// evict makes the job on a slice leave for the sake of a move.
func (r *engine) evict(m *move) {
	t := m.slots[0].stint
	t.waiters = append(t.waiters, m)
	r.mark(m)
	if !t.leaving {
		r.stop(t)
	}
}

// vacated goes on with a move whose slice the job has left.
func (r *engine) vacated(m *move) {
	if m.Action == arbiter.Reclaim {
		r.load(m)
		return
	}
	r.end(m, nil)
}

// shape gives a GPU the other shape. Its slices must be idle: what slept there
// ends, since a sleeper is a process on an instance, and starts from cold later.
func (r *engine) shape(m *move) string {
	if m.GPU < 0 || m.GPU >= len(r.gpus) {
		return "there is no such GPU"
	}
	d := &r.gpus[m.GPU]
	whole, ok := r.shapeOf(m.Layout)
	switch {
	case d.broken:
		return "it is broken"
	case !ok:
		return fmt.Sprintf("the layout is neither %d of %s nor one %s", scenario.SlicesPerGPU, r.small.Profile, r.whole.Profile)
	case whole == d.isWhole:
		return "it has that shape"
	}
	for _, s := range r.on(d) {
		if !s.idle() || s.move != nil {
			return s.ID + " is not idle"
		}
	}
	m.device, m.slots, d.reshapes = d, slices.Clone(r.on(d)), m
	for _, s := range m.slots {
		s.asleep, s.phase = 0, arbiter.Reshaping
	}
	r.mark(m)
	m.next = r.after(r.reshapeTime(m), func() {
		r.advance()
		for _, s := range m.slots {
			r.book.count(s, s.standing, -1)
			r.spans.close(r, s)
			delete(r.byID, s.ID)
		}
		r.slots = slices.DeleteFunc(r.slots, func(s *slot) bool { return s.GPU == d.index })
		d.isWhole, d.reshapes, d.reshaped = whole, nil, r.now
		d.version++
		m.slots = nil
		r.split(d)
		r.relist()
		r.checkAll()
		r.end(m, nil)
	})
	return ""
}

// end finishes a move and has its outcome delivered.
func (r *engine) end(m *move, err error) {
	m.ended, m.err = true, err
	for _, s := range m.slots {
		if s.move == m {
			s.move = nil
			r.refresh(s)
		}
	}
	how := done
	if err != nil {
		how = failed
	} else {
		r.kick = true
	}
	r.tally(m, how)
	if m.Action == arbiter.Reclaim {
		r.reclaimed(m)
	}
	r.ordered = append(r.ordered, m)
}

// abort ends a move that a failing GPU has cut off. What drains for it elsewhere
// drains on.
func (r *engine) abort(m *move) {
	r.cancel(m.next)
	m.fault = true
	if m.job != nil && m.job.lending == m {
		m.job.lending = nil
	}
	for _, s := range m.slots {
		if s.phase == arbiter.Loading || s.phase == arbiter.Reshaping {
			s.phase, s.model = arbiter.Free, -1
		}
	}
	if m.device != nil {
		m.device.reshapes = nil
	}
	r.end(m, errFault)
}
