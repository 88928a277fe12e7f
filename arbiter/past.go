package arbiter

import "time"

// PastOf makes a model's past from the work that arrived in each second, in
// replica seconds. Sequences in flight are not known from arrivals alone: the
// level is that of the work.
func (p Policy) PastOf(m Model, work []float64) Past {
	past := Past{Level: make([]float32, len(work)), Work: make([]float32, len(work))}
	longest := windows[len(windows)-1]
	m.InFlight = 0
	for i, w := range work {
		m.Work = work[max(0, i+1-longest) : i+1]
		past.Level[i], past.Work[i] = float32(p.level(m)), float32(w)
	}
	return past
}

// Replay says what one quantile and hold would have done in the past. Without
// enough past it returns no law.
func Replay(p Past, o LearnOptions, quantile float64, hold time.Duration) Trial {
	if len(p.Level) < learnLeast || len(p.Work) != len(p.Level) || o.Share < 1 {
		return Trial{}
	}
	r := newReplay(p, o)
	r.measure(unlearned)
	return r.try(r.law(quantile, 0, hold))
}
