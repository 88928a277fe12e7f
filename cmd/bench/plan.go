package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"aloft/arbiter"
	"aloft/gpu"
)

// The fleet that a plan is made for.
const (
	planFamily   = "A100-80GB"
	planServer   = 8      // GPUs in one
	planModels   = 25     // GPUs for each model
	planQueue    = 10     // queued jobs for each GPU
	planMaxQueue = 10_000 // and at most
)

// What one plan may take at planAt GPUs.
const (
	planAt     = 1000
	planTime   = 50.0  // ms
	planMemory = 200.0 // MB, what the plan allocates and the snapshot it looks at
	planGrowth = 1.15  // exponent of its time in the number of GPUs, from 1,000 to 10,000
)

// planEpoch is when the generated snapshots are taken.
var planEpoch = time.Unix(1_800_000_000, 0)

// fleetSnapshot draws a fleet of so many GPUs in the middle of a busy day: five
// slices each, three fifths of them serving, a fifth lent, the rest free or
// asleep; models that have surplus and models that need more; and a queue of all
// kinds and shapes, a twentieth of it gangs. Equal seeds give equal fleets.
func fleetSnapshot(gpus int, seed uint64) arbiter.Snapshot {
	rng := rand.New(rand.NewPCG(seed, uint64(gpus)))
	s := arbiter.Snapshot{Now: planEpoch, Plan: true, Geometry: true, Cap: 5 * gpus, RoomFrom: planEpoch.Add(-time.Hour)}
	shape := func(profile string) gpu.Shape {
		sh, err := gpu.ShapeOf(planFamily, profile)
		if err != nil {
			panic("BUG: " + err.Error())
		}
		return sh
	}
	layouts := [][]gpu.Placement{
		{{Profile: "3g.40gb", Start: 4, Size: 4}, {Profile: "1g.10gb", Start: 0, Size: 1}, {Profile: "1g.10gb", Start: 1, Size: 1}, {Profile: "1g.10gb", Start: 2, Size: 1}, {Profile: "1g.10gb", Start: 3, Size: 1}},
		{{Profile: "2g.20gb", Start: 0, Size: 2}, {Profile: "2g.20gb", Start: 2, Size: 2}, {Profile: "1g.10gb", Start: 4, Size: 1}, {Profile: "1g.10gb", Start: 5, Size: 1}, {Profile: "1g.10gb", Start: 6, Size: 1}},
	}
	shapes := []gpu.Shape{shape("1g.10gb"), shape("2g.20gb"), shape("3g.40gb")}
	for i := range max(2, gpus/planModels) {
		s.Models = append(s.Models, fleetModel(rng, fmt.Sprintf("model-%03d", i), shapes[i%len(shapes)], 5*planModels))
	}
	for g := range gpus {
		card := arbiter.GPU{Index: g, Server: g / planServer, Family: planFamily, Health: gpu.Health{OK: rng.IntN(500) > 0}}
		for n, pl := range layouts[g%len(layouts)] {
			card.Mask |= pl.Mask()
			sl := arbiter.Slice{Slice: gpu.Slice{ID: gpu.SliceID(g, n), GPU: g, Start: pl.Start, Shape: shape(pl.Profile)}, Phase: arbiter.Free,
				Since: planEpoch.Add(-time.Duration(rng.IntN(3600)) * time.Second)}
			m := s.Models[rng.IntN(len(s.Models))]
			switch r := rng.IntN(20); {
			case !card.Health.OK:
				sl.Phase = arbiter.Unhealthy
			case r < 12 && m.Needs.MemorySlices <= pl.Size:
				sl.Phase, sl.Model = arbiter.Ready, m.Name
			case r < 16:
				j := fleetJob(rng, fmt.Sprintf("run-%d", len(s.Jobs)), sl.Shape)
				j.Have, j.MaxWidth, j.MinWidth, j.Slices, j.Running, j.Queued = 1, 1, 0, []string{sl.ID}, true, time.Time{}
				s.Jobs = append(s.Jobs, j)
				sl.Phase, sl.Job = arbiter.JobRuns, j.ID
			case r < 18 && m.Needs.MemorySlices <= pl.Size:
				sl.Phase, sl.Model = arbiter.Asleep, m.Name
			}
			s.Slices = append(s.Slices, sl)
		}
		s.GPUs = append(s.GPUs, card)
	}
	for i := range min(planQueue*gpus, planMaxQueue) {
		s.Jobs = append(s.Jobs, fleetJob(rng, fmt.Sprintf("job-%d", i), shapes[rng.IntN(len(shapes))]))
	}
	return s
}

func fleetModel(rng *rand.Rand, name string, needs gpu.Shape, most int) arbiter.Model {
	m := arbiter.Model{Name: name, Needs: needs, Min: 1, Max: most, Slots: 32, Target: time.Second, P99: time.Duration(200+rng.IntN(500)) * time.Millisecond,
		Samples: 1000, Back: 4 * time.Second, Cold: 85 * time.Second, Out: 2 * time.Second,
		Learned: arbiter.Learned{RiseFast: 0.5 + rng.Float64(), RiseSlow: 1 + rng.Float64(), SurplusFrom: planEpoch.Add(-10 * time.Minute)}}
	level := rng.Float64() * float64(most) * 0.6 // some need more than they have
	for range 60 {
		m.Work = append(m.Work, level*(0.8+0.4*rng.Float64()))
	}
	m.InFlight = level * 20
	return m
}

