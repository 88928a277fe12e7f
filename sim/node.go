package sim

import (
	"cmp"
	"fmt"
	"slices"

	"aloft/arbiter"
	"aloft/gpu"
	"aloft/sim/scenario"
)

// Node is a machine as it stands, in place of the scenario's cluster: its instances
// are of any shapes, and stay as they are. Jobs on it take single slices
// (scenario.Job.Slices). It is for the arbiter's policies: the rivals know the
// scenario's two shapes alone.
type Node struct {
	Devices []gpu.Device
	// Models and Jobs say which slices will do, by model and by job; the zero shape,
	// also of those that are missing: any.
	Models, Jobs map[string]gpu.Shape
}

// buildNode makes the machine of a node.
func (r *engine) buildNode(n *Node) error {
	if _, ok := r.policy.(*Ours); !ok {
		return fmt.Errorf("sim: policy %s cannot lend on a node as it stands, want the arbiter's", r.opt.Name)
	}
	m := &r.machine
	m.node, m.byID = n, map[string]*slot{}
	for g := range n.Devices {
		m.gpus = append(m.gpus, device{index: g})
		for _, s := range n.Devices[g].Slices {
			if s.GPU != g || s.Start < 0 || s.Start >= scenario.SlicesPerGPU || m.byID[s.ID] != nil {
				return fmt.Errorf("sim: slice %s of GPU %d at %d: want names of their own, the GPU's index, and 0 <= start < %d", s.ID, s.GPU, s.Start, scenario.SlicesPerGPU)
			}
			made := &slot{Slice: s, units: max(1, s.Shape.ComputeSlices), phase: arbiter.Free, model: -1, standing: away}
			m.byID[s.ID] = made
			m.slots = append(m.slots, made)
			m.total += made.units
		}
	}
	m.share = slices.Repeat([]int{-1}, scenario.SlicesPerGPU*len(n.Devices))
	if err := r.shareOut(); err != nil {
		return err
	}
	r.view = View{Scenario: r.world.Scenario, Share: m.share, run: r}
	r.relist()
	return nil
}

// shareOut gives every model its static share: the smallest slices that will do, who
// needs large ones first.
func (r *engine) shareOut() error {
	order := make([]int, len(r.world.Traffic))
	for i := range order {
		order[i] = i
	}
	needs := func(i int) gpu.Shape { return r.node.Models[r.world.Traffic[i].Model.Name] }
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(needs(b).ComputeSlices, needs(a).ComputeSlices) })
	for _, i := range order {
		m := r.world.Traffic[i].Model
		for n := range m.Static {
			var best *slot
			for _, s := range r.slots {
				if r.share[s.number()] < 0 && suits(s.Shape, needs(i)) && (best == nil || s.units < best.units) {
					best = s
				}
			}
			if best == nil {
				return fmt.Errorf("sim: model %s keeps %d replicas in a static split, and there are slices for %d", m.Name, m.Static, n)
			}
			r.share[best.number()] = i
		}
	}
	return nil
}

// suits reports whether a slice is as large as is needed.
func suits(s, needs gpu.Shape) bool {
	return s.ComputeSlices >= needs.ComputeSlices && s.MemorySlices >= needs.MemorySlices
}

// needs is the slice that will do for a model, and its size in units of the ledger.
func (m *machine) needs(model string) (gpu.Shape, int) {
	if m.node == nil {
		return m.small, 1
	}
	s := m.node.Models[model]
	return s, max(1, s.ComputeSlices)
}

// suitsModel reports whether a replica of the model fits a slice.
func (m *machine) suitsModel(s *slot, model string) bool {
	needs, _ := m.needs(model)
	return suits(s.Shape, needs)
}

// needsOf is the slice that will do for a job.
func (r *engine) needsOf(j *job) gpu.Shape {
	switch {
	case r.node != nil:
		return r.node.Jobs[j.ID]
	case j.GPUs > 0:
		return r.whole
	}
	return r.small
}

// uses is how many units of a slice a job makes use of there.
func (r *engine) uses(j *job, s *slot) int {
	switch {
	case r.node != nil && r.node.Jobs[j.ID].ComputeSlices > 0:
		return min(s.units, r.node.Jobs[j.ID].ComputeSlices)
	case r.node != nil || j.GPUs > 0:
		return s.units
	}
	return 1
}
