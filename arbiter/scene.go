package arbiter

import (
	"slices"
	"time"

	"aloft/gpu"
)

// scene is the node as last observed. Its lists are reused from look to look:
// with hundreds of slices, of which few change, remaking them would cost more
// than the decision.
type scene struct {
	snapshot Snapshot
	leases   []Lease        // one for each slice of the snapshot
	at       map[string]int // slice → its index
	cut      []cut          // one for each GPU
	over     []overlay      // one for each slice: what the keepers report, of this look
	byJob    map[string]int // job → its index, of this look
	placedAt finder         // where the last look found the slices of replicas
	heldAt   finder         // and of jobs
	pending  map[uint64]pending
	gen      uint64            // the last generation given out
	promised map[string]Lease  // loans by slice, of before a restart; nil after the first look
	shaping  map[int]uint64    // GPUs that are being reshaped, and the generation of the order
	shaped   map[int]time.Time // when a GPU was last reshaped
	broken   []broken          // invariants that the last layout breaks
}

// overlay is what the keepers say of a slice: the indices of its replica and of
// the job that holds it; -1 = none.
type overlay struct{ placed, holder int32 }

// pending is an order that has no outcome yet.
type pending struct {
	move Move
	fast bool   // the job that gives the slice back has nothing to save
	left string // the job that has to leave; "" = none
}

func newScene() scene {
	return scene{at: map[string]int{}, byJob: map[string]int{}, pending: map[uint64]pending{},
		shaping: map[int]uint64{}, shaped: map[int]time.Time{}}
}

// finder remembers where each lookup of the last look led. Keepers report in the
// same order as before, mostly, and comparing is cheaper than hashing.
type finder struct {
	key   []string
	found []int
	next  int
}

func (f *finder) look(id string, in map[string]int) (int, bool) {
	k := f.next
	f.next++
	if k < len(f.key) {
		if f.key[k] == id {
			return f.found[k], f.found[k] >= 0
		}
	} else {
		f.key, f.found = append(f.key, ""), append(f.found, -1)
	}
	i, ok := in[id]
	if !ok {
		i = -1
	}
	f.key[k], f.found[k] = id, i
	return i, ok
}

// observe makes the snapshot of an observation, and puts right what the leases
// say where the keepers know better.
func (c *Core) observe(o Observation, now time.Time) {
	s := &c.snapshot
	s.Now = now
	if !c.same(o.Devices) {
		c.layout(o.Devices)
	}
	s.GPUs = s.GPUs[:0]
	for i := range o.Devices {
		s.GPUs = append(s.GPUs, c.gpu(i, &o.Devices[i]))
	}
	s.Models = append(s.Models[:0], o.Models...)
	s.Jobs = append(s.Jobs[:0], o.Jobs...)
	c.overlay(o.Placed, o.Stale)
	i := 0
	for _, d := range o.Devices {
		for range d.Slices {
			c.reconcile(i, now, o.Stale)
			c.join(i, o.Placed, d.Health.OK)
			i++
		}
	}
}

// gpu is a device's geometry as a decision sees it.
func (c *Core) gpu(i int, d *gpu.Device) GPU {
	g := GPU{Index: d.Index, Server: d.Index / gpusPerServer, Health: d.Health, Mask: c.cut[i].mask}
	if len(c.shaping) > 0 {
		g.Shaping = c.shaping[d.Index] != 0
	}
	if len(c.shaped) > 0 {
		g.Reshaped = c.shaped[d.Index]
	}
	if d.MIG && c.opt.Geometry > 0 { // without MIG it would have to be reset first
		g.Family = d.Family
	}
	return g
}

// gpusPerServer is what GPU servers have; one with fewer is a server all the same.
const gpusPerServer = 8

// same reports whether the devices have the slices that they had.
func (c *Core) same(devices []gpu.Device) bool {
	i := 0
	for _, d := range devices {
		for k := range d.Slices {
			if i == len(c.snapshot.Slices) || c.snapshot.Slices[i].Slice != d.Slices[k] {
				return false
			}
			i++
		}
	}
	return i == len(c.snapshot.Slices) && len(c.cut) == len(devices)
}

