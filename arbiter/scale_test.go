package arbiter

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"aloft/gpu"
)

// longQueue is a node of whole GPUs and 1g slices, a third of which serve, the rest
// lent; jobs wait in long queues.
func longQueue(gpus, slicesOf, jobs int) Snapshot {
	s := Snapshot{Now: noon, Plan: true, Cap: noCap}
	a100 := gpu.Shape{Profile: "1g.10gb", ComputeSlices: 1, MemorySlices: 1, Bytes: 10 << 30}
	s.Jobs = append(s.Jobs, Job{ID: "backlog", Kind: "batch", Needs: a100, MaxWidth: 1 << 20, Priority: -1, Unsaved: 5 * time.Second})
	for g := range gpus {
		s.GPUs = append(s.GPUs, GPU{Index: g, Server: g / 8, Family: "A100-80GB", Health: gpu.Health{OK: true}})
		for k := range slicesOf {
			sl := Slice{Slice: gpu.Slice{ID: fmt.Sprintf("g%d/s%d", g, k), GPU: g, Start: k, Shape: a100}, Phase: Free, Since: noon.Add(-time.Hour)}
			switch i := g*slicesOf + k; {
			case g < gpus/3:
				sl.Phase, sl.Model = Ready, fmt.Sprintf("m%d", g%8)
			case g < gpus/2:
				sl.Phase, sl.Model, sl.Job = JobRuns, fmt.Sprintf("m%d", g%8), "backlog"
				s.Jobs[0].Have++
			case i%10 == 0:
			default:
				id := fmt.Sprintf("run%d", i)
				sl.Phase, sl.Job = JobRuns, id
				s.Jobs = append(s.Jobs, Job{ID: id, Kind: "train", Needs: a100, MaxWidth: 1, Have: 1, Running: true, Unsaved: time.Minute, Grace: 30 * time.Second})
			}
			s.Slices = append(s.Slices, sl)
		}
	}
	for i := range jobs {
		j := Job{ID: fmt.Sprintf("wait%d", i), Kind: []string{"batch", "train", "quantize"}[i%3], Needs: a100, MaxWidth: 1,
			Tenant: fmt.Sprintf("t%d", i%50), Created: noon.Add(-time.Duration(i) * time.Second)}
		if i%20 == 1 {
			j.Needs = gpu.Shape{Profile: "7g.80gb", ComputeSlices: 7, MemorySlices: 8, Bytes: 80 << 30}
			j.MinWidth, j.MaxWidth = 1+i%8, 1+i%8
		}
		s.Jobs = append(s.Jobs, j)
	}
	for i := range 8 {
		n := gpus / 3 * slicesOf / 8
		m := chat(fmt.Sprintf("m%d", i), float64(n)*0.8, 1, 2*n)
		m.Work = steady(60, 0.1)
		s.Models = append(s.Models, m)
	}
	return s
}

// TestPlanScale holds what a large plan may allocate: 1,000 GPUs, 5,000 slices and
// 10,000 queued jobs in 200 MB. What it takes BenchmarkPlan and the benchmark plan tell.
func TestPlanScale(t *testing.T) {
	s := longQueue(1000, 5, 10000)
	p := testPolicy()
	if n := len(p.Decide(s).Moves); n < 300 {
		t.Fatalf("%d moves: the plan shows nothing", n)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	p.Decide(s)
	runtime.ReadMemStats(&after)
	if bytes := after.TotalAlloc - before.TotalAlloc; bytes > 200<<20 {
		t.Errorf("a plan takes %d bytes, want 200 MB at most", bytes)
	}
}

func BenchmarkPlan(b *testing.B) {
	for _, n := range []int{100, 1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := longQueue(n, 5, 10*n)
			for b.Loop() {
				testPolicy().Decide(s)
			}
		})
	}
}

// BenchmarkPlanNode is the 64 GPUs of the day scenario with a short queue.
func BenchmarkPlanNode(b *testing.B) {
	s := longQueue(64, 7, 50)
	for b.Loop() {
		testPolicy().Decide(s)
	}
}

// BenchmarkGuard is a look at 448 slices at which nothing is to be done.
func BenchmarkGuard(b *testing.B) {
	s := longQueue(64, 7, 100)
	s.Plan = false
	for i := range s.Models { // each has 14 replicas or 21
		s.Models[i].InFlight *= 0.7
	}
	if n := len(testPolicy().Decide(s).Moves); n > 0 {
		b.Fatalf("%d moves", n)
	}
	for b.Loop() {
		testPolicy().Decide(s)
	}
}
