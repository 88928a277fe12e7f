package arbiter

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"aloft/gpu"
)

// puppet is a world around a Core, in virtual time and without goroutines: nodes,
// replicas, jobs, and moves that take their time. It fails at random and notices
// when a slice is given to two, or taken from a job that was not asked.
type puppet struct {
	t    *testing.T
	seed uint64
	rng  *rand.Rand
	now  time.Time
	core *Core
	opt  CoreOptions

	devices  []gpu.Device
	replicas []*Placed
	models   []Model
	jobs     []*Job
	listed   []Job // what the store answered last
	motions  []*motion
	journal  bytes.Buffer
	gens     map[uint64]bool // generations of orders
	faults   bool

	blindUntil, storeUntil time.Time
	skew                   time.Duration // of the clock that the core is shown
	restarts, incidents    int
	wearied                int // moves against a job that was stopped too often
	did                    map[Action]int
}

// motion is an order that is being carried out.
type motion struct {
	Order
	slices []Slice
	step   int
	begun  time.Time
	next   time.Time
	lost   time.Duration
	fault  bool
}

func (p *puppet) bad(format string, args ...any) {
	p.t.Helper()
	p.t.Errorf("seed %d at %v: "+format, append([]any{p.seed, p.now.Sub(noon)}, args...)...)
}

func (p *puppet) chance(n int) bool { return p.rng.IntN(n) == 0 }

func newPuppet(t *testing.T, seed uint64) *puppet {
	p := &puppet{t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 11)), now: noon, faults: seed%4 > 0, gens: map[uint64]bool{}, did: map[Action]int{}}
	for g := range 1 + p.rng.IntN(4) {
		d := gpu.Device{Index: g, Family: "A100-80GB", MIG: true, Health: gpu.Health{OK: true}}
		p.cut(&d, p.layout())
		p.devices = append(p.devices, d)
	}
	for i := range 1 + p.rng.IntN(3) {
		m := chat(fmt.Sprintf("m%d", i), 0, p.rng.IntN(2), 1+p.rng.IntN(6))
		m.Work = make([]float64, 60)
		m.Back, m.Out, m.Cold = 2*time.Second, time.Second, 10*time.Second
		p.models = append(p.models, m)
	}
	for _, d := range p.devices { // many replicas are there already
		for _, s := range d.Slices {
			m := &p.models[p.rng.IntN(len(p.models))]
			if has := len(slices.DeleteFunc(slices.Clone(p.replicas), func(r *Placed) bool { return r.Model != m.Name })); has < m.Max && fits(s.Shape, m.Needs) && !p.chance(3) {
				p.replicas = append(p.replicas, &Placed{Slice: s.ID, Model: m.Name, Phase: Ready})
			}
		}
	}
	p.opt = coreOptions()
	p.opt.Geometry = 10 * time.Second
	p.opt.Policy.Spare, p.opt.Policy.Hold = p.rng.IntN(2), time.Duration(p.rng.IntN(10))*time.Second
	p.opt.RiseQuantile = 0.9
	p.opt.Policy.MaxPreempts = int(seed % 3) // 0 = 4
	p.opt.OnRecord = p.record
	p.restart(nil)
	return p
}

func (p *puppet) layout() []gpu.Placement {
	f, _ := gpu.Lookup("A100-80GB")
	names := [][]string{{"1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb"}, {"7g.80gb"}, {"3g.40gb", "3g.40gb"}, {"4g.40gb", "2g.20gb", "1g.10gb"}}
	out, err := f.Layout(names[p.rng.IntN(len(names))])
	if err != nil {
		p.t.Fatal(err)
	}
	return out
}

// cut gives a GPU those instances of a layout that it does not have.
func (p *puppet) cut(d *gpu.Device, layout []gpu.Placement) {
	for _, pl := range layout {
		shape, err := gpu.ShapeOf(d.Family, pl.Profile)
		if err != nil {
			p.t.Fatal(err)
		}
		if !slices.ContainsFunc(d.Slices, func(s gpu.Slice) bool { return s.Start == pl.Start }) {
			d.Slices = append(d.Slices, gpu.Slice{ID: fmt.Sprintf("g%d/%s@%d", d.Index, pl.Profile, pl.Start), GPU: d.Index, Start: pl.Start, Shape: shape})
		}
	}
}

// restart makes a new core from what is left of the journal.
func (p *puppet) restart(past []Record) {
	c, err := NewCore(p.opt)
	if err != nil {
		p.t.Fatal(err)
	}
	c.Restore(past)
	p.core = c
}

