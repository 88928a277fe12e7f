package simulated

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"aloft/gpu"
)

var _ gpu.Shaper = (*Node)(nil)

// errInjected is the failure that BreakReshape asked for.
var errInjected = errors.New("injected fault")

// BreakReshape makes the next reshape of a GPU fail after that many steps: what
// was destroyed is gone, what was not yet made is not there.
func (n *Node) BreakReshape(index, steps int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.breaks[index] = steps
}

// Reshape gives a GPU other instances, in the modelled time. It refuses, with
// nothing changed, what is not legal and what would destroy an instance with
// processes on it (SetUsage).
func (n *Node) Reshape(ctx context.Context, index int, layout []gpu.Placement) ([]gpu.Slice, error) {
	select {
	case n.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("reshape simulated gpu %d: %w", index, context.Cause(ctx))
	}
	defer func() { <-n.turn }()
	before, gone, fresh, err := n.change(index, layout)
	if err != nil {
		return before, fmt.Errorf("reshape simulated gpu %d: %w", index, err)
	}
	for _, s := range gone {
		if err = n.step(ctx, index, n.destroy, func(d *gpu.Device) {
			d.Slices = slices.DeleteFunc(d.Slices, func(have gpu.Slice) bool { return have.UUID == s.UUID })
		}); err != nil {
			break
		}
	}
	for _, pl := range fresh {
		if err != nil {
			break
		}
		err = n.step(ctx, index, n.create, func(d *gpu.Device) { d.Slices = append(d.Slices, n.instance(d, pl)) })
	}
	after := n.settle(index, before)
	if err != nil {
		err = fmt.Errorf("reshape simulated gpu %d: %w", index, err)
	}
	return after, err
}

// change checks a reshape and says what it comes to.
func (n *Node) change(index int, layout []gpu.Placement) (before, gone []gpu.Slice, fresh []gpu.Placement, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if index < 0 || index >= len(n.devices) {
		return nil, nil, nil, fmt.Errorf("no such gpu on a node of %d", len(n.devices))
	}
	d := n.devices[index]
	before = slices.Clone(d.Slices)
	if !d.MIG {
		return before, nil, nil, errors.New("MIG is off, and turning it on needs an idle GPU and a reset")
	}
	family, _ := gpu.Lookup(d.Family) // known: it was laid out
	gone, fresh, err = family.Change(before, layout)
	for _, s := range gone {
		if u := n.usage[s.ID]; err == nil && u.Processes > 0 {
			err = fmt.Errorf("%s has %d processes: %w", s.ID, u.Processes, gpu.ErrInUse)
		}
	}
	return before, gone, fresh, err
}

// step takes its time and then changes the device.
func (n *Node) step(ctx context.Context, index int, takes time.Duration, do func(*gpu.Device)) error {
	if takes > 0 {
		timer := time.NewTimer(takes)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if left, ok := n.breaks[index]; ok {
		if left == 0 {
			delete(n.breaks, index)
			return errInjected
		}
		n.breaks[index] = left - 1
	}
	do(&n.devices[index])
	return nil
}

// instance is a new one: its UUID is no earlier one's, as on a real GPU.
func (n *Node) instance(d *gpu.Device, pl gpu.Placement) gpu.Slice {
	shape, err := gpu.ShapeOf(d.Family, pl.Profile)
	if err != nil {
		panic("BUG: a legal layout has an unknown shape: " + err.Error())
	}
	n.made++
	return gpu.Slice{UUID: uuid("MIG", d.Index, fmt.Sprintf("%s@%d, made as %d", pl.Profile, pl.Start, n.made)), GPU: d.Index, Start: pl.Start, Shape: shape}
}

// settle names what is there now.
func (n *Node) settle(index int, before []gpu.Slice) []gpu.Slice {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.breaks, index) // a fault beyond the last step was none
	d := &n.devices[index]
	slices.SortFunc(d.Slices, func(a, b gpu.Slice) int { return a.Start - b.Start })
	gpu.Name(index, before, d.Slices)
	old := map[string]gpu.Usage{}
	for _, s := range before {
		old[s.ID] = n.usage[s.ID]
		delete(n.usage, s.ID)
	}
	for _, s := range d.Slices {
		n.usage[s.ID] = old[s.ID]
	}
	return slices.Clone(d.Slices)
}
