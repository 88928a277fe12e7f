package arbiter

import (
	"math"
	"slices"
	"time"
)

// Law is how much of a model's capacity stays ready for the rises of its level:
// a line of level + rise × level^Power, since a rise learned at noon must not
// bind at night, that never falls below Floor, and falls at all only after it has
// been lower for Hold. Learn finds it.
type Law struct {
	Quantile float64       `json:"quantile"` // of the rises that it covers; above 1: more than the worst
	Power    float64       `json:"power"`    // 0: bursts are as large at any level, 1: they grow with it
	Floor    float64       `json:"floor"`    // replicas
	Hold     time.Duration `json:"hold_ns"`
	Fast     float64       `json:"fast"` // the rises within the two horizons, at level 1
	Slow     float64       `json:"slow"`
}

// unlearned is the power of a model without a law: many small clients, whose
// rises add up as their square root does.
const unlearned = 0.5

// scale is what a rise at level 1 is multiplied by.
func (l Law) scale(level float64) float64 {
	if !l.Learned() {
		return math.Sqrt(max(level, 1))
	}
	return math.Pow(max(level, 1), l.Power)
}

// Learned reports whether the law rests on a history.
func (l Law) Learned() bool { return l.Quantile > 0 }

// Rise learns how fast a model's level rises, and keeps the lines that follow.
type Rise struct {
	law    Law
	levels []float32 // one a second, newest last
	work   []float32 // what arrived in each, in replica seconds
	seen   int       // entries ever
	began  int       // where those of this run begin; falls as they are moved down

	fast, slow         float64 // rises within the two horizons, as last worked out
	fastLine, slowLine peak    // only with a law
	forecast           Forecast
}

const (
	// riseMemory bounds what the rises of a model without a law rest on: an hour.
	riseMemory = 3600
	// historyMemory bounds what is kept to learn a law from.
	historyMemory = 24 * 3600
	// warmUp is cut from the begin of a run: traffic that is there already comes to
	// a server that starts as a rise that no day has. As long as the longest window.
	warmUp = 40
	// bridgeLength is over how long the level rises to that of this run from that of
	// the run before: nobody saw when it did, and a step would be a rise within the
	// horizons.
	bridgeLength = 600
)

// Horizons are how far ahead rises are covered, and which quantile of them while
// there is no law.
type Horizons struct {
	Fast, Slow time.Duration
	Quantile   float64
}

// Follow makes the lines follow a law from now on.
func (r *Rise) Follow(l Law) {
	r.law = l
	n := wholeSeconds(l.Hold)
	r.fastLine, r.slowLine = peak{n: n}, peak{n: n}
	r.fast, r.slow = l.Fast, l.Slow
	for _, level := range r.levels[max(0, len(r.levels)-n-1):] { // as if it had been followed before
		r.hold(float64(level))
	}
}

// Forget lets the law go.
func (r *Rise) Forget(h Horizons) {
	r.Follow(Law{})
	r.fast, r.slow = r.Within(h.Fast, h.Quantile), r.Within(h.Slow, h.Quantile)
}

// hold moves the lines of the law.
func (r *Rise) hold(level float64) {
	if scale := r.law.scale(level); r.law.Learned() {
		r.fastLine.add(level + r.law.Fast*scale)
		r.slowLine.add(level + r.law.Slow*scale)
	}
}

// Add records one second: the level at its end and the work that arrived in it.
func (r *Rise) Add(now time.Time, level, work float64, h Horizons) {
	if len(r.levels) == 2*historyMemory {
		r.began -= historyMemory
	}
	r.levels, r.work = keepLast(r.levels, level), keepLast(r.work, work)
	r.seen++
	r.forecast.Add(now, level, h.Fast)
	if !r.law.Learned() {
		// Sorting an hour costs as much as a whole plan: each second only while the
		// history is short and each entry counts, then once a minute.
		if len(r.levels) <= 600 || r.seen%60 == 0 {
			r.fast, r.slow = r.Within(h.Fast, h.Quantile), r.Within(h.Slow, h.Quantile)
		}
		return
	}
	r.hold(level)
}

