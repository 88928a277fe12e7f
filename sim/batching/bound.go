package batching

import (
	"slices"
	"time"
)

// Bound is how many of the requests that count no scheduler can answer in time in
// w, even one that knows all arrivals and lengths. A call that answers a request in
// time takes at most the target, so it has at most M = (target - alpha)/beta tokens,
// and its alpha is shared by no more than that: each token costs a replica at least
// beta + alpha/M. All of it happens between the first of these arrivals and the last
// deadline, and the most requests fit into that time when the shortest are taken.
//
// It is a bound because it leaves out what no scheduler can: that calls are whole
// and begin with what has arrived, that most must be shorter than the target since
// their rows waited, and that what counts shares the replicas with what came before.
// Padding only costs more. A call's time varies around the law's, so that luck may
// exceed the bound by noise/sqrt(calls), a few tenths of a percent. A world that
// slows down is bounded as if it did not.
func Bound(w World, reqs []Request) int {
	alpha, beta := w.Law.AlphaMs/1e3, w.Law.BetaMsPerToken/1e3
	most := (w.Target.Seconds() - alpha) / beta
	if most <= 0 {
		return 0
	}
	var lengths []int
	var first, last time.Duration
	for _, q := range reqs {
		if q.At < w.Warm {
			continue
		}
		if len(lengths) == 0 {
			first = q.At
		}
		lengths = append(lengths, q.Tokens)
		last = max(last, q.At+w.Target)
	}
	slices.Sort(lengths)
	left := float64(w.Replicas) * (last - first).Seconds()
	for i, n := range lengths {
		if left -= float64(n) * (beta + alpha/most); left < 0 {
			return i
		}
	}
	return len(lengths)
}
