package arrivals

import (
	"math/rand/v2"
	"time"
)

// draw plans a process within [0, d), in order of time, and says how long it is:
// d, but for a trace that is played to its end.
func (b *builder) draw(r *rand.Rand, p Process, d time.Duration) ([]arrival, time.Duration, error) {
	var out []arrival
	var err error
	switch p.Kind {
	case Replay:
		return b.replay(r, p.Trace, d)
	case Many:
		out, err = b.many(r, p, d)
	case Mix:
		out, err = b.mix(r, p.Parts, d)
	default:
		full := false
		p.each(r, d, func(at time.Duration) bool {
			if full = len(out) >= b.left; full {
				return false
			}
			out = append(out, arrival{at, Shape{Tenant: anyone}})
			return true
		})
		if full {
			err = errFull
		}
	}
	return out, d, err
}

// each calls add with every arrival of a process with one rate in [0, d), in
// order, until add says stop.
func (p Process) each(r *rand.Rand, d time.Duration, add func(time.Duration) bool) {
	if p.Kind == Constant {
		for i := 0; ; i++ {
			// From the index, not from the gap before: rounding must not add up.
			at := time.Duration(float64(i) * float64(time.Second) / p.Rate)
			if at >= d || !add(at) {
				return
			}
		}
	}
	g := gaps{cv: p.CV}
	if g.cv == 0 {
		g.cv = 1
	}
	g.renewal(r, p.clock(d), d, add)
}

// clock of a process, over a phase of this length.
func (p Process) clock(d time.Duration) clock {
	switch p.Kind {
	case Ramp:
		return ramp(p.Rate, p.To, d.Seconds())
	case Burst, Steps:
		return turns(p.steps())
	case Diurnal:
		return day(p.Day)
	}
	return steady(p.Rate)
}

// renewal draws gaps of mean 1 and sees them through a clock.
func (g gaps) renewal(r *rand.Rand, c clock, d time.Duration, add func(time.Duration) bool) {
	last := time.Duration(0)
	for x := g.first(r); ; x += g.next(r) {
		t := c(x)
		if !(t < d.Seconds()) { // a clock that stands still says NaN
			return
		}
		last = max(last, time.Duration(t*float64(time.Second))) // rounding may not turn back time
		if last >= d || !add(last) {
			return
		}
	}
}

// mix lays the parts over each other.
func (b *builder) mix(r *rand.Rand, parts []Process, d time.Duration) ([]arrival, error) {
	var out []arrival
	room := b.left
	defer func() { b.left = room }()
	for _, p := range parts {
		own := rand.New(rand.NewPCG(r.Uint64(), r.Uint64()))
		more, _, err := b.draw(own, p, d)
		if err != nil {
			return nil, err
		}
		out = append(out, more...)
		b.left = room - len(out)
	}
	sortArrivals(out)
	return out, nil
}

// begin is the process of the warm-up before p: p itself, or a Poisson process
// of the rate at which p begins where p has a form in time. A trace is warmed
// up with its own first requests.
func (p Process) begin() Process {
	switch p.Kind {
	case Ramp:
		return Process{Kind: Poisson, Rate: p.Rate}
	case Steps:
		return Process{Kind: Poisson, Rate: p.Steps[0].Rate}
	case Diurnal:
		peak := float64(p.Peak%p.Period) / float64(p.Period)
		return Process{Kind: Poisson, Rate: (p.Low+p.High)/2 + float64((p.High-p.Low)/2*sine(0.25-peak))}
	case Mix:
		parts := make([]Process, len(p.Parts))
		for i, part := range p.Parts {
			parts[i] = part.begin()
		}
		p.Parts = parts
	}
	return p
}