// record holds I2, I4, I5 and I6 on every decision and outcome.
func (p *puppet) record(r Record) {
	if b, err := json.Marshal(r); err == nil {
		p.journal.Write(append(b, '\n'))
	}
	m := r.Move
	s := p.core.snapshot
	switch {
	case m.Action == Hold || r.Outcome == "observed" || r.Outcome == "expired":
	case r.Outcome == "bound_broken":
		p.incidents++
		if r.Cap < 1 || r.Cap >= noCap {
			p.bad("I5: a broken bound left the cap at %d", r.Cap)
		}
	case r.Outcome == "" && m.Action == Lend:
		if m.Bound <= 0 || lentAfter(s, p.core.plan) > s.Cap {
			p.bad("I4: %v, bound %v, %d lent of at most %d", m, m.Bound, lentAfter(s, p.core.plan), s.Cap)
		}
	case r.Outcome == "" && m.Action == Vacate && m.Reason == ForJob && m.Job != "":
		p.gaveWay(m)
	case r.Outcome == "" && m.Action == Reclaim:
		p.spares(m)
		if k, ok := p.core.byJob[m.Job]; ok && m.Bound < s.Jobs[k].Grace {
			p.bad("I6: bound %v of %s is less than its grace %v", m.Bound, m.Job, s.Jobs[k].Grace)
		}
	case r.Outcome == "" && m.Action == Reshape:
		f, _ := gpu.Lookup("A100-80GB")
		if err := f.Legal(m.Layout); err != nil {
			p.bad("I2: %v: %v", m, err)
		}
	}
}

// tired is a job of the last look that was stopped as often as it may be; nil = not.
func (p *puppet) tired(id string) *Job {
	k, ok := p.core.byJob[id]
	if !ok || p.core.snapshot.Jobs[k].stopped(p.core.snapshot.Now) < p.opt.Policy.mostStops() {
		return nil
	}
	return &p.core.snapshot.Jobs[k]
}

// gaveWay holds I9 between jobs: who was stopped too often, and is not light, goes
// only for one that stands two priorities above it.
func (p *puppet) gaveWay(m Move) {
	v := p.tired(m.Job)
	if v == nil || v.Light() {
		return
	}
	p.wearied++
	s := p.core.snapshot.Slices[p.core.at[m.Slice]]
	for _, c := range p.core.plan.Claims {
		k, ok := p.core.byJob[c.Job]
		if !ok || !c.Since.Equal(p.core.snapshot.Now) || !slices.Contains(c.Slices, s.ID) && !slices.Contains(c.GPUs, s.GPU) {
			continue
		}
		if j := &p.core.snapshot.Jobs[k]; j.Priority <= v.Priority+1 {
			p.bad("I9: %s (priority %d, stopped %d times) gives way to %s (%d)", v.ID, v.Priority, len(v.Preempted), j.ID, j.Priority)
		}
	}
}

// spares holds I9 against serving: who was stopped too often goes only where no
// other job of its kind, no dearer by rank and as quick to leave, is to be had.
func (p *puppet) spares(m Move) {
	v := p.tired(m.Job)
	if v == nil {
		return
	}
	p.wearied++
	all := p.core.snapshot
	from := all.Slices[p.core.at[m.Slice]]
	for _, s := range all.Slices {
		k, ok := p.core.byJob[s.Job]
		taken := slices.ContainsFunc(p.core.plan.Moves, func(o Move) bool { return o.Slice == s.ID || slices.Contains(o.Gang, s.ID) })
		if !ok || s.Moving || taken || s.Phase == Unhealthy || s.Shape != from.Shape || s.Model != from.Model {
			continue
		}
		if o := &all.Jobs[k]; p.tired(o.ID) == nil && o.Priority <= v.Priority && o.Light() == v.Light() && o.leaving() <= v.leaving() {
			p.bad("I9: %v stops %s for the %dth time, %s on %s was not stopped", m, v.ID, len(v.Preempted)+1, o.ID, s.ID)
		}
	}
}

func (p *puppet) job(id string) *Job {
	for _, j := range p.jobs {
		if j.ID == id {
			return j
		}
	}
	return nil
}

func (p *puppet) on(slice string, model string) *Placed {
	for _, r := range p.replicas {
		if r.Slice == slice && (model == "" && r.Phase != Asleep || r.Model == model) {
			return r
		}
	}
	return nil
}

