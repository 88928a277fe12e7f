package rivals

import (
	"math"
	"time"
)

// clamp keeps a wish between one replica and the peak share.
func (f *fleet) clamp(x float64) int { return min(max(int(math.Ceil(x-1e-9)), 1), max(f.static, 1)) }

// demand goes by the sequences that wait and run, and keeps the most that it has
// wanted within hold.
type demand struct {
	target float64
	hold   time.Duration
	peaks  []peak
}

func (d *demand) want(now time.Duration, y *yard) {
	d.peaks = grown(d.peaks, len(y.fleets))
	for i := range y.fleets {
		f := &y.fleets[i]
		level := f.flight / float64(max(f.slots, 1))
		if f.slots == 0 { // merged calls have no sequences
			level = past(y, i, now, 10*time.Second)
		}
		f.want = d.peaks[i].add(now, d.hold, f.clamp(level/d.target))
	}
}

// threshold goes by the use of what is ready, as the horizontal pod autoscaler
// does: desired = ready x use / target, nothing within a tenth of the target, and
// down to the most that was desired within down.
type threshold struct {
	target      float64
	every, down time.Duration
	next        time.Duration
	peaks       []peak
	wants       []int
}

// tolerance is the autoscaler's default.
const tolerance = 0.1

func (t *threshold) want(now time.Duration, y *yard) {
	t.peaks, t.wants = grown(t.peaks, len(y.fleets)), grown(t.wants, len(y.fleets))
	due := now >= t.next
	if due {
		t.next = now + t.every
	}
	for i := range y.fleets {
		f := &y.fleets[i]
		if due {
			ready := max(1, len(f.ready))
			ratio := min(1, y.v.Busy(i)) / t.target
			desired := ready
			if math.Abs(ratio-1) > tolerance {
				desired = f.clamp(float64(ready) * ratio)
			}
			t.wants[i] = t.peaks[i].add(now, t.down, f.clamp(float64(desired)))
		}
		f.want = t.wants[i]
	}
}

// loans gives whole GPUs' worth of slices away for a period: serving keeps the peak
// requirement of the period before, with a margin, rounded up to whole GPUs.
type loans struct {
	every  time.Duration
	margin float64
	next   time.Duration
	wants  []int
}

func (l *loans) want(now time.Duration, y *yard) {
	if l.wants == nil { // nothing is known yet
		for i := range y.fleets {
			l.wants = append(l.wants, y.fleets[i].static)
		}
		l.next = l.every
	}
	if now >= l.next {
		l.next = now + l.every
		sum := 0
		for i := range y.fleets {
			l.wants[i] = y.fleets[i].clamp(l.margin * past(y, i, now, l.every))
			sum += l.wants[i]
		}
		for over, i := (7-sum%7)%7, 0; over > 0 && i < 7*len(y.fleets); i++ { // a GPU that stays, stays whole
			if m := i % len(y.fleets); l.wants[m] < y.fleets[m].static {
				l.wants[m]++
				over--
			}
		}
	}
	for i := range y.fleets {
		y.fleets[i].want = l.wants[i]
	}
}

// past is the largest requirement of model i within d up to now.
func past(y *yard, i int, now, d time.Duration) (top float64) {
	need := y.v.Need(i)
	from, to := int((now-d)/time.Second), int(now/time.Second)
	for _, n := range need[max(0, min(from, len(need))):max(0, min(to, len(need)))] {
		top = max(top, n)
	}
	return top
}

// peak is the largest of the values of a time that slides.
type peak struct {
	at  []time.Duration // rising
	val []int           // falling
}

// add notes a value and returns the largest not older than keep.
func (p *peak) add(now, keep time.Duration, v int) int {
	for n := len(p.val); n > 0 && p.val[n-1] <= v; n-- {
		p.at, p.val = p.at[:n-1], p.val[:n-1]
	}
	p.at, p.val = append(p.at, now), append(p.val, v)
	for p.at[0] < now-keep {
		p.at, p.val = p.at[1:], p.val[1:]
	}
	return p.val[0]
}

func grown[T any](s []T, n int) []T {
	for len(s) < n {
		s = append(s, *new(T))
	}
	return s
}
