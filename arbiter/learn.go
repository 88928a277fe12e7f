package arbiter

import (
	"math"
	"slices"
	"time"
)

// Past is a model's recorded history, one entry a second: the replicas that it
// called for, and the work that arrived, in replica seconds.
type Past struct {
	Level, Work []float32
}

// LearnOptions say what a law is learned for.
type LearnOptions struct {
	Share      int           // replicas that the model may have: what a static split would keep ready
	Fast, Slow time.Duration // the horizons: a replica wanted now is there after Fast at the latest
	Slack      time.Duration // how long a request may wait
	OutBack    time.Duration // slice time that lending a replica out and taking it back costs in all
	Budget     float64       // the share of the arriving work that lending may make late
	// Strict covers the worst rise ever seen, from whatever level it came.
	Strict bool
}

// Trial is what a law would have done in the past.
type Trial struct {
	Law
	Lent   float64 `json:"lent"`   // replicas lent on average, less what going out and back cost
	Late   float64 `json:"late"`   // share of the work that came when too few were ready, and only because of the law
	Static float64 `json:"static"` // share that was late with the full share ready
	Moves  float64 `json:"moves"`  // loans an hour
}

// The candidates. Long holds with low quantiles cover traffic that comes in
// trains of bursts; short holds with high ones follow what rises alone.
var (
	learnQuantiles = []float64{0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995, 0.9998, 0.9999, 0.99995, 1, 1.25, 1.5}
	learnPowers    = []float64{0.25, 0.5, 0.75}
	learnFloors    = []float64{0, 0.9, 0.98, 0.99, 0.996, 0.998}               // quantiles of the level
	learnHolds     = []time.Duration{5, 10, 20, 30, 45, 60, 90, 180, 400, 600} // s
	// A strict law covers a quarter more than the worst rise ever seen, and lets go
	// only of what a minute has not called for.
	strictRise, strictHold = 1.25, time.Minute
	// learnCost is the part of the share that loans may cost, by going out and coming
	// back: whose slice is taken waits anew and starts again, which the slice time
	// that is gained does not show. 0.024 was chosen on bursty-8gpu-code, seeds 21 to
	// 25: lost work and overhead stay within 1.5 points of the static split's (3.4
	// without it), for 0.02 of aloft ratio. Smooth traffic does not come near it.
	learnCost = 0.024
	// learnLeast is the shortest past that a law is learned from, in seconds.
	learnLeast = 3600
)

// Learn replays the past under candidate laws and returns the one that lends
// most within the budget, without costing more than learnCost, with what it would
// have done. Without enough past it returns no law.
func Learn(p Past, o LearnOptions) Trial {
	if len(p.Level) < learnLeast || len(p.Work) != len(p.Level) || o.Share < 1 {
		return Trial{}
	}
	r := newReplay(p, o)
	var best, careful Trial
	for _, power := range learnPowers {
		r.measure(power)
		if o.Strict {
			careful = r.try(r.law(strictRise, 0, strictHold))
			if !best.Learned() || careful.Lent < best.Lent {
				best = careful
			}
			continue
		}
		for _, floor := range learnFloors {
			for _, hold := range learnHolds {
				t, ok := r.least(floor, hold*time.Second)
				ok = ok && r.cost(t) <= learnCost
				switch {
				case ok && (!best.Learned() || t.Lent > best.Lent):
					best = t
				case !ok && (!careful.Learned() || t.Late < careful.Late):
					careful = t
				}
			}
		}
	}
	if !best.Learned() { // nothing is safe enough
		return careful
	}
	return best
}

// least finds the smallest quantile that keeps the budget with a floor and a hold:
// the less is covered the more is lent, and the more is late. ok is false where
// even the largest does not keep it.
func (r *replay) least(floor float64, hold time.Duration) (found Trial, ok bool) {
	from, to := 0, len(learnQuantiles)
	for from < to {
		mid := (from + to) / 2
		t := r.try(r.law(learnQuantiles[mid], floor, hold))
		if t.Late <= r.o.Budget {
			found, ok, to = t, true, mid
		} else {
			if !ok {
				found = t
			}
			from = mid + 1
		}
	}
	return found, ok
}