func (p *puppet) drop(gone func(*Placed) bool) { p.replicas = slices.DeleteFunc(p.replicas, gone) }

// mustBeFree holds that no slice is used by two.
func (p *puppet) mustBeFree(slice, who string) {
	if r := p.on(slice, ""); r != nil && r.Model != who {
		p.bad("%s was given to %s while %s was %s there", slice, who, r.Model, r.Phase)
	}
	for _, j := range p.jobs {
		if j.ID != who && slices.Contains(j.Slices, slice) {
			p.bad("%s was given to %s while %s held it", slice, who, j.ID)
		}
	}
	if !slices.ContainsFunc(p.devices, func(d gpu.Device) bool {
		return slices.ContainsFunc(d.Slices, func(s gpu.Slice) bool { return s.ID == slice })
	}) {
		p.bad("%s was given to %s and does not exist", slice, who)
	}
}

func (p *puppet) takes(d time.Duration) time.Time {
	return p.now.Add(time.Duration(float64(d) * (0.3 + p.rng.Float64())))
}

// look shows the core the world and begins what it orders.
func (p *puppet) look() {
	if p.now.Before(p.blindUntil) {
		return
	}
	if !p.now.Before(p.storeUntil) {
		p.listed = p.listed[:0]
		for _, j := range p.jobs {
			c := *j
			c.Slices = slices.Clone(j.Slices)
			p.listed = append(p.listed, c)
		}
	}
	o := Observation{Now: p.now.Add(p.skew), Devices: p.devices, Models: p.models, Jobs: slices.Clone(p.listed), Stale: p.now.Before(p.storeUntil)}
	for _, r := range p.replicas {
		o.Placed = append(o.Placed, *r)
	}
	for _, order := range p.core.Look(o) {
		p.begin(order)
	}
	p.check()
}

func (p *puppet) begin(o Order) {
	if p.gens[o.Gen] {
		p.bad("generation %d was given out twice", o.Gen)
	}
	p.gens[o.Gen] = true
	p.did[o.Move.Action]++
	m := &motion{Order: o, begun: p.now, next: p.now}
	for _, s := range p.core.snapshot.Slices {
		if s.ID == o.Move.Slice && o.Move.Action != Reshape || slices.Contains(o.Move.Gang, s.ID) {
			m.slices = append(m.slices, s)
		}
	}
	for _, other := range p.motions {
		for _, s := range m.slices {
			if slices.ContainsFunc(other.slices, func(x Slice) bool { return x.ID == s.ID }) {
				p.bad("%v was ordered while %v was under way", o.Move, other.Move)
			}
		}
		if o.Move.Action == Reshape && other.Move.Action == Reshape && o.Move.GPU == other.Move.GPU {
			p.bad("two reshapes of GPU %d", o.Move.GPU)
		}
	}
	p.motions = append(p.motions, m)
}

var errScripted = errors.New("scripted fault")

// run carries the moves out as far as their time has come.
func (p *puppet) run() {
	for i := 0; i < len(p.motions); i++ {
		m := p.motions[i]
		if p.now.Before(m.next) {
			continue
		}
		done, err := p.step(m)
		if !done && err == nil && p.now.Sub(m.begun) > 2*time.Minute {
			err = errors.New("move timed out")
		}
		if !done && err == nil {
			continue
		}
		p.motions = slices.Delete(p.motions, i, i+1)
		i--
		out := Outcome{Move: m.Move, Gen: m.Gen, Took: p.now.Sub(m.begun), Lost: m.lost, Err: err, Fault: m.fault}
		before, broken := p.core.cap, p.incidents
		p.core.Settle(p.now.Add(p.skew), out)
		if m.Move.Action == Reclaim && !out.kept(m.Move.Bound) && (p.incidents != broken+1 || p.core.cap >= before && before > 1) {
			p.bad("I5: %v took %v (%v): %d incidents, cap %d after %d", m.Move, out.Took, err, p.incidents-broken, p.core.cap, before)
		}
		p.core.Settle(p.now.Add(p.skew), out) // told twice: refused
	}
}

