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
	// Budget is the share of the arriving work that lending may make late, or a
	// tenth of what is late with the full share ready, whichever is more: where a
	// model misses anyway, a tenth more cannot be told from luck.
	Budget float64
	// Strict covers the worst rise ever seen, from whatever level it came.
	Strict bool
}

// Trial is what a law would have done in the past.
type Trial struct {
	Law
	Lent   float64 // replicas lent on average, less what going out and back cost
	Late   float64 // share of the work that came when too few were ready, and only because of the law
	Static float64 // share that was late with the full share ready
	Moves  float64 // loans an hour
}

var (
	learnQuantiles = []float64{0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995, 0.9998, 0.9999, 0.99995, 1, 1.25, 1.5}
	learnHolds     = []time.Duration{5, 10, 15, 20, 30, 45, 60, 90, 120, 180} // s
	// learnLeast is the shortest past that a law is learned from.
	learnLeast = 3600
)

// Learn replays the past under candidate laws and returns the one that lends
// most within the budget, with what it would have done. Without enough past it
// returns no law.
func Learn(p Past, o LearnOptions) Trial {
	if len(p.Level) < learnLeast || len(p.Work) != len(p.Level) || o.Share < 1 {
		return Trial{}
	}
	r := newReplay(p, o)
	fast, slow := rises(p.Level, wholeSeconds(o.Fast)), rises(p.Level, wholeSeconds(o.Slow))
	slices.Sort(fast)
	slices.Sort(slow)
	if o.Strict {
		return r.try(Law{Quantile: 1.5, Hold: 120 * time.Second, Fast: beyond(fast, 1.5), Slow: beyond(slow, 1.5)})
	}
	var best Trial
	for _, q := range learnQuantiles {
		for _, hold := range learnHolds {
			t := r.try(Law{Quantile: q, Hold: hold * time.Second, Fast: beyond(fast, q), Slow: beyond(slow, q)})
			if t.Late <= max(o.Budget, t.Static/10) && (!best.Learned() || t.Lent > best.Lent) {
				best = t
			}
		}
	}
	if !best.Learned() { // nothing is safe enough: the most careful candidate
		q, hold := learnQuantiles[len(learnQuantiles)-1], learnHolds[len(learnHolds)-1]*time.Second
		best = r.try(Law{Quantile: q, Hold: hold, Fast: beyond(fast, q), Slow: beyond(slow, q)})
	}
	return best
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
	root   []float32 // of the level
	late   []bool    // with the full share ready
	total  float64   // work
	static float64   // of it late with the full share
	want   []float32 // reused
}

func newReplay(p Past, o LearnOptions) *replay {
	r := &replay{Past: p, o: o, root: make([]float32, len(p.Level)), late: make([]bool, len(p.Level)), want: make([]float32, len(p.Level))}
	q := fluid{slack: o.Slack.Seconds()}
	for i, l := range p.Level {
		r.root[i] = float32(math.Sqrt(max(float64(l), 1)))
		w := float64(p.Work[i])
		r.total += w
		if r.late[i] = q.late(float64(l), w, float64(o.Share)); r.late[i] {
			r.static += w
		}
	}
	return r
}

// fluid models the requests that wait for a replica.
type fluid struct {
	slack, work float64
}

// late adds one second and says whether those who arrive in it come too late:
// the wait takes most of the slack, or all slots are taken (the level counts 95 %
// of them, and a fifth more sequences than that wait for each other's end).
func (q *fluid) late(level, work, ready float64) bool {
	q.work = max(0, q.work+work-ready)
	return q.work > 0.9*q.slack*ready || level > 1.2*ready
}

// try replays the past under one law.
func (r *replay) try(l Law) Trial {
	line, share := peak{n: wholeSeconds(l.Hold)}, float64(r.o.Share)
	delay := wholeSeconds(r.o.Fast)
	supply := peak{n: delay} // of what is missing: a replica wanted now comes after the delay
	q := fluid{slack: r.o.Slack.Seconds()}
	lent, loans, late, was := 0.0, 0.0, 0.0, share
	for i, level := range r.Level {
		line.add(float64(level) + l.Fast*float64(r.root[i]))
		want := min(max(math.Ceil(line.top()-1e-9), 1), share)
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
