// Package simulated models a node's GPUs: real geometry from gpu's tables, no
// device behind it. What it reports is marked as modelled wherever it is shown.
package simulated

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"aloft/gpu"
)

// maxGPUs bounds a node; the largest real ones hold 16.
const maxGPUs = 64

// Options lists the GPUs of a modelled node.
type Options struct {
	GPUs []GPU
	// Create and Destroy are the modelled time of one instance's making and
	// unmaking in a reshape; 0 = at once.
	Create, Destroy time.Duration
}

// GPU is one modelled GPU.
type GPU struct {
	// Family is a MIG family (gpu.Families), or "" for a GPU without MIG, which
	// then needs Model and Bytes.
	Family string
	Model  string // product name; "" = the family's
	Bytes  int64  // usable memory without MIG; 0 = the family's
	// Layout lists MIG profiles, each with a start ("3g.40gb@4") or without
	// ("3g.40gb"). Empty, or the one word "full": MIG is off, one slice.
	Layout []string
}

// Validate says what cannot be modelled, in one line.
func (o Options) Validate() error {
	_, err := build(o)
	return err
}

// Node is a modelled node. It is safe for use by several goroutines.
type Node struct {
	mu      sync.Mutex
	devices []gpu.Device
	usage   map[string]gpu.Usage // by slice; every slice has an entry
	made    int                  // instances made by reshapes: part of their UUIDs
	breaks  map[int]int          // by gpu: the steps after which its next reshape fails

	create, destroy time.Duration
	turn            chan struct{} // reshapes go one after the other, as under the driver's lock
}

var _ gpu.Inventory = (*Node)(nil)

// New builds the node, or says which GPU cannot be built and why.
func New(o Options) (*Node, error) {
	devices, err := build(o)
	if err != nil {
		return nil, err
	}
	n := &Node{devices: devices, usage: map[string]gpu.Usage{}, breaks: map[int]int{},
		create: o.Create, destroy: o.Destroy, turn: make(chan struct{}, 1)}
	for _, d := range devices {
		for _, s := range d.Slices {
			n.usage[s.ID] = gpu.Usage{}
		}
	}
	return n, nil
}

func build(o Options) ([]gpu.Device, error) {
	if len(o.GPUs) < 1 || len(o.GPUs) > maxGPUs {
		return nil, fmt.Errorf("simulated node: %d GPUs, want 1 to %d", len(o.GPUs), maxGPUs)
	}
	if o.Create < 0 || o.Destroy < 0 {
		return nil, fmt.Errorf("simulated node: create takes %v and destroy %v, want no less than 0", o.Create, o.Destroy)
	}
	devices := make([]gpu.Device, len(o.GPUs))
	for i, g := range o.GPUs {
		var err error
		if devices[i], err = g.device(i); err != nil {
			return nil, fmt.Errorf("simulated node: gpu %d: %w", i, err)
		}
	}
	return devices, nil
}

func (g GPU) device(index int) (gpu.Device, error) {
	d := gpu.Device{
		Index: index, Model: g.Model, Family: g.Family, Bytes: g.Bytes,
		UUID: uuid("GPU", index, g.Family), Health: gpu.Health{OK: true}, Modeled: true,
	}
	if g.Bytes < 0 {
		return d, fmt.Errorf("memory is %d bytes, want more than 0", g.Bytes)
	}
	whole := len(g.Layout) == 0 || slices.Equal(g.Layout, []string{gpu.Full})
	if g.Family == "" {
		switch {
		case !whole:
			return d, fmt.Errorf("layout %s needs a MIG family", strings.Join(g.Layout, " "))
		case g.Model == "" || g.Bytes == 0:
			return d, errors.New("without a MIG family it needs a model and its memory")
		}
		d.Slices = []gpu.Slice{{ID: gpu.SliceID(index, 0), UUID: d.UUID, GPU: index, Shape: gpu.FullShape(g.Bytes)}}
		return d, nil
	}
	full, err := gpu.ShapeOf(g.Family, gpu.Full)
	if err != nil {
		return d, err
	}
	if d.Model == "" {
		d.Model = g.Family
	}
	if d.Bytes == 0 {
		d.Bytes = full.Bytes
	}
	if whole {
		full.Bytes = d.Bytes
		d.Slices = []gpu.Slice{{ID: gpu.SliceID(index, 0), UUID: d.UUID, GPU: index, Shape: full}}
		return d, nil
	}
	d.MIG = true
	d.Slices, err = g.slices(index)
	return d, err
}

func (g GPU) slices(index int) ([]gpu.Slice, error) {
	if slices.Contains(g.Layout, gpu.Full) {
		return nil, errors.New(`"full" is the whole GPU and leaves no room for MIG slices`)
	}
	family, _ := gpu.Lookup(g.Family) // known: its full shape was found
	set, err := family.Layout(g.Layout)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(set, func(a, b gpu.Placement) int { return a.Start - b.Start })
	var out []gpu.Slice
	for i, p := range set {
		shape, err := gpu.ShapeOf(g.Family, p.Profile)
		if err != nil {
			return nil, err
		}
		out = append(out, gpu.Slice{
			ID: gpu.SliceID(index, i), UUID: uuid("MIG", index, fmt.Sprintf("%s@%d", p.Profile, p.Start)),
			GPU: index, Start: p.Start, Shape: shape,
		})
	}
	return out, nil
}

// uuid gives the same thing the same name on every run.
func uuid(kind string, index int, what string) string {
	h := sha256.Sum256(fmt.Appendf(nil, "aloft simulated %s %d %s", kind, index, what))
	return fmt.Sprintf("%s-%x-%x-%x-%x-%x", kind, h[:4], h[4:6], h[6:8], h[8:10], h[10:16])
}

// List returns the GPUs as they are now; the caller owns what it gets.
func (n *Node) List(ctx context.Context) ([]gpu.Device, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("list simulated GPUs: %w", context.Cause(ctx))
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	out := slices.Clone(n.devices)
	for i := range out {
		out[i].Slices = slices.Clone(out[i].Slices)
	}
	return out, nil
}

// Usage returns what SetUsage set, taken now unless it said when.
func (n *Node) Usage(ctx context.Context, slice string) (gpu.Usage, error) {
	if err := ctx.Err(); err != nil {
		return gpu.Usage{}, fmt.Errorf("usage of %s: %w", slice, context.Cause(ctx))
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	u, ok := n.usage[slice]
	if !ok {
		return u, fmt.Errorf("usage: %w %.40q", gpu.ErrUnknownSlice, slice)
	}
	if u.At.IsZero() {
		u.At = time.Now()
	}
	return u, nil
}

// SetUsage is what Usage reports for a slice from now on.
func (n *Node) SetUsage(slice string, u gpu.Usage) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, ok := n.usage[slice]; !ok {
		return fmt.Errorf("set usage: %w %.40q", gpu.ErrUnknownSlice, slice)
	}
	n.usage[slice] = u
	return nil
}

// InjectXID makes a GPU report a driver error; 0 makes it healthy again. As on
// a real node an application's own XID changes nothing.
func (n *Node) InjectXID(index, xid int) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if index < 0 || index >= len(n.devices) {
		return fmt.Errorf("inject XID %d: no gpu %d on a node of %d", xid, index, len(n.devices))
	}
	h := gpu.HealthAfterXID(xid)
	if xid == 0 {
		h = gpu.Health{OK: true}
	}
	if xid == 0 || !h.OK {
		n.devices[index].Health = h
	}
	return nil
}

// Close has nothing to close.
func (n *Node) Close() error { return nil }