// step makes the next step of a move.
func (p *puppet) step(m *motion) (done bool, err error) {
	if p.faults && p.chance(60) {
		m.fault = true
		if m.Move.Action != Lend || m.step < 2 {
			return false, p.fail(m)
		}
	}
	switch m.Move.Action {
	case Lend:
		return p.lend(m)
	case Reshape:
		return p.reshape(m)
	case Reclaim, Vacate:
		if m.step < 2 {
			return false, p.leave(m)
		}
		if m.Move.Action == Vacate {
			p.drop(func(r *Placed) bool { return r.Slice == m.Move.Slice })
			return true, nil
		}
	}
	return p.bring(m)
}

// fail ends a move where it is.
func (p *puppet) fail(m *motion) error {
	for _, s := range m.slices {
		p.drop(func(r *Placed) bool { return r.Slice == s.ID && (r.Phase == Loading || r.Phase == Draining) })
	}
	return errScripted
}

func (p *puppet) bring(m *motion) (bool, error) {
	s := m.Move.Slice
	if m.step < 3 {
		m.step = 3
		p.mustBeFree(s, m.Move.Model)
		took := 10 * time.Second
		if r := p.on(s, m.Move.Model); r != nil {
			took, r.Phase = 2*time.Second, Loading
		} else {
			p.replicas = append(p.replicas, &Placed{Slice: s, Model: m.Move.Model, Phase: Loading})
		}
		m.next = p.takes(took)
		return false, nil
	}
	r := p.on(s, m.Move.Model)
	if r == nil {
		return false, errors.New("replica crashed")
	}
	r.Phase = Ready
	return true, nil
}

// leave stops the job that is on the slice of a Reclaim or Vacate.
func (p *puppet) leave(m *motion) error {
	s := m.slices[0]
	if m.step == 0 {
		m.step = 1
		took := time.Second
		if s.Job != "" {
			took = 3 * time.Second
		}
		m.next = p.takes(took)
		if p.faults && p.chance(20) { // hangs on stop
			m.next, m.fault = p.now.Add(100*time.Second), true
		}
		return nil
	}
	if j := p.job(s.Job); j != nil {
		j.Slices = slices.DeleteFunc(j.Slices, func(id string) bool { return id == s.ID })
		j.Running = len(j.Slices) > 0
		j.Preempted = append(j.Preempted, p.now)
	}
	m.lost, m.step = time.Duration(p.rng.IntN(1000))*time.Millisecond, 2
	return nil
}

func (p *puppet) lend(m *motion) (bool, error) {
	switch m.step {
	case 0:
		for _, s := range m.slices {
			if s.Phase != Ready {
				continue
			}
			r := p.on(s.ID, s.Model)
			if r == nil || r.Phase != Ready {
				return false, errors.New("no ready replica")
			}
			r.Phase, m.next = Draining, p.takes(time.Second)
		}
	case 1:
		for _, s := range m.slices {
			if s.Phase != Ready {
				continue
			}
			r := p.on(s.ID, s.Model)
			if r == nil {
				return false, errors.New("replica crashed")
			}
			r.Phase = Asleep
		}
		j := p.job(m.Move.Job)
		if j == nil {
			return false, errors.New("no such job")
		}
		if len(j.Slices)+len(m.slices) > j.MaxWidth || j.MinWidth > 1 && len(j.Slices)+len(m.slices) < j.MinWidth {
			p.bad("%s of %d to %d has %v and is given %v", j.ID, j.MinWidth, j.MaxWidth, j.Slices, m.slices)
		}
		for _, s := range m.slices {
			p.mustBeFree(s.ID, j.ID)
			j.Slices = append(j.Slices, s.ID)
		}
		m.next = p.takes(time.Second)
	case 2:
		j := p.job(m.Move.Job)
		if j == nil {
			return false, errors.New("no such job")
		}
		if m.fault {
			for _, s := range m.slices {
				j.Slices = slices.DeleteFunc(j.Slices, func(id string) bool { return id == s.ID })
			}
			return false, errScripted
		}
		j.Running = true
		return true, nil
	}
	m.step++
	return false, nil
}

func (p *puppet) reshape(m *motion) (bool, error) {
	d := &p.devices[m.Move.GPU]
	if m.step == 0 {
		m.step, m.next = 1, p.takes(3*time.Second)
		if p.faults && p.chance(5) {
			m.next = p.now.Add(30 * time.Second) // slow
		}
		d.Slices = slices.DeleteFunc(slices.Clone(d.Slices), func(s gpu.Slice) bool {
			gone := !slices.ContainsFunc(m.Move.Layout, func(pl gpu.Placement) bool { return pl.Start == s.Start && pl.Profile == s.Shape.Profile })
			if gone {
				p.mustBeFree(s.ID, "a reshape")
				p.drop(func(r *Placed) bool { return r.Slice == s.ID })
			}
			return gone
		})
		return false, nil
	}
	p.cut(d, m.Move.Layout)
	return true, nil
}

