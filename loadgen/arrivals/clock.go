package arrivals

import (
	"math"
	"time"
)

// clock turns a number of arrivals that are to be expected into the time, in
// seconds, by which they are: the inverse of the rate's integral. A process of
// rate 1 seen through it has the wanted rate at every moment, exactly, without
// steps (time change of a point process). It is asked in rising order.
type clock func(expected float64) float64

// steady has the same rate all the time.
func steady(rate float64) clock { return func(x float64) float64 { return x / rate } }

// ramp goes from one rate to another, in a line, in so many seconds:
// x = from·t + (to-from)·t²/2d, solved in the form that keeps its digits when
// the rates are nearly equal.
func ramp(from, to, d float64) clock {
	return func(x float64) float64 {
		if x == 0 {
			return 0
		}
		return 2 * x / (from + math.Sqrt(max(0, float64(from*from)+float64(2*(to-from)*x/d))))
	}
}

// turns has steps that follow each other, again and again. One of them must have
// a rate.
func turns(steps []Step) clock {
	cycle, count := 0.0, 0.0
	for _, s := range steps {
		cycle += s.For.Seconds()
		count += float64(s.Rate * s.For.Seconds())
	}
	return func(x float64) float64 {
		n := math.Floor(x / count)
		t, x := float64(n*cycle), x-float64(n*count)
		for _, s := range steps {
			d := s.For.Seconds()
			if in := float64(s.Rate * d); x >= in {
				t, x = t+d, x-in
				continue
			}
			return t + x/s.Rate
		}
		return t
	}
}

// day has a rate that swings between low and high as a sine does, highest at
// peak and again every period.
func day(c Day) clock {
	period := c.Period.Seconds()
	mean, swing := (c.Low+c.High)/2, (c.High-c.Low)/2
	peak := float64(c.Peak%c.Period) / float64(c.Period) // in turns
	size := swing * period / (2 * math.Pi)
	begin := sine(-peak)
	integral := func(t float64) float64 {
		return float64(mean*t) + float64(size*(sine(t/period-peak)-begin))
	}
	rate := func(t float64) float64 {
		return mean + float64(swing*sine(t/period-peak+0.25))
	}
	last := 0.0
	return func(x float64) float64 {
		// The swing moves the integral by at most ±2·size from that of the mean.
		from, to := max(last, (x-2*math.Abs(size))/mean), (x+2*math.Abs(size))/mean
		t := min(max(from, x/mean), to)
		for range 100 { // Newton's steps, halving where they lead out of the bracket
			miss := integral(t) - x
			if miss > 0 {
				to = t
			} else {
				from = t
			}
			next := t - miss/rate(t)
			if !(next > from && next < to) {
				next = from + (to-from)/2
			}
			if math.Abs(next-t) < 1e-10 {
				break
			}
			t = next
		}
		last = t
		return t
	}
}

// integral of the rate over the time d, for each kind that has a rate of its own.
func (p Process) expected(d time.Duration) float64 {
	s := d.Seconds()
	switch p.Kind {
	case Ramp:
		return (p.Rate + p.To) / 2 * s
	case Burst, Steps:
		steps, n, rest := p.steps(), 0.0, d
		var cycle time.Duration
		for _, st := range steps {
			cycle += st.For
			n += st.Rate * st.For.Seconds()
		}
		n *= float64(d / cycle)
		rest %= cycle
		for _, st := range steps {
			n += st.Rate * min(st.For, rest).Seconds()
			rest -= min(st.For, rest)
		}
		return n
	case Diurnal:
		period, peak := p.Period.Seconds(), float64(p.Peak%p.Period)/float64(p.Period)
		return (p.Low+p.High)/2*s + (p.High-p.Low)/2*period/(2*math.Pi)*(sine(s/period-peak)-sine(-peak))
	case Mix:
		n := 0.0
		for _, part := range p.Parts {
			n += part.expected(d)
		}
		return n
	case Replay:
		return 0 // is known when it is read
	}
	return p.Rate * s
}
