package main

import (
	"math"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"

	"aloft/sim/batching"
)

const (
	waitingRequests = 10_000
	costRequests    = 50_000 // a round; at 5 µs each a quarter of a second
	memoryRequests  = 400_000
)

// coreCost measures what the core itself takes for a request, from its arrival to
// its answer, while 10,000 wait, and whether it keeps anything of those that left.
func coreCost(l *lab, r *result) {
	cpu, allocs, waiting := cost10k(l.rounds(), 16)
	l.say("batcher, core: %.2f µs and %.2f allocations a request with %d waiting", cpu, allocs, waiting)
	r.atLeast("core: requests that wait meanwhile", float64(waiting), waitingRequests)
	r.atMost("core: CPU time a request of 16 tenants, µs", cpu, 5)
	r.atMost("core: allocations a request", allocs, 4)
	cpu, _, _ = cost10k(l.rounds(), 1000)
	r.measured("core: CPU time a request of 1,000 tenants, µs", cpu)
	grown := memoryGrowth(memoryRequests)
	l.say("batcher, core: %.2f µs a request of 1,000 tenants; heap %+.0f KiB after %d requests of as many tenants", cpu, grown/1024, memoryRequests)
	r.atMost("core: heap growth over 400,000 requests of as many tenants, MiB", grown/(1<<20), 1)
}

// cost10k is the CPU time in µs and the allocations of a request while 10,000 of so
// many tenants wait; the best of the rounds.
func cost10k(rounds, tenants int) (cpu, allocs float64, waiting int) {
	busy := batching.NewLoad(batching.Paper(), waitingRequests, tenants)
	cpu = math.Inf(1)
	for range max(3, rounds) {
		works := busy.Make(costRequests)
		runtime.GC()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		collect := debug.SetGCPercent(-1) // the collector's time is that of the works, which are not the core's
		began := processCPU()
		busy.Serve(works)
		cpu = min(cpu, float64(processCPU()-began)/1e3/costRequests)
		debug.SetGCPercent(collect)
		runtime.ReadMemStats(&after)
		allocs = float64(after.Mallocs-before.Mallocs) / costRequests
	}
	return cpu, allocs, busy.Waiting()
}

// memoryGrowth is by how many bytes the heap of a core with 100 requests waiting grows between the
// first 50,000 requests and n more, each of a tenant of its own.
func memoryGrowth(n int) float64 {
	busy := batching.NewLoad(batching.Paper(), 100, 0)
	serve := func(n int) uint64 {
		for range n / costRequests {
			busy.Serve(busy.Make(costRequests))
		}
		runtime.GC()
		runtime.GC() // what finalizers held goes with the second
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	first := serve(costRequests)
	last := serve(n)
	runtime.KeepAlive(busy)
	return float64(last) - float64(first)
}

// processCPU is the CPU time of this process: nothing else of it runs meanwhile.
func processCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic("BUG: getrusage of this process: " + err.Error())
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