// check holds what must be true between decisions: I1 and I3 by the core's own
// count, I4, and that leases, moves and the world tell one story.
func (p *puppet) check() {
	if n := p.core.stats.Violations; n > 0 {
		p.bad("%d invariants broken: %v", n, p.core.broken)
		p.core.stats.Violations = 0
	}
	if b := p.core.Balance(); !b.Sums() {
		p.bad("I3: the ledger does not sum up: %+v", b)
	}
	i := 0
	for id, l := range p.core.Leases() {
		s := p.core.snapshot.Slices[i]
		i++
		if l.Job != "" && l.Bound <= 0 {
			p.bad("I4: %s is lent without a bound: %+v", id, l)
		}
		under := slices.ContainsFunc(p.motions, func(m *motion) bool {
			return m.Gen == l.Gen || m.Move.Action == Reshape && m.Move.GPU == s.GPU && l.Shaping
		})
		if under != l.Moving {
			p.bad("%s: lease %+v, under way: %v", id, l, under)
		}
	}
}

// kill ends the core, and with it every move where it stands; half of the time
// the engines and jobs too, as with a server's own processes. The journal is cut
// at any byte of its end.
func (p *puppet) kill() {
	p.restarts++
	b := p.journal.Bytes()
	b = slices.Clone(b[:len(b)-p.rng.IntN(min(len(b), 2000)+1)])
	p.journal.Reset()
	p.journal.Write(append(b, '\n'))
	p.motions = nil
	clear(p.gens) // those of orders whose record is lost may come again: nobody is left to answer them
	p.storeUntil, p.blindUntil = p.now, p.now
	if p.chance(2) {
		p.replicas = nil
		for _, j := range p.jobs {
			j.Slices, j.Running = nil, false
		}
	}
	for _, r := range p.replicas {
		switch r.Phase {
		case Loading:
			r.Phase = Ready
		case Draining:
			r.Phase = Asleep
		}
	}
	for _, j := range p.jobs {
		j.Running = len(j.Slices) > 0
	}
	past := ParseJournal(b)
	p.restart(past)
	p.look()
	i := 0
	for id, l := range p.core.Leases() { // I7: what is held is what the leases say
		holder := ""
		for _, j := range p.jobs {
			if slices.Contains(j.Slices, id) {
				holder = j.ID
			}
		}
		if l.Moving != p.core.snapshot.Slices[i].Moving && !slices.ContainsFunc(p.motions, func(m *motion) bool { return m.Gen == l.Gen || l.Shaping }) {
			p.bad("I7: after a restart %s moves: %+v", id, l)
		}
		if !l.Moving && l.Job != holder {
			p.bad("I7: after a restart %s is held by %q, the lease says %+v", id, holder, l)
		}
		if n := len(past); n > 0 && l.Gen > 0 && l.Gen <= past[n-1].Gen {
			p.bad("I7: after a restart %s has generation %d, the journal ended with %d", id, l.Gen, past[n-1].Gen)
		}
		i++
	}
}

// silence ends the loans of a core that has not looked for a lease, as the watch does (I8).
func (p *puppet) silence() {
	for _, j := range p.jobs {
		j.Slices = slices.DeleteFunc(j.Slices, func(id string) bool {
			i, ok := p.core.at[id]
			return ok && p.core.leases[i].Job == j.ID && !p.core.leases[i].Moving
		})
		j.Running = len(j.Slices) > 0
	}
}

