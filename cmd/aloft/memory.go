package main

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// heapFloor is what the collector takes to be alive at least. The heap of a
	// server that relays is a few megabytes, so that at the default pace it would
	// be collected dozens of times a second under load, for a fifth of the CPU.
	// The bytes are address space: nobody touches them, so they cost no memory.
	// More would cost memory, which a burst touches and an idle server keeps, and
	// gains nothing: 8, 16 and 32 MiB take the same CPU per request.
	heapFloor = 8 << 20
	// idleLook is how often an idle server looks whether it holds memory that it
	// does not use; idleBytes is what it allocates at most meanwhile.
	idleLook  = time.Second
	idleBytes = 2 << 20
)

// tendHeap sets the collector's pace until ctx ends, and gives memory back once
// a burst is over that left more than garbage: by its pace the collector lets
// that grow to as much as is alive, and the next burst needs it again. To get it
// back costs a page fault for each 4 KiB, 20 us of CPU in some virtual machines,
// and nearly one for each request of a burst.
func tendHeap(ctx context.Context) {
	floor := make([]byte, heapFloor)
	defer runtime.KeepAlive(floor)
	now := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}, {Name: "/memory/classes/heap/objects:bytes"}, {Name: "/gc/heap/live:bytes"}}
	tick := time.NewTicker(idleLook)
	defer tick.Stop()
	var before, kept uint64
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		metrics.Read(now)
		allocated, held := now[0].Value.Uint64(), now[1].Value.Uint64()
		if idle := allocated-before < idleBytes; idle && held > 2*kept+2*idleBytes {
			debug.FreeOSMemory()
			metrics.Read(now)
			kept = now[2].Value.Uint64()
		} else if held < kept {
			kept = held
		}
		before = allocated
	}
}