// cost is the part of the share that the loans of a trial cost.
func (r *replay) cost(t Trial) float64 {
	return t.Moves * r.o.OutBack.Hours() / float64(r.o.Share)
}

// law is the candidate that covers a quantile of the rises measured last.
func (r *replay) law(q, floor float64, hold time.Duration) Law {
	return Law{Quantile: max(q, 1e-9), Power: r.power, Floor: beyond(r.levels, floor), Hold: hold, Fast: beyond(r.fast, q), Slow: beyond(r.slow, q)}
}

// beyond is the q-quantile of sorted values; a q above 1 is that many times the
// largest, since the worst that was seen is not the worst that can be.
func beyond(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))] * max(1, q)
}

// replay is a past made ready to try laws on.
type replay struct {
	Past
	o      LearnOptions
	levels []float64 // sorted
	power  float64   // that the rises are measured with
	scale  []float32 // of each level with it
	fast   []float64 // rises within the horizons, sorted
	slow   []float64
	late   []bool  // with the full share ready
	total  float64 // work
	static float64 // of it late with the full share
}

func newReplay(p Past, o LearnOptions) *replay {
	r := &replay{Past: p, o: o, scale: make([]float32, len(p.Level)), late: make([]bool, len(p.Level))}
	q := fluid{slack: o.Slack.Seconds()}
	for i, l := range p.Level {
		r.levels = append(r.levels, float64(l))
		w := float64(p.Work[i])
		r.total += w
		if r.late[i] = q.late(float64(l), w, float64(o.Share)); r.late[i] {
			r.static += w
		}
	}
	slices.Sort(r.levels)
	return r
}

// measure takes the rises, scaled by a power of the level.
func (r *replay) measure(power float64) {
	r.power = power
	for i, l := range r.Level {
		r.scale[i] = float32(math.Pow(max(float64(l), 1), power))
	}
	r.fast, r.slow = rises(r.Level, wholeSeconds(r.o.Fast), power), rises(r.Level, wholeSeconds(r.o.Slow), power)
	slices.Sort(r.fast)
	slices.Sort(r.slow)
}

// fluid models the requests that wait for a replica.
type fluid struct {
	slack, work float64
}

// late adds one second and says whether those who arrive in it come too late:
// the wait takes most of the slack, or more slots are taken than a level counts of
// those that are there (95 %).
func (q *fluid) late(level, work, ready float64) bool {
	q.work = max(0, q.work+work-ready)
	return q.work > 0.9*q.slack*ready || level > ready
}

// try replays the past under one law.
func (r *replay) try(l Law) Trial {
	line, share := peak{n: wholeSeconds(l.Hold)}, float64(r.o.Share)
	delay := wholeSeconds(r.o.Fast)
	supply := peak{n: delay} // of what is missing: a replica wanted now comes after the delay
	q := fluid{slack: r.o.Slack.Seconds()}
	lent, loans, late, was := 0.0, 0.0, 0.0, share
	for i, level := range r.Level {
		line.add(float64(level) + l.Fast*float64(r.scale[i]))
		want := min(max(math.Ceil(max(line.top(), l.Floor)-1e-9), 1), share)
		lent += share - want
		loans += max(0, was-want)
		was = want
		supply.add(share - want)
		if w := float64(r.Work[i]); q.late(float64(level), w, share-supply.top()) && !r.late[i] {
			late += w
		}
	}
	n, total := float64(len(r.Level)), max(r.total, 1e-9)
	return Trial{Law: l, Lent: (lent - loans*r.o.OutBack.Seconds()) / n, Late: late / total, Static: r.static / total, Moves: loans / n * 3600}
}
