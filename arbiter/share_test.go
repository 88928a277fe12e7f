package arbiter

import (
	"math"
	"testing"

	"aloft/gpu"
)

var (
	a30 = gpu.Shape{Profile: "2g.12gb", ComputeSlices: 2, MemorySlices: 2, Bytes: 12 << 30, Axis: 4}
)

// TestDominantShare: the larger of the shares of compute and of memory slices in
// what the node has of either, for the tenant's weight.
func TestDominantShare(t *testing.T) {
	held := func(shape gpu.Shape, n int, job string) (all []Slice) {
		for range n {
			s := on("", shape, JobRuns, "")
			s.Job = job
			all = append(all, s)
		}
		return all
	}
	join := func(lists ...[]Slice) (all []Slice) {
		for _, l := range lists {
			all = append(all, l...)
		}
		for i := range all {
			all[i].ID = gpu.SliceID(i, 0)
		}
		return all
	}
	sick := held(g3, 4, "")
	for i := range sick {
		sick[i].Phase = Unhealthy
	}
	for _, c := range []struct {
		name   string
		slices []Slice
		have   int // slices of the job of tenant a
		weight float64
		want   float64
	}{
		// The node: 14 × 1g, of 14/7 compute and 14/8 memory. Three of them: 3/14 of either.
		{"one shape", join(held(g1, 3, "a"), held(g1, 11, "")), 3, 1, 3. / 14},
		// Two GPUs, each cut into one 3g.40gb and four 1g.10gb: 2 × (3 + 4) = 14 compute
		// and 2 × (4 + 4) = 16 memory slices. One 3g.40gb: 3/14 = 0.214, 4/16 = 0.250.
		{"memory dominates", join(held(g3, 1, "a"), held(g3, 1, ""), held(g1, 8, "")), 1, 1, 0.25},
		// Four 1g.10gb: 4/14 = 0.286, 4/16 = 0.250.
		{"compute dominates", join(held(g1, 4, "a"), held(g3, 2, ""), held(g1, 4, "")), 4, 1, 4. / 14},
		// Both: (3 + 4)/14 = 0.5, (4 + 4)/16 = 0.5. Adding each slice's own dominant part
		// would say 0.250 + 4 × 0.071 = 0.536: more than the half that it has.
		{"both, of the sums", join(held(g3, 1, "a"), held(g1, 4, "a"), held(g3, 1, ""), held(g1, 4, "")), 5, 1, 0.5},
		{"for its weight", join(held(g3, 1, "a"), held(g3, 1, ""), held(g1, 8, "")), 1, 2, 0.125},
		// What is broken is nobody's: of 3 + 8 = 11 compute and 4 + 8 = 12 memory slices.
		{"what is left", join(held(g3, 1, "a"), held(g1, 8, ""), sick), 1, 1, 4. / 12},
		// It needs 1g.10gb and holds a 3g.40gb: what it holds counts. Another that is on
		// its way counts as what it needs: (3 + 1)/14 = 0.286, (4 + 1)/16 = 0.313.
		{"one on its way", join(held(g3, 1, "a"), held(g3, 1, ""), held(g1, 8, "")), 2, 1, 5. / 16},
		// An A30 has four of each. Beside an A100 cut into seven: 7/7 + 4/4 = 2 GPUs of
		// compute, 7/8 + 4/4 = 1.875 of memory. Half an A30: 0.5/2 = 0.25, 0.5/1.875 = 0.267.
		{"two families", join(held(a30, 1, "a"), held(a30, 1, ""), held(g1, 7, "")), 1, 1, 0.5 / 1.875},
		{"nothing", join(held(g1, 7, "")), 0, 1, 0},
		{"no node", nil, 1, 1, 0},
	} {
		j := job("a", "train")
		j.Tenant, j.Have, j.MaxWidth = "a", c.have, 9
		p := testPolicy()
		p.Tenants = []Share{{Tenant: "a", Weight: c.weight}}
		q := p.newQueue(&Snapshot{Now: noon, Slices: c.slices, Jobs: []Job{j}})
		if got := q.tenant("a").share; math.Abs(got-c.want) > 1e-12 {
			t.Errorf("%s: %.4f, want %.4f", c.name, got, c.want)
		}
	}
}

// TestFairOrder: two tenants, one of which holds slices that are large in memory:
// the next slice goes to who has the lesser dominant share, though it has more slices.
func TestFairOrder(t *testing.T) {
	s := Snapshot{Now: noon, Plan: true, Cap: noCap}
	put := func(id string, shape gpu.Shape, job string) {
		sl := on(id, shape, Free, "")
		if job != "" {
			sl = lentTo(job, on(id, shape, JobRuns, ""))
		}
		s.Slices = append(s.Slices, sl)
	}
	// 6 + 8 = 14 compute, 8 + 8 = 16 memory slices. m: 4/16 = 0.250; c: 3/14 = 0.214,
	// then 4/14 = 0.286, so that the slice after that is m's.
	put("m0", g3, "m")
	put("m1", g3, "other")
	for _, id := range []string{"c0", "c1", "c2"} {
		put(id, g1, "c")
	}
	for _, id := range []string{"x0", "x1"} {
		put(id, g1, "")
	}
	for _, id := range []string{"o0", "o1", "o2"} {
		put(id, g1, "other")
	}
	holds := func(id string, have int) Job {
		j := job(id, "batch")
		j.Tenant, j.Have, j.MaxWidth = id, have, have
		return j
	}
	s.Jobs = []Job{holds("m", 1), holds("c", 3), holds("other", 4)}
	for _, id := range []string{"m", "c"} {
		j := job(id+" next", "batch")
		j.Tenant, j.MaxWidth = id, 1
		s.Jobs = append(s.Jobs, j)
	}
	var got []string
	for _, m := range testPolicy().Decide(s).Moves {
		got = append(got, m.Job)
	}
	equal(t, "in the order", got, []string{"c next", "m next"})
}

// TestBorrowLimit: in whole GPUs, of the sums.
func TestBorrowLimit(t *testing.T) {
	x := &tenant{Share: Share{BorrowLimit: 1}, whole: &parts{2, 2}}
	x.add(partsOf(g3, 1))
	// 3/7 and 4/8; four 1g.10gb more make 7/7 and 8/8, a fifth 8/7.
	if !x.fits(partsOf(g1, 4)) || x.fits(partsOf(g1, 5)) {
		t.Error("3g.40gb and four 1g.10gb are one GPU, and a fifth is more")
	}
	if !x.ever(partsOf(g3, 2)) || x.fits(partsOf(g3, 2)) || x.ever(partsOf(g3, 3)) {
		t.Error("two 3g.40gb fit once it has nothing, three never")
	}
}
