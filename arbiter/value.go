package arbiter

import (
	"cmp"
	"slices"
	"time"
)

// Worth is what a loan is weighed by, in slice time.
type Worth struct {
	Idle    time.Duration // expected until the slice is needed again
	Rest    time.Duration // of the job; 0 = unknown
	Chance  float64       // that the job is stopped before it ends
	Stop    time.Duration // what that costs
	OutBack time.Duration // for the replica to go out and to come back, and the job to begin
}

// Value is what the loan is expected to bring: the job works as long as the slice
// stays idle or its rest takes.
func (w Worth) Value() time.Duration {
	gain := w.Idle
	if w.Rest > 0 {
		gain = min(gain, w.Rest)
	}
	return gain - time.Duration(w.Chance*float64(w.Stop)) - w.OutBack
}

// Sleeper is a replica that could be kept asleep.
type Sleeper struct {
	Rate  float64       // wakes an hour
	Saves time.Duration // by which a wake is quicker than a start
	Bytes int64         // of host memory that it holds
}

// Keep chooses which sleepers to keep within the memory: greedily what saves most
// waiting a byte. It returns their indices in that order.
func Keep(all []Sleeper, memory int64) []int {
	best := make([]int, len(all))
	for i := range best {
		best[i] = i
	}
	worth := func(i int) float64 { return all[i].Rate * all[i].Saves.Seconds() / float64(max(all[i].Bytes, 1)) }
	slices.SortStableFunc(best, func(a, b int) int { return cmp.Compare(worth(b), worth(a)) })
	kept := best[:0]
	for _, i := range best {
		if all[i].Rate > 0 && all[i].Saves > 0 && all[i].Bytes <= memory {
			memory -= all[i].Bytes
			kept = append(kept, i)
		}
	}
	return kept
}
