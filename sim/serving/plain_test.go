package serving

import (
	"math"
	"slices"
	"time"
)

// plain serves asks by the scenarios' rule alone, without our core: one queue, a
// free replica pulls the oldest, of free ones the one with fewest sequences first.
// It returns how many were good. It knows no wait's end and refuses nobody.
func plain(law Law, slo SLO, replicas int, asks []ask) (good []bool) {
	p := &plainWorld{Law: law, slo: slo, fleet: make([]plainReplica, replicas), good: make([]bool, len(asks))}
	for i := range p.fleet {
		p.fleet[i].at = math.Inf(1)
	}
	next := 0
	for {
		r := 0
		for i := range p.fleet {
			if p.fleet[i].at < p.fleet[r].at {
				r = i
			}
		}
		switch {
		case next < len(asks) && asks[next].at.Seconds() < p.fleet[r].at:
			p.queue = append(p.queue, plainSeq{asks[next], next, 0, 0})
			p.now = asks[next].at.Seconds()
			next++
		case math.IsInf(p.fleet[r].at, 1):
			return p.good
		default:
			p.now = p.fleet[r].at
			p.happen(&p.fleet[r])
		}
		p.pull()
	}
}

type plainWorld struct {
	Law
	slo   SLO
	now   float64
	fleet []plainReplica
	queue []plainSeq
	good  []bool
}

type plainSeq struct {
	ask
	index int
	first float64
	left  float64 // tokens of the prompt, then of the answer
}

type plainReplica struct {
	now, at float64 // computed up to; what happens next
	prompts []plainSeq
	decodes []plainSeq
}

// rates of reading and of decoding, tokens a second.
func (p *plainWorld) rates(r *plainReplica) (read, decode float64) {
	decode = 1 / p.step(len(r.decodes))
	if len(r.prompts) > 0 {
		read, decode = p.Prefill, decode*p.DecodeSpeed
	}
	return read, decode
}

func (p *plainWorld) advance(r *plainReplica) {
	read, decode := p.rates(r)
	if len(r.prompts) > 0 {
		r.prompts[0].left -= read * (p.now - r.now)
	}
	for i := range r.decodes {
		r.decodes[i].left -= decode * (p.now - r.now)
	}
	r.now = p.now
}

func (p *plainWorld) plan(r *plainReplica) {
	read, decode := p.rates(r)
	r.at = math.Inf(1)
	if len(r.prompts) > 0 {
		r.at = r.now + max(0, r.prompts[0].left)/read
	}
	for _, d := range r.decodes {
		r.at = min(r.at, r.now+max(0, d.left)/decode)
	}
}

const rest = 1e-6 // of a token

func (p *plainWorld) happen(r *plainReplica) {
	p.advance(r)
	r.decodes = slices.DeleteFunc(r.decodes, func(d plainSeq) bool {
		if d.left > rest {
			return false
		}
		limit := p.slo.TTFT + time.Duration(d.in)*p.slo.PerInput
		p.good[d.index] = d.first-d.at.Seconds() <= limit.Seconds() &&
			(p.slo.TPOT == 0 || p.now-d.first <= float64(d.out)*p.slo.TPOT.Seconds())
		return true
	})
	if len(r.prompts) > 0 && r.prompts[0].left <= rest {
		d := r.prompts[0]
		r.prompts = r.prompts[1:]
		d.first, d.left = p.now, float64(d.out)
		r.decodes = append(r.decodes, d)
	}
	p.plan(r)
}

func (p *plainWorld) pull() {
	for len(p.queue) > 0 {
		var best *plainReplica
		for i := range p.fleet {
			r := &p.fleet[i]
			if n := len(r.prompts) + len(r.decodes); n < p.Slots && (best == nil || n < len(best.prompts)+len(best.decodes)) {
				best = r
			}
		}
		if best == nil {
			return
		}
		q := p.queue[0]
		p.queue = p.queue[1:]
		q.left = float64(q.in)
		p.advance(best)
		best.prompts = append(best.prompts, q)
		p.plan(best)
	}
}
