package batching

import (
	"cmp"
	"slices"
	"time"
)

// Grid is the settings of Fixed that a search tries: 150 of them, for a target of
// 100 ms as listed and for others in proportion.
func Grid(target time.Duration) []Fixed {
	ms := target / 100
	var all []Fixed
	for _, rows := range []int{8, 16, 24, 32, 48, 64} {
		for _, delay := range []time.Duration{0, 2, 5, 10, 20} {
			for _, timeout := range []time.Duration{0, 30, 40, 50, 65} {
				all = append(all, Fixed{Size: rows, Delay: delay * ms, Timeout: timeout * ms})
			}
		}
	}
	return all
}

// finalists is how many settings see more than the first of the runs.
const finalists = 12

// Tune returns the setting of grid with the most good requests: all of them meet
// the first run, the best of them the others too. Who is judged by the outcome must
// judge it on other runs.
func Tune(w World, grid []Fixed, runs ...[]Request) Fixed {
	type trial struct {
		Fixed
		good int
	}
	trials := make([]trial, len(grid))
	for i, f := range grid {
		trials[i] = trial{Fixed: f}
	}
	for n, reqs := range runs {
		ranks := deciles(w, reqs)
		for i := range trials {
			trials[i].good += simulate(w, trials[i].Policy(w.Fleet()), reqs, ranks).Good
		}
		slices.SortStableFunc(trials, func(a, b trial) int { return cmp.Compare(b.good, a.good) })
		if n == 0 {
			trials = trials[:min(len(trials), finalists)]
		}
	}
	return trials[0].Fixed
}
