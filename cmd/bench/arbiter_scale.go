package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"time"

	"aloft/arbiter"
	"aloft/gpu"
)

// fleetSizes are the numbers of GPUs that a plan is made for. Each has five
// slices and ten queued jobs.
var fleetSizes = []int{100, 300, 1000, 3000, 10_000}

// fleetLayout is how every GPU of the fleet is split.
var fleetLayout = []string{"2g.20gb", "2g.20gb", "1g.10gb", "1g.10gb", "1g.10gb"}

// arbiterScale times one plan, reshapes included, for fleets of growing size.
func arbiterScale(ctx context.Context, l *lab, r *result) error {
	sizes, times := fleetSizes, 5
	if l.quick {
		sizes, times = sizes[:3], 2
	}
	var rows [][]string
	var x, y []float64
	for _, n := range sizes {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		took, bytes, moves, err := planOnce(n, times)
		if err != nil {
			return err
		}
		rows = append(rows, []string{fmt.Sprint(n), fmt.Sprint(5 * n), fmt.Sprint(10 * n), fmt.Sprintf("%.1f", took*1e3), fmt.Sprintf("%.1f", bytes/1e6), fmt.Sprint(moves),
			strings.Repeat("▏", min(60, 1+int(took*1e3/10)))})
		x, y = append(x, math.Log(float64(n))), append(y, math.Log(took))
		if n == 1000 {
			r.atMost("one plan for 1,000 GPUs, 5,000 slices, 10,000 queued jobs, ms", took*1e3, 50)
			r.atMost("memory of that plan, MB", bytes/1e6, 200)
		}
		l.say("arbiter, plan for %d GPUs: %.1f ms", n, took*1e3)
	}
	r.atMost(fmt.Sprintf("growth of a plan's time from %d to %d GPUs, exponent (1 = linear)", sizes[0], sizes[len(sizes)-1]), slope(x, y), 1.15)
	var b strings.Builder
	writeTable(&b, []string{"GPUs", "slices", "queued jobs", "one plan, ms", "allocated, MB", "moves", "10 ms a mark"}, rows)
	r.note("One plan by size of the fleet: `arbiter.Decide` with loans and reshapes due, on one core; the median of %d. A model for each 20 GPUs; half of the slices serve, a quarter is lent; jobs ask for one slice, for two compute slices or for whole GPUs together.\n\n%s",
		times, strings.TrimSuffix(b.String(), "\n"))
	return nil
}

// slope is that of the line through the points with the least squares.
func slope(x, y []float64) float64 {
	mx, my, top, bottom := 0.0, 0.0, 0.0, 0.0
	for i := range x {
		mx, my = mx+x[i]/float64(len(x)), my+y[i]/float64(len(x))
	}
	for i := range x {
		top += (x[i] - mx) * (y[i] - my)
		bottom += (x[i] - mx) * (x[i] - mx)
	}
	return top / bottom
}

// planOnce plans for a fleet: the median time, and what the first plan allocated.
func planOnce(gpus, times int) (took, bytes float64, moves int, err error) {
	s, err := fleet(gpus)
	if err != nil {
		return 0, 0, 0, err
	}
	p := arbiter.Policy{Mode: arbiter.ModeLend, LendAbove: 0.35, ReclaimBelow: 0.15, Hold: 30 * time.Second, AfterReclaim: 30 * time.Second, MinSamples: 100,
		Rho: 0.8, Spare: 1, MaxEta: 0.8, Budget: arbiter.Budget{Detect: 500 * time.Millisecond, Kill: 2 * time.Second, Back: 6 * time.Second}}
	var all []float64
	for i := range times {
		runtime.GC()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		began := time.Now()
		plan := p.Decide(s)
		all = append(all, time.Since(began).Seconds())
		runtime.ReadMemStats(&after)
		if i == 0 {
			bytes, moves = float64(after.TotalAlloc-before.TotalAlloc), len(plan.Moves)
		}
	}
	return spreadOf(all).median, bytes, moves, nil
}

