package sim

import (
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"time"

	"aloft/arbiter"
	"aloft/gpu"
	"aloft/sim/scenario"
)

// machine is the GPUs and their slices. A GPU is split into seven small slices
// or is one whole; both shapes are the scenario's.
type machine struct {
	gpus         []device
	slots        []*slot // all, by GPU and start
	byID         map[string]*slot
	family       gpu.Family
	small, whole gpu.Shape
	share        []int // by unit: the model that owns it in the static split; −1 = jobs
	total        int   // units
	node         *Node // in place of the two shapes; nil = there is none
	reshape      time.Duration
}

// device is one GPU.
type device struct {
	index    int
	server   int
	isWhole  bool
	broken   bool
	version  int   // how often it was reshaped: a new instance has a new UUID
	reshapes *move // under way
	reshaped time.Duration
	failures uint64
}

// slot is one slice and who is on it.
type slot struct {
	gpu.Slice
	index  int // in slots
	units  int // of the ledger: 1, or 7 for a whole GPU; on a node its compute slices
	class  int // of book.idle: 0, or 1 for a whole GPU
	used   int // of them by the last job: a single slice may lie on a whole GPU
	phase  arbiter.Phase
	model  int    // whose replica loads, serves or drains here; −1 = none
	asleep uint32 // bit i: a replica of model i sleeps here
	stint  *stint // of the job that is here
	move   *move  // that touches it
	since  time.Duration

	standing standing // as booked
}

// number is the slice's as the queues know replicas: the unit at which it begins.
// A whole GPU and its first seventh share one, and are never there together.
func (s *slot) number() int { return scenario.SlicesPerGPU*s.GPU + s.Start }

// idle: nothing but sleepers on it.
func (s *slot) idle() bool { return s.phase == arbiter.Free || s.phase == arbiter.Asleep }

// maxModels is the width of slot.asleep.
const maxModels = 32

// build makes the machine as it is at the start: every GPU split.
func (r *engine) build() error {
	c := r.world.Scenario.Cluster
	models := len(r.world.Traffic)
	if models > maxModels {
		return fmt.Errorf("sim: %d models, want at most %d", models, maxModels)
	}
	if r.opt.Node != nil {
		return r.buildNode(r.opt.Node)
	}
	family, err := familyOf(c)
	if err != nil {
		return err
	}
	m := &r.machine
	m.family, m.byID, m.reshape = family, map[string]*slot{}, c.ReshapeS.Duration()
	for _, p := range []struct {
		name string
		to   *gpu.Shape
	}{{c.SliceShape, &m.small}, {c.WholeShape, &m.whole}} {
		if *p.to, err = gpu.ShapeOf(family.Name, p.name); err != nil {
			return fmt.Errorf("sim: %w", err)
		}
	}
	m.share, m.total = make([]int, c.Slices()), c.Slices()
	u := 0
	for i := range r.world.Traffic {
		for range r.world.Traffic[i].Model.Static {
			if u == len(m.share) {
				return fmt.Errorf("sim: static shares are more than the %d slices", u)
			}
			m.share[u] = i
			u++
		}
	}
	for ; u < len(m.share); u++ {
		m.share[u] = -1
	}
	for g := range c.GPUs {
		m.gpus = append(m.gpus, device{index: g, server: g / max(1, c.ServerGPUs)})
		r.split(&m.gpus[g])
	}
	r.view = View{Scenario: r.world.Scenario, Share: m.share, Slice: m.small, Whole: m.whole, run: r}
	r.relist()
	return nil
}

// familyOf finds the MIG tables of the scenario's GPU: they must have both shapes.
func familyOf(c scenario.Cluster) (gpu.Family, error) {
	for _, name := range gpu.Families() {
		f, _ := gpu.Lookup(name)
		whole, ok := f.Profile(c.WholeShape)
		small, ok2 := f.Profile(c.SliceShape)
		if ok && ok2 && gpu.FamilyOf(c.GPUModel, whole.Bytes) == name && len(small.Starts) >= scenario.SlicesPerGPU {
			return f, nil
		}
	}
	return gpu.Family{}, fmt.Errorf("sim: no MIG tables for %q with %s × %d and %s", c.GPUModel, c.SliceShape, scenario.SlicesPerGPU, c.WholeShape)
}