// fleetJob is a queued job.
func fleetJob(rng *rand.Rand, id string, needs gpu.Shape) arbiter.Job {
	kinds := []string{"batch", "quantize", "evaluate", "train", "train", "session"}
	j := arbiter.Job{ID: id, Kind: kinds[rng.IntN(len(kinds))], Needs: needs, MaxWidth: 1 + rng.IntN(3), Tenant: fmt.Sprintf("tenant-%02d", rng.IntN(20)),
		Priority: rng.IntN(3), Created: planEpoch.Add(-time.Duration(rng.IntN(86400)) * time.Second), Grace: 30 * time.Second,
		Unsaved: time.Duration(rng.IntN(300)) * time.Second, Restart: 20 * time.Second, Rest: time.Duration(60+rng.IntN(7200)) * time.Second,
		Stopping: arbiter.Stopping{Leave: 5 * time.Second, Save: 3 * time.Second}}
	if rng.IntN(20) == 0 {
		j.MinWidth, j.MaxWidth = 4, 8
	}
	j.Queued = j.Created
	return j
}

// fleetPolicy is the default settings.
func fleetPolicy() arbiter.Policy {
	return arbiter.Policy{Mode: arbiter.ModeLend, LendAbove: 0.35, ReclaimBelow: 0.15, Hold: 30 * time.Second, AfterReclaim: 30 * time.Second,
		MinSamples: 100, Rho: 0.85, MaxEta: 0.8, Budget: arbiter.Budget{Detect: 500 * time.Millisecond, Kill: 2 * time.Second, Back: 10 * time.Second}}
}

// planned is what plans for one fleet cost.
type planned struct {
	gpus, slices, jobs, moves, holds int
	plan, guard                      spread  // ms
	allocated                        float64 // MB, of one plan
	objects                          float64 // of one plan
	snapshot                         float64 // MB
}

// timePlans lets the policy decide on fleets of so many GPUs.
func timePlans(gpus, rounds int) planned {
	before := heap()
	s := fleetSnapshot(gpus, 1)
	p := planned{gpus: gpus, slices: len(s.Slices), jobs: len(s.Jobs), snapshot: float64(heap()-before) / 1e6}
	policy := fleetPolicy()
	var plans, guards []float64
	var m0, m1 runtime.MemStats
	for range rounds {
		s.Plan, s.Geometry = true, true
		runtime.GC() // each plan pays for its own garbage alone
		runtime.ReadMemStats(&m0)
		began := time.Now()
		plan := policy.Decide(s)
		plans = append(plans, 1e3*time.Since(began).Seconds())
		runtime.ReadMemStats(&m1)
		p.allocated, p.objects = float64(m1.TotalAlloc-m0.TotalAlloc)/1e6, float64(m1.Mallocs-m0.Mallocs)
		p.moves, p.holds = len(plan.Moves), len(plan.Holds)
		s.Plan, s.Geometry = false, false
		began = time.Now()
		policy.Decide(s)
		guards = append(guards, 1e3*time.Since(began).Seconds())
	}
	p.plan, p.guard = spreadOf(plans), spreadOf(guards)
	runtime.KeepAlive(s)
	return p
}

// heap is what lives now.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// plans measures how the arbiter's decision grows with the fleet.
func plans(ctx context.Context, l *lab) (*result, error) {
	r := &result{title: "One plan of the arbiter",
		how: fmt.Sprintf("`arbiter.Policy.Decide` on generated snapshots of a busy fleet (modelled): A100s with five slices each, three fifths of them serving, a fifth lent, "+
			"the rest free or asleep; a model for every %d GPUs, %d queued jobs for each GPU and at most %d, a twentieth of them gangs. One thread; the shortest of the rounds counts, since what else runs on the machine can only lengthen it; "+
			"*plan* decides everything, loans and reshapes included, every 10 s; *guard* wakes and reclaims only, every half second.", planModels, planQueue, planMaxQueue),
		head: []string{"GPUs", "slices", "jobs", "plan", "median, longest", "guard", "allocated", "objects", "snapshot", "moves", "holds"}}
	sizes := []int{100, 300, 1000, 3000, 10_000}
	if l.quick {
		sizes = sizes[:3]
	}
	rounds := max(3, l.rounds())
	took := map[int]float64{}
	for _, n := range sizes {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		p := timePlans(n, rounds)
		took[n] = p.plan.min
		r.row(fmt.Sprint(n), fmt.Sprint(p.slices), fmt.Sprint(p.jobs), fmt.Sprintf("%.2f ms", p.plan.min), fmt.Sprintf("%.2f, %.2f ms", p.plan.median, p.plan.max),
			fmt.Sprintf("%.2f ms", p.guard.min), fmt.Sprintf("%.1f MB", p.allocated), fmt.Sprintf("%.0f", p.objects), fmt.Sprintf("%.1f MB", p.snapshot), fmt.Sprint(p.moves), fmt.Sprint(p.holds))
		if n == planAt {
			r.atMost(fmt.Sprintf("plan for %d GPUs, ms", n), p.plan.min, planTime)
			r.atMost(fmt.Sprintf("plan for %d GPUs, MB with its snapshot", n), p.allocated+p.snapshot, planMemory)
			r.measured(fmt.Sprintf("guard for %d GPUs, ms", n), p.guard.min)
		}
	}
	if last := slices.Max(sizes); last > planAt {
		r.atMost(fmt.Sprintf("growth from %d to %d GPUs, exponent", planAt, last), math.Log(took[last]/took[planAt])/math.Log(float64(last)/planAt), planGrowth)
	}
	return r, nil
}
