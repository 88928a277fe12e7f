package arbiter

import (
	"fmt"
	"testing"
	"time"

	"aloft/gpu"
)

// atRest is a node of GPUs cut into seven, at rest: two models with all that they
// need, jobs on the other slices.
func atRest(gpus, jobs int) Observation {
	o := Observation{Now: noon, Models: []Model{chat("chat", float64(gpus), 1, 3*gpus), chat("code", float64(gpus)/2, 1, 2*gpus)}}
	for i := range o.Models {
		o.Models[i].Work = make([]float64, 60)
	}
	for k := range jobs {
		o.Jobs = append(o.Jobs, Job{ID: fmt.Sprintf("j%d", k), Kind: "train", Needs: g1, Grace: 30 * time.Second, Running: true, Created: noon})
	}
	n := 0
	for g := range gpus {
		d := gpu.Device{Index: g, Family: "A100-80GB", MIG: true, Health: gpu.Health{OK: true}}
		for i := range 7 {
			s := gpu.Slice{ID: gpu.SliceID(g, i), UUID: fmt.Sprintf("MIG-%d-%d", g, i), GPU: g, Start: i, Shape: g1}
			d.Slices = append(d.Slices, s)
			switch {
			case i < 2:
				o.Placed = append(o.Placed, Placed{Slice: s.ID, Model: "chat", Phase: Ready})
			case i < 3:
				o.Placed = append(o.Placed, Placed{Slice: s.ID, Model: "code", Phase: Ready})
			default:
				j := &o.Jobs[n%jobs]
				j.Slices = append(j.Slices, s.ID)
				j.MaxWidth++
				n++
			}
		}
		o.Devices = append(o.Devices, d)
	}
	return o
}

// BenchmarkLook is a look at 64 GPUs at rest: the simulator makes 170,000 a day.
func BenchmarkLook(b *testing.B) {
	c := testCore(b, func(o *CoreOptions) { o.Plan = 10 * time.Second })
	o := atRest(64, 60)
	c.Look(o)
	b.ReportAllocs()
	for b.Loop() {
		o.Now = o.Now.Add(500 * time.Millisecond)
		c.Look(o)
	}
	if n := len(c.history.records); n > 100 {
		b.Fatalf("%d records, e.g. %v", n, c.history.records[n-1])
	}
}