// layout is the placements of a GPU in one of its two shapes.
func (m *machine) layout(whole bool) []gpu.Placement {
	name, n := m.small.Profile, scenario.SlicesPerGPU
	if whole {
		name, n = m.whole.Profile, 1
	}
	p, _ := m.family.Profile(name)
	return p.Placements()[:n]
}

// shapeOf tells which of the two shapes a wanted layout is.
func (m *machine) shapeOf(layout []gpu.Placement) (whole, ok bool) {
	got := slices.Clone(layout)
	slices.SortFunc(got, func(a, b gpu.Placement) int { return a.Start - b.Start })
	for _, whole := range []bool{false, true} {
		if slices.Equal(got, m.layout(whole)) {
			return whole, true
		}
	}
	return false, false
}

// split makes the slices of a GPU's present shape, idle and empty. The caller
// lists them.
func (r *engine) split(d *device) {
	shape, units, class := r.small, 1, 0
	if d.isWhole {
		shape, units, class = r.whole, scenario.SlicesPerGPU, 1
	}
	for i, p := range r.machine.layout(d.isWhole) {
		id := gpu.SliceID(d.index, i)
		s := &slot{Slice: gpu.Slice{ID: id, UUID: "MIG-" + id + "-" + strconv.Itoa(d.version), GPU: d.index, Start: p.Start, Shape: shape},
			units: units, class: class, phase: arbiter.Free, model: -1, since: r.now, standing: away}
		r.byID[id] = s
		r.slots = append(r.slots, s)
	}
}

// relist orders the slices anew after some came or went, and shows them.
func (r *engine) relist() {
	slices.SortFunc(r.slots, func(a, b *slot) int { return a.number() - b.number() })
	r.view.Slices = slices.Grow(r.view.Slices[:0], len(r.slots))[:len(r.slots)]
	r.view.GPUs = r.view.GPUs[:0]
	r.seen.Devices = r.seen.Devices[:0]
	for i := range r.gpus {
		r.view.GPUs = append(r.view.GPUs, r.geometry(&r.gpus[i]))
		r.seen.Devices = append(r.seen.Devices, r.device(&r.gpus[i]))
	}
	for i, s := range r.slots {
		s.index = i
		d := &r.seen.Devices[s.GPU]
		d.Slices = append(d.Slices, s.Slice)
		r.view.Slices[i] = arbiter.Slice{Slice: s.Slice}
	}
	for _, s := range r.slots {
		r.refresh(s)
	}
	r.placed = false
}

// on lists the slices of a GPU.
func (r *engine) on(d *device) []*slot {
	from, _ := slices.BinarySearchFunc(r.slots, d.index, func(s *slot, g int) int { return s.GPU - g })
	to := from
	for to < len(r.slots) && r.slots[to].GPU == d.index {
		to++
	}
	return r.slots[from:to]
}

// refresh books, shows and checks a slice after anything about it has changed.
func (r *engine) refresh(s *slot) {
	r.advance()
	if s.idle() {
		s.phase = arbiter.Free
		if s.asleep != 0 {
			s.phase = arbiter.Asleep
		}
	}
	if st := s.stands(); st != s.standing {
		r.book.count(s, s.standing, -1)
		r.book.count(s, st, +1)
		s.standing = st
	}
	v := &r.view.Slices[s.index]
	if v.Phase != s.phase {
		s.since = r.now
		r.placed = false
	}
	v.Phase, v.Moving, v.Since, v.Model, v.Job, v.To = s.phase, s.move != nil, epoch.Add(s.since), "", "", ""
	if m := s.host(); m >= 0 {
		v.Model = r.serving[m].traffic.Model.Name
	}
	if s.stint != nil {
		v.Job = s.stint.job.ID
	}
	if s.move != nil {
		v.To = s.move.to()
		if s.move.Action == arbiter.Lend {
			v.Job = s.move.Job
		}
	}
	r.spans.show(r, s)
	r.check(s)
}

// host is the model whose replica is on the slice, awake or asleep; −1 = none.
func (s *slot) host() int {
	if s.model >= 0 || s.asleep == 0 {
		return s.model
	}
	return bits.TrailingZeros32(s.asleep)
}