// gaps is what the ledger has to know beyond the slices.
func (c *Core) gaps() gaps {
	g := gaps{surplus: c.surplus}
	for i := range c.cut {
		n := c.cut[i].left
		g.uncut += n
		if n > 0 && c.shaping[c.snapshot.GPUs[i].Index] != 0 {
			g.shaping += n
		}
	}
	return g
}

// cut is how a GPU is cut: the memory slices that its instances have, and the
// compute slices that none has.
type cut struct {
	mask uint8
	left int
}

func cutOf(d gpu.Device) cut {
	var c cut
	f, ok := gpu.Lookup(d.Family)
	if ok && d.MIG {
		c.left = f.Compute
	}
	for _, s := range d.Slices {
		c.mask |= gpu.Mask(s.Start, s.Shape.MemorySlices)
		c.left -= s.Shape.ComputeSlices
	}
	c.left = max(0, c.left)
	return c
}

// layout takes over a new list of slices. One that is still there keeps its lease.
func (c *Core) layout(devices []gpu.Device) {
	old, oldLeases, oldAt := c.snapshot.Slices, c.leases, c.at
	c.snapshot.Slices, c.leases, c.at, c.broken = nil, nil, map[string]int{}, nil
	c.placedAt, c.heldAt, c.cut = finder{}, finder{}, nil
	for _, d := range devices {
		c.cut = append(c.cut, cutOf(d))
		for _, g := range d.Slices {
			var l Lease
			if i, ok := oldAt[g.ID]; ok && old[i].Start == g.Start && old[i].Shape.Profile == g.Shape.Profile {
				l = oldLeases[i]
			} else if gen := c.shaping[g.GPU]; gen != 0 { // new, and not yet said to be finished
				l = Lease{Gen: gen, Since: c.snapshot.Now, Moving: true, Shaping: true}
			}
			if _, twice := c.at[g.ID]; twice {
				c.breaks("slice listed twice", "slice", g.ID)
			}
			c.at[g.ID] = len(c.leases)
			c.snapshot.Slices, c.leases = append(c.snapshot.Slices, Slice{Slice: g}), append(c.leases, l)
		}
	}
	c.over = make([]overlay, len(c.leases))
	for i, s := range old {
		if j, ok := c.at[s.ID]; oldLeases[i].Job != "" && (!ok || c.leases[j].Gen != oldLeases[i].Gen) {
			c.breaks("loan of a slice that is gone", "slice", s.ID, "job", oldLeases[i].Job)
		}
	}
	c.overlaps()
}

// overlaps looks for slices that share memory of one GPU, whose slices lie side by
// side in the list: looking through all of a fleet of 10,000 would take seconds.
func (c *Core) overlaps() {
	all := c.snapshot.Slices
	for i, a := range all {
		for k := i - 1; k >= 0 && all[k].GPU == a.GPU; k-- {
			if b := all[k]; a.ID != b.ID && a.Start < b.Start+b.Shape.MemorySlices && b.Start < a.Start+a.Shape.MemorySlices {
				c.breaks("slices overlap", "slice", a.ID, "other", b.ID)
			}
		}
	}
}

// overlay finds what each slice holds.
func (c *Core) overlay(placed []Placed, stale bool) {
	for i := range c.over {
		c.over[i] = overlay{-1, -1}
	}
	c.placedAt.next, c.heldAt.next = 0, 0
	for k := range placed {
		if i, ok := c.placedAt.look(placed[k].Slice, c.at); ok {
			// Of two on a slice the one that is awake is what the slice is doing.
			if old := c.over[i].placed; old < 0 || placed[old].Phase == Asleep {
				c.over[i].placed = int32(k)
			}
		}
	}
	clear(c.byJob)
	for k := range c.snapshot.Jobs {
		j := &c.snapshot.Jobs[k]
		if c.byJob[j.ID], j.Have = k, len(j.Slices); stale {
			j.Have = 0 // as many as there are leases
			continue
		}
		for _, id := range j.Slices {
			if i, ok := c.heldAt.look(id, c.at); ok {
				c.over[i].holder = int32(k)
			}
		}
	}
}