// fleet is a busy cluster, the same for the same size.
func fleet(gpus int) (arbiter.Snapshot, error) {
	const family = "A100-80GB"
	f, _ := gpu.Lookup(family)
	layout, err := f.Layout(fleetLayout)
	if err != nil {
		return arbiter.Snapshot{}, err
	}
	r := rand.New(rand.NewPCG(uint64(gpus), 6))
	now := time.Unix(1_700_000_000, 0)
	models := max(1, gpus/20)
	s := arbiter.Snapshot{Now: now, Plan: true, Geometry: true, Cap: 1 << 30, RoomFrom: now.Add(-time.Hour)}
	running := map[string]int{}
	for g := range gpus {
		d := arbiter.GPU{Index: g, Server: g / 8, Family: family, Health: gpu.Health{OK: true}}
		for i, at := range layout {
			d.Mask |= at.Mask()
			shape, err := gpu.ShapeOf(family, fleetLayout[i])
			if err != nil {
				return s, err
			}
			sl := arbiter.Slice{Slice: gpu.Slice{ID: gpu.SliceID(g, i), GPU: g, Start: at.Start, Shape: shape}, Phase: arbiter.Free, Since: now.Add(-time.Hour)}
			switch u := r.Float64(); {
			case u < 0.5:
				sl.Phase, sl.Model = arbiter.Ready, fmt.Sprint("model-", r.IntN(models))
			case u < 0.75:
				sl.Phase, sl.Job = arbiter.JobRuns, fmt.Sprint("running-", len(running))
				running[sl.Job] = len(s.Slices)
			}
			s.Slices = append(s.Slices, sl)
		}
		s.GPUs = append(s.GPUs, d)
	}
	small, err := gpu.ShapeOf(family, "1g.10gb")
	if err != nil {
		return s, err
	}
	for i := range models {
		m := arbiter.Model{Name: fmt.Sprint("model-", i), Needs: small, Min: 1, Max: 100, InFlight: 300 * r.Float64(), Slots: 16, Target: time.Second,
			P99: 200 * time.Millisecond, Samples: 1000, Back: 4 * time.Second, Cold: 45 * time.Second, Out: time.Second}
		m.RiseFast, m.RiseSlow = 1, 2
		m.SurplusFrom = now.Add(-time.Hour)
		for range 60 {
			m.Work = append(m.Work, 20*r.Float64())
		}
		s.Models = append(s.Models, m)
	}
	s.Jobs, err = fleetJobs(r, s, running, 10*gpus)
	return s, err
}

// fleetJobs are those that run, and as many that wait.
func fleetJobs(r *rand.Rand, s arbiter.Snapshot, running map[string]int, waiting int) ([]arbiter.Job, error) {
	var out []arbiter.Job
	for i := range len(running) {
		id := fmt.Sprint("running-", i)
		sl := s.Slices[running[id]]
		out = append(out, arbiter.Job{ID: id, Kind: "train", Needs: sl.Shape, Have: 1, MaxWidth: 1, Created: s.Now.Add(-2 * time.Hour), Grace: 30 * time.Second,
			Slices: []string{sl.ID}, Running: true, Unsaved: time.Minute, Restart: 30 * time.Second, Rest: time.Hour})
	}
	kinds := []string{"batch", "quantize", "evaluate", "train"}
	shapes := []string{"1g.10gb", "1g.10gb", "2g.20gb", "7g.80gb"}
	for i := range waiting {
		k := r.IntN(len(kinds))
		shape, err := gpu.ShapeOf("A100-80GB", shapes[k])
		if err != nil {
			return nil, err
		}
		at := s.Now.Add(-time.Duration(r.IntN(7200)) * time.Second)
		j := arbiter.Job{ID: fmt.Sprint("waiting-", i), Kind: kinds[k], Needs: shape, MaxWidth: 1, Tenant: fmt.Sprint("tenant-", r.IntN(50)), Priority: r.IntN(3),
			Created: at, Queued: at, Grace: 5 * time.Second, Restart: 10 * time.Second, Rest: time.Hour}
		if kinds[k] == "train" {
			j.MinWidth = 1 << r.IntN(4)
			j.MaxWidth, j.Grace = j.MinWidth, 30*time.Second
		}
		out = append(out, j)
	}
	return out, nil
}
