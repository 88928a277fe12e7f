package arbiter

import (
	"math"
	"slices"
	"time"
)

// windows of the arrival envelope, in seconds.
var windows = []int{1, 2, 3, 5, 10, 20, 40}

// level is how many replicas the arrivals up to now call for, before rounding:
// two resources bind, so it is the larger of
//
//	sequences in flight / (0.95 × slots)          and
//	max over windows L of work in L / (L + 0.8 × slack)
//
// with the work of merged calls divided by rho, since they wait at a batch's end.
func (p Policy) level(m Model) float64 {
	need := 0.0
	if m.Slots > 0 {
		need = m.InFlight / (0.95 * float64(m.Slots))
	}
	rho := 1.0
	if m.Slots == 0 {
		rho = p.Rho
	}
	work, n := 0.0, len(m.Work)
	next := 0
	for i := 1; i <= n && next < len(windows); i++ {
		work += m.Work[n-i]
		if i == windows[next] {
			need = max(need, work/rho/(float64(i)+0.8*m.Target.Seconds()))
			next++
		}
	}
	return need
}

// Rise learns how fast a model's level rises: the quantiles of past rises
// within a horizon, each divided by the square root of the level it began at,
// since a rise learned at noon must not bind at night (arbiter prototype, 5.1).
type Rise struct {
	levels     []float64 // one a second, newest last
	fast, slow float64   // within the two horizons, as of the last second: the loop looks more often
}

// riseMemory bounds the history: an hour at one entry a second.
const riseMemory = 3600

// Add records the level of one second.
func (r *Rise) Add(level float64) {
	if len(r.levels) == riseMemory {
		r.levels = slices.Delete(r.levels, 0, 1)
	}
	r.levels = append(r.levels, level)
}

// Within returns the q-quantile of the rises within h; 0 with no history.
func (r *Rise) Within(h time.Duration, q float64) float64 {
	n := int(math.Ceil(h.Seconds()))
	var rises []float64
	for i := 0; i+n < len(r.levels); i++ {
		top := slices.Max(r.levels[i+1 : i+n+1])
		rises = append(rises, max(0, top-r.levels[i])/math.Sqrt(max(r.levels[i], 1)))
	}
	if len(rises) == 0 {
		return 0
	}
	slices.Sort(rises)
	return rises[min(len(rises)-1, int(q*float64(len(rises))))]
}