// keepLast appends to a history, moving it down only once it has doubled.
func keepLast(list []float32, x float64) []float32 {
	if len(list) == 2*historyMemory {
		list = list[:copy(list, list[historyMemory:])]
	}
	return append(list, float32(x))
}

// fill says what has been learned, as a decision sees it.
func (r *Rise) fill(l *Learned, now time.Time) {
	l.RiseFast, l.RiseSlow, l.Law = r.fast, r.slow, r.law
	up := r.forecast.Upper(now)
	l.HeldFast, l.HeldSlow = max(r.fastLine.top(), up, r.law.Floor), max(r.slowLine.top(), up, r.law.Floor)
}

// Past is a copy of the history so far, without the begin of this run.
func (r *Rise) Past() Past {
	old, from := max(0, r.began), min(len(r.levels), max(0, r.began+warmUp))
	p := Past{Level: slices.Clone(r.levels[:old]), Work: slices.Clone(r.work[:old])}
	if old > 0 && from < len(r.levels) {
		p.bridge(r.levels[from])
	}
	p.Level, p.Work = append(p.Level, r.levels[from:]...), append(p.Work, r.work[from:]...)
	return p.last(historyMemory)
}

// bridge leads up to the level at which a later run begins. Nothing arrives on it.
func (p *Past) bridge(to float32) {
	from := p.Level[len(p.Level)-1]
	for i := range bridgeLength {
		if to > from { // a fall is no rise
			p.Level, p.Work = append(p.Level, from+(to-from)*float32(i+1)/bridgeLength), append(p.Work, 0)
		}
	}
}

func (p Past) last(n int) Past {
	return Past{Level: p.Level[max(0, len(p.Level)-n):], Work: p.Work[max(0, len(p.Work)-n):]}
}

// Seconds is how long the history is, bridges apart.
func (r *Rise) Seconds() int {
	return min(historyMemory, max(0, r.began)+max(0, len(r.levels)-max(0, r.began+warmUp)))
}

// Recall begins with the history of an earlier run. It comes before the first Add.
func (r *Rise) Recall(p Past, h Horizons) {
	p = p.last(historyMemory)
	r.levels, r.work, r.began = slices.Clone(p.Level), slices.Clone(p.Work), len(p.Level)
	r.fast, r.slow = r.Within(h.Fast, h.Quantile), r.Within(h.Slow, h.Quantile)
}

// Within returns the q-quantile of the rises within h over the last hour; 0 with
// no history.
func (r *Rise) Within(h time.Duration, q float64) float64 {
	return quantile(rises(r.levels[max(0, len(r.levels)-riseMemory):], wholeSeconds(h), unlearned), q)
}

// rises are the largest rises within the n entries after each, at level 1.
func rises(levels []float32, n int, power float64) []float64 {
	if len(levels) <= n || n < 1 {
		return nil
	}
	out := make([]float64, len(levels)-n)
	window := peak{n: n - 1}
	for _, l := range levels[1:n] {
		window.add(float64(l))
	}
	for i := range out {
		window.add(float64(levels[i+n]))
		level := float64(levels[i])
		out[i] = max(0, window.top()-level) / math.Pow(max(level, 1), power)
	}
	return out
}

// quantile sorts the values; 0 with none.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return values[min(len(values)-1, int(q*float64(len(values))))]
}

func wholeSeconds(d time.Duration) int { return int(math.Ceil(d.Seconds())) }

// peak is the maximum of the newest entry and the n before it.
type peak struct {
	n     int
	i     int         // entries so far
	queue []peakEntry // falling values: the first is the maximum
}

type peakEntry struct {
	i int
	v float64
}

func (p *peak) add(v float64) {
	for len(p.queue) > 0 && p.queue[len(p.queue)-1].v <= v {
		p.queue = p.queue[:len(p.queue)-1]
	}
	if len(p.queue) > 0 && p.queue[0].i < p.i-p.n {
		p.queue = p.queue[:copy(p.queue, p.queue[1:])]
	}
	p.queue = append(p.queue, peakEntry{p.i, v})
	p.i++
}

// top is the maximum; 0 with no entry.
func (p *peak) top() float64 {
	if len(p.queue) == 0 {
		return 0
	}
	return p.queue[0].v
}
