package batching

import (
	"slices"
	"time"
)

// Bound is how many of reqs no scheduler can exceed in w, even one that knows all
// arrivals: a call that answers a request in time takes at most the target, so it
// has at most M = (target - alpha)/beta tokens and its alpha is shared by no more
// than that; each token therefore costs at least beta + alpha/M of a replica, and
// all of it must be done between the first arrival and the last deadline. The most
// requests fit into that time when the shortest are taken. It is fluid: no request
// waits, and lengths are divisible. Padded laws cost at least as much. Slowed
// worlds are bounded as if they were not.
func Bound(w World, reqs []Request) int {
	alpha, beta := w.Law.AlphaMs/1e3, w.Law.BetaMsPerToken/1e3
	most := (w.Target.Seconds() - alpha) / beta
	if most <= 0 {
		return 0
	}
	lengths := make([]int, len(reqs))
	var first, last time.Duration
	for i, q := range reqs {
		lengths[i] = q.Tokens
		if i == 0 {
			first = q.At
		}
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