// reconcile makes a settled lease say what the keeper of the jobs says: a job
// that let go ended by itself, and one that holds a slice without a lease (a
// move failed half-way, a restart) is given one, so that nobody else gets the slice.
func (c *Core) reconcile(i int, now time.Time, stale bool) {
	l, holder := &c.leases[i], c.over[i].holder
	l.Unsure = l.Unsure && stale
	id := ""
	if holder >= 0 {
		id = c.snapshot.Jobs[holder].ID
	}
	switch {
	case l.Job == id && !stale:
	case l.Moving || stale:
		who := l.Job
		if stale && l.Leaving {
			who = c.pending[l.Gen].left
		}
		if k, ok := c.byJob[who]; ok { // on its way there, or there
			c.snapshot.Jobs[k].Have++
		}
	default:
		if holder >= 0 {
			*l = c.adopt(c.snapshot.Slices[i].ID, &c.snapshot.Jobs[holder], now)
		} else {
			*l = Lease{Gen: c.nextGen(), Since: now}
		}
	}
}

func (c *Core) nextGen() uint64 { c.gen++; return c.gen }

// join makes one slice of what its keepers report.
func (c *Core) join(i int, placed []Placed, healthy bool) {
	l, o, s := &c.leases[i], c.over[i], &c.snapshot.Slices[i]
	phase, model := Free, ""
	if o.placed >= 0 {
		phase, model = placed[o.placed].Phase, placed[o.placed].Model
	}
	if l.Job != "" || l.Moving {
		phase = c.busy(l, o, phase)
	}
	if !healthy {
		phase = Unhealthy
	}
	// Few of them change, and a comparison costs less than telling the garbage
	// collector of a pointer that is the same.
	if s.Phase != phase {
		s.Phase = phase
	}
	if s.Model != model {
		s.Model = model
	}
	if s.Job != l.Job {
		s.Job = l.Job
	}
	if s.To != l.To {
		s.To = l.To
	}
	if s.Since != l.Since {
		s.Since = l.Since
	}
	s.Moving = l.Moving || l.Unsure
}

// busy is the phase of a slice that is lent or moves; phase is its replica's.
func (c *Core) busy(l *Lease, o overlay, phase Phase) Phase {
	switch {
	case l.Moving && l.Shaping:
		return Reshaping
	case l.Moving && l.Leaving && (phase == Loading || phase == Ready):
		return Loading // the job has left, the claimant comes
	case l.Moving && l.Leaving:
		return Checkpoint
	case l.Job == "" || phase == Draining:
		return phase
	}
	if o.holder >= 0 { // reconcile has seen to it that it is the borrower, or on its way
		if j := &c.snapshot.Jobs[o.holder]; j.ID == l.Job && j.Running {
			return JobRuns
		}
	} else if k, ok := c.byJob[l.Job]; ok && c.snapshot.Jobs[k].Running { // on its way, to a job that runs elsewhere
		return JobRuns
	}
	return JobStart
}

// broken is an invariant that does not hold.
type broken struct {
	what string
	args []any
}

func (c *Core) breaks(what string, args ...any) { c.broken = append(c.broken, broken{what, args}) }

// check holds the invariants that are cheap enough for every look.
func (c *Core) check() {
	for _, b := range c.broken {
		c.violated(b.what, b.args...)
	}
	c.broken = slices.DeleteFunc(c.broken, func(b broken) bool { return b.what == "loan of a slice that is gone" })
	for i := range c.leases {
		if l := &c.leases[i]; l.Job != "" && l.Bound <= 0 {
			c.violated("loan without a bound", "slice", c.snapshot.Slices[i].ID, "job", l.Job)
		}
	}
}

func (c *Core) violated(what string, args ...any) {
	c.stats.Violations++
	c.log.Error("BUG: invariant broken: "+what, args...)
}