// stir changes something at random.
func (p *puppet) stir() {
	for i := range p.models {
		m := &p.models[i]
		if p.chance(20) {
			m.InFlight = 19 * p.rng.Float64() * float64(m.Max) * 1.2
		}
	}
	if p.chance(6) && len(p.jobs) < 8 {
		p.submit()
	}
	if p.chance(40) && len(p.jobs) > 0 {
		i := p.rng.IntN(len(p.jobs))
		p.jobs = slices.Delete(p.jobs, i, i+1)
	}
	if !p.faults {
		return
	}
	d := &p.devices[p.rng.IntN(len(p.devices))]
	switch p.rng.IntN(120) {
	case 0: // an engine crashes
		if n := len(p.replicas); n > 0 {
			r := p.replicas[p.rng.IntN(n)]
			p.drop(func(o *Placed) bool { return o == r })
		}
	case 1: // XID: what ran there is gone
		if d.Health.OK = !d.Health.OK; !d.Health.OK {
			d.Health.Reason = "XID 79"
			p.drop(func(r *Placed) bool {
				return slices.ContainsFunc(d.Slices, func(s gpu.Slice) bool { return s.ID == r.Slice })
			})
		}
	case 2:
		p.skew += time.Duration(p.rng.IntN(7200)-3600) * time.Second
	case 3:
		p.storeUntil = p.now.Add(time.Duration(p.rng.IntN(20)) * time.Second)
	case 4:
		p.blindUntil = p.now.Add(time.Duration(p.rng.IntN(90)) * time.Second)
	case 5:
		p.kill()
	}
}

func (p *puppet) submit() {
	kind := []string{"batch", "train", "quantize", "evaluate"}[p.rng.IntN(4)]
	j := &Job{ID: fmt.Sprintf("j%d", p.rng.IntN(1e9)), Kind: kind, MaxWidth: 1 + p.rng.IntN(2), Priority: p.rng.IntN(3), Created: p.now, Queued: p.now}
	shapes := []string{"1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb", "7g.80gb"}
	j.Needs, _ = gpu.ShapeOf("A100-80GB", shapes[p.rng.IntN(len(shapes))])
	if kind != "batch" {
		j.Grace, j.Unsaved, j.Restart = 5*time.Second, time.Duration(p.rng.IntN(60))*time.Second, time.Second
	}
	if p.chance(4) {
		j.MinWidth, j.MaxWidth = 2, 2
	}
	p.jobs = append(p.jobs, j)
}

// scenario is two minutes of trouble and one of peace.
func scenario(t *testing.T, seed uint64) *puppet {
	p := newPuppet(t, seed)
	for step := range 360 {
		if step < 240 {
			p.stir()
		} else if step == 240 {
			p.faults, p.blindUntil, p.storeUntil = false, p.now, p.now
			for i := range p.devices {
				p.devices[i].Health = gpu.Health{OK: true}
			}
		}
		for range 5 {
			p.now = p.now.Add(100 * time.Millisecond)
			p.run()
		}
		if p.now.Before(p.blindUntil) && p.now.Sub(p.core.now.Add(-p.core.skew-p.skew)) > time.Minute {
			p.silence()
		}
		if p.look(); t.Failed() {
			break
		}
	}
	for _, m := range p.motions {
		if p.now.Sub(m.begun) > 130*time.Second {
			p.bad("%v is still under way after two minutes", m.Move)
		}
	}
	for _, c := range p.core.Claims() {
		if !p.now.Add(p.skew + p.core.skew).Before(c.Until) {
			p.bad("claim %+v has outlived its end", c)
		}
	}
	return p
}

// TestScenarios: random worlds with engine crashes, XIDs, stops that hang, slow
// reshapes, clocks that jump, stores that fail, silences and kills. CI runs 200;
// ALOFT_SCENARIOS says otherwise. Replay one with -run TestScenarios -seed=N.
func TestScenarios(t *testing.T) {
	first, count := 0, 200
	if n, err := strconv.Atoi(os.Getenv("ALOFT_SCENARIOS")); err == nil {
		count = n
	}
	if *seedFlag >= 0 {
		first, count = *seedFlag, 1
	}
	did, restarts, incidents, expired, wearied := map[Action]int{}, 0, 0, 0, 0
	for seed := first; seed < first+count && !t.Failed(); seed++ {
		p := scenario(t, uint64(seed))
		for a, n := range p.did {
			did[a] += n
		}
		wearied += p.wearied
		restarts, incidents, expired = restarts+p.restarts, incidents+p.incidents, expired+p.core.stats.Expired
	}
	t.Logf("%d scenarios: %v, %d restarts, %d broken bounds, %d leases expired, %d stops of who was stopped too often", count, did, restarts, incidents, expired, wearied)
	if count < 200 || t.Failed() {
		return
	}
	for _, a := range []Action{Start, Wake, Lend, Reclaim, Vacate, Reshape} {
		if did[a] < count/100 {
			t.Errorf("only %d of %s", did[a], a)
		}
	}
	if restarts < count || incidents == 0 || expired == 0 || wearied == 0 {
		t.Errorf("%d restarts, %d broken bounds, %d leases expired: too little happened", restarts, incidents, expired)
	}
}
