package sim

import (
	"time"

	"aloft/arbiter"
)

// spans collects what slices did, for a Gantt chart.
type spans struct {
	open    map[*slot]open
	list    []Span
	leftOut int
}

// open is a span that has not ended.
type open struct {
	from  time.Duration
	phase arbiter.Phase
	who   string
}

// show begins another span where what a slice does has changed.
func (p *spans) show(r *engine, s *slot) {
	if r.opt.Spans == 0 {
		return
	}
	if p.open == nil {
		p.open = map[*slot]open{}
	}
	now := open{r.now, s.phase, ""}
	switch {
	case s.stint != nil:
		now.who = s.stint.job.ID
	case s.host() >= 0:
		now.who = r.serving[s.host()].traffic.Model.Name
	}
	old, ok := p.open[s]
	if ok && old.phase == now.phase && old.who == now.who {
		return
	}
	p.close(r, s)
	p.open[s] = now
}

// close ends a slice's span. Empty slices leave none.
func (p *spans) close(r *engine, s *slot) {
	o, ok := p.open[s]
	delete(p.open, s)
	from, to := max(o.from, r.opt.SpansFrom), min(r.now, r.opt.SpansTo)
	if !ok || o.phase == arbiter.Free || from >= to {
		return
	}
	if len(p.list) >= r.opt.Spans {
		p.leftOut++
		return
	}
	p.list = append(p.list, Span{GPU: s.GPU, Start: s.Start, Width: s.units, FromS: seconds(from), ToS: seconds(to), Phase: o.phase, Who: o.who})
}

func (p *spans) result(r *engine) Spans {
	return Spans{FromS: seconds(r.opt.SpansFrom), ToS: seconds(r.opt.SpansTo), List: p.list, LeftOut: p.leftOut}
}
