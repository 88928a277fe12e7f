package arbiter

import (
	"testing"
	"time"

	"aloft/gpu"
)

// Named mistakes of other systems. Dynamo #9294 (flapping) is TestLoopCalm, Kueue
// #13662 (evicted again and again) TestLoopClaimant, kserve #1247 (loading taken for
// idle) TestLoopSlowStart; the others are here.

// tight is a model that needs one replica more, of shape, than it has; every other
// slice is lent.
func tight(shape gpu.Shape, lent ...gpu.Shape) Observation {
	m := needing(chat("m", 1.5, 1, 2), shape)
	o := Observation{Now: noon, Models: []Model{m}, Placed: []Placed{{Slice: "own", Model: "m", Phase: Ready}}}
	add := func(id string, s gpu.Shape) {
		i := len(o.Devices)
		o.Devices = append(o.Devices, gpu.Device{Index: i, Health: gpu.Health{OK: true}, Slices: []gpu.Slice{{ID: id, GPU: i, Shape: s}}})
	}
	add("own", shape)
	for i, s := range lent {
		id := "lent" + string(rune('0'+i))
		add(id, s)
		o.Jobs = append(o.Jobs, Job{ID: "j" + id, Kind: "batch", Needs: s, MaxWidth: 1, Slices: []string{id}, Running: true})
	}
	return o
}

func reclaims(orders []Order) (out []string) {
	for _, o := range orders {
		if o.Move.Action == Reclaim {
			out = append(out, o.Move.Slice)
		}
	}
	return out
}

// TestRegressionByTotals: two slices of which neither can hold the claimant are not
// taken back, though together they are large enough (Kueue #1309, Volcano #5881).
func TestRegressionByTotals(t *testing.T) {
	equal(t, "taken", reclaims(testCore(t, nil).Look(tight(g3, g2, g2))), nil)
	equal(t, "taken with one that fits", reclaims(testCore(t, nil).Look(tight(g3, g2, g3))), []string{"lent1"})
}

// TestRegressionOtherLimit: what bounds loans does not stand in the way of taking
// one back: a cap that is exceeded, no headroom, a look between two plans (Kueue #7393).
func TestRegressionOtherLimit(t *testing.T) {
	c := testCore(t, nil)
	o := tight(g1, g1)
	c.planned.last, c.cap, c.calm = noon, 1, noon
	o.Models[0].Samples = 0
	equal(t, "taken", reclaims(c.Look(o)), []string{"lent0"})
}

// TestRegressionFirstPasses: a latency that rests on the few first answers of a new
// replica says nothing (Dynamo #12430); one that rests on enough does.
func TestRegressionFirstPasses(t *testing.T) {
	for _, c := range []struct {
		samples int
		want    []string
	}{{19, nil}, {20, []string{"lent0"}}} {
		o := tight(g1, g1)
		o.Models[0].InFlight, o.Models[0].P99, o.Models[0].Samples = 16, 10*time.Second, c.samples
		equal(t, "taken", reclaims(testCore(t, nil).Look(o)), c.want)
	}
}
