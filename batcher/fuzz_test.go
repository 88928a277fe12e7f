package batcher

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"aloft/backends"
)

// fate is what became of a work so far, by what the core said of it.
type fate struct {
	w     *Work
	rows  []rowState
	ended bool
}

type rowState uint8

const (
	rowWaits rowState = iota
	rowFlies
	rowDone
)

// trial drives a core with events made of bytes, and keeps books of its own.
type trial struct {
	t     *testing.T
	core  *Core
	opt   Options
	now   time.Time
	data  []byte
	steps []string
	fates []*fate
	of    map[*Work]*fate
	calls []*Batch
	ready []Replica
	eta   float64
	limit int

	answered map[*Batch]bool // those whose first byte is noted
	drained  bool
}

// FuzzCore sends a core whatever order of events its bytes say, in virtual time,
// and recounts everything after each. Coverage is not quite the same twice (maps have no
// order): fuzz with -fuzzminimizetime=1x.
func FuzzCore(f *testing.F) {
	f.Add([]byte{})
	for seed := range 16 { // a little of everything
		var data []byte
		x := uint32(seed)*2654435761 + 1
		for range 600 {
			x ^= x << 13
			x ^= x >> 17
			x ^= x << 5
			data = append(data, byte(x>>11))
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) { newTrial(t, data).run() })
}

func newTrial(t *testing.T, data []byte) *trial {
	x := &trial{t: t, data: data, now: t0, of: map[*Work]*fate{}, answered: map[*Batch]bool{}, limit: math.MaxInt}
	x.opt = Options{
		Model: "m", Merge: x.pick(3) > 0,
		MaxBatchRows: 1 + x.pick(12), MaxBatchTokens: 1 + 40*x.pick(12), MaxQueue: 1 + x.pick(24),
		QueueTimeout: []time.Duration{ms(80), time.Second, time.Minute}[x.pick(3)],
		Target:       []time.Duration{0, ms(40), ms(100), ms(800)}[x.pick(4)],
		Off:          x.pick(16) == 1, Affinity: x.pick(2) == 1, Hedge: x.pick(2) == 1, KVTokens: 500 * x.pick(3),
	}
	if x.opt.Target > 0 && x.pick(4) == 1 {
		x.opt.MaxQueueDelay = x.opt.Target / 3
	}
	if err := x.opt.Validate(); err != nil {
		t.Fatal(err)
	}
	x.core = NewCore(x.opt)
	x.replicas()
	if x.pick(2) == 1 { // it has seen much already
		for _, f := range x.core.fits {
			for i := range coldSamples + 1 {
				f.Observe(Size{1, 1 + i*8, 1 + i*8}, ms(4+float64(i)))
			}
			f.early = false
		}
		x.core.hedges.n, x.core.hedges.p95 = hedgeSamples, ms(4)
		x.core.slotSeconds.n, x.core.slotSeconds.mean = coldSamples, 0.02
	}
	return x
}

// pick takes a byte as a number below n; 0 when there is none left.
func (x *trial) pick(n int) int {
	if len(x.data) == 0 {
		return 0
	}
	v := int(x.data[0]) % n
	x.data = x.data[1:]
	return v
}

func (x *trial) fatalf(format string, args ...any) {
	x.t.Helper()
	from := max(0, len(x.steps)-40)
	x.t.Fatalf("%s\noptions %+v\nlast steps:\n%s", fmt.Sprintf(format, args...), x.opt, strings.Join(x.steps[from:], "\n"))
}

func (x *trial) note(format string, args ...any) {
	x.steps = append(x.steps, fmt.Sprintf("%v ", x.now.Sub(t0))+fmt.Sprintf(format, args...))
}

func (x *trial) run() {
	for len(x.data) > 0 && !x.drained {
		x.clock()
		x.event()
	}
	if x.drained {
		return
	}
	x.note("drain")
	x.apply(x.core.Drain(x.now))
	for n := 0; !x.core.Drained(); n++ {
		if n > 10_000 {
			x.fatalf("not drained after 10,000 steps: %d wait, %d fly, %d to do again", len(x.core.order.expiries), len(x.calls), len(x.core.redo))
		}
		if len(x.calls) > 0 {
			x.now = x.now.Add(ms(1))
			x.done(x.calls[0], Answered)
			continue
		}
		if x.core.Wake().IsZero() {
			x.fatalf("draining: something waits for nothing")
		}
		x.now = later(x.now, x.core.Wake())
		x.tick()
	}
	for _, f := range x.fates {
		if !f.ended {
			x.fatalf("drained, but a work has no end: %+v", f.rows)
		}
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (x *trial) clock() {
	switch n := x.pick(12); n {
	case 0, 1, 2, 3, 4: // several events of one moment
	case 5:
		x.now = x.now.Add(1)
	case 10:
		x.now = x.now.Add(time.Duration(1+x.pick(40)) * time.Second)
	case 11:
		if at := x.core.Wake(); !at.IsZero() && at.Sub(x.now) < time.Minute {
			x.now = later(x.now, at)
			x.tick()
		}
	default:
		x.sleep(time.Duration(1+x.pick(255)) * ms(1) / 4)
	}
}

// sleep passes time as the shell does: with a Tick at every wake-up.
func (x *trial) sleep(d time.Duration) {
	end := x.now.Add(d)
	for n := 0; ; n++ {
		at := x.core.Wake()
		if at.IsZero() || at.After(end) {
			break
		}
		if n > 1000 {
			x.fatalf("1,000 wake-ups within %v", d)
		}
		x.now = later(x.now, at)
		x.tick()
	}
	x.now = end
}

func (x *trial) tick() {
	x.note("tick")
	x.apply(x.core.Tick(x.now))
	if at := x.core.Wake(); !at.IsZero() && !at.After(x.now) {
		x.fatalf("Tick asks to be woken at %v, which is not later", at.Sub(t0))
	}
}

func (x *trial) event() {
	switch n := x.pick(32); {
	case n < 14:
		x.arrive()
	case n < 22 && len(x.calls) > 0:
		how := Answered
		if x.pick(3) == 1 {
			how = Outcome(x.pick(int(Dropped) + 1))
		}
		x.done(x.calls[x.pick(len(x.calls))], how)
	case n < 24 && len(x.calls) > 0:
		x.first(x.calls[x.pick(len(x.calls))])
	case n < 26 && len(x.fates) > 0:
		f := x.fates[len(x.fates)-1-x.pick(min(len(x.fates), 20))]
		x.note("cancel %p", f.w)
		f.ended = true
		x.apply(x.core.Cancel(x.now, f.w))
	case n == 26:
		x.replicas()
	case n == 27:
		x.eta = []float64{0, 0.3, 1, 2, -1, math.NaN(), math.Inf(1)}[x.pick(7)]
		x.note("eta %v", x.eta)
		x.apply(x.core.SetEta(x.now, x.eta))
	case n == 28:
		x.limit = x.pick(8)
		x.note("offline limit %d", x.limit)
		x.apply(x.core.SetOfflineLimit(x.now, x.limit))
	case n == 29 && len(x.calls) > 0:
		b := x.calls[x.pick(len(x.calls))]
		if b.Alone && !x.core.opt.Merge {
			x.note("streamed %p", b)
			x.apply(x.core.Streamed(x.now, b, b.written+x.pick(200)))
		}
	case n == 30:
		said := backends.Reading{Running: x.pick(6), Waiting: x.pick(4), KVUsage: float64(x.pick(12)) / 10, KVTokens: 1000 * x.pick(3)}
		x.note("reading %+v", said)
		x.apply(x.core.SetReading(x.now, string('a'+rune(x.pick(4))), said))
	case n == 31 && x.pick(16) == 1: // the end comes seldom
		x.note("abandon")
		x.drained = true
		if x.apply(x.core.Abandon(x.now)); !x.core.Drained() {
			x.fatalf("abandoned, but not drained")
		}
		for _, f := range x.fates {
			if alone := f.w.Alone && f.rows[0] == rowFlies; !f.ended && !alone {
				x.fatalf("abandoned, but a work has no end: %+v", f.rows)
			}
		}
	default:
		x.tick()
	}
}

func (x *trial) replicas() {
	x.ready = nil
	for i := range x.pick(5) {
		r := Replica{ID: string('a' + rune(i)), Index: i, Slots: x.pick(4), Shape: string('s' + rune(x.pick(2)))}
		switch x.pick(8) {
		case 1:
			r.Offline = true
		case 2:
			r.Old = true
		case 3:
			r.Adapters = []string{"x"}
		case 4:
			continue // this one is not ready
		}
		x.ready = append(x.ready, r)
	}
	x.note("replicas %+v", x.ready)
	x.apply(x.core.SetReplicas(x.now, x.ready))
}

func (x *trial) arrive() {
	rows := make([]int, 1)
	alone := !x.opt.Merge || x.pick(8) == 1
	if !alone {
		rows = make([]int, 1+x.pick(4)*x.pick(8))
	}
	for i := range rows {
		rows[i] = x.pick(64)
	}
	w := &Work{
		Class: backends.Class(x.pick(int(backends.Classes))), Tenant: string('t' + rune(x.pick(3))), Key: string('k' + rune(x.pick(2))),
		Alone: alone, Unary: x.pick(2) == 1, RowTokens: rows, Output: x.pick(40) - 1, Arrival: x.now,
	}
	switch x.pick(8) {
	case 1:
		w.Deadline = x.now.Add(time.Duration(x.pick(200)) * ms(1))
	case 2:
		w.Place.Adapter = "x"
	case 3:
		w.Place.Session, w.Place.Prefix = uint64(1+x.pick(3)), []uint64{uint64(1 + x.pick(3))}
	case 4:
		w.Arrival = x.now.Add(-time.Duration(x.pick(100)) * ms(1)) // it was long on its way
	}
	f := &fate{w: w, rows: make([]rowState, len(rows))}
	x.fates, x.of[w] = append(x.fates, f), f
	x.note("arrive %p class %d rows %v alone %v adapter %q", w, w.Class, rows, w.Alone, w.Place.Adapter)
	before := x.core.calls.Drops[DropLate]
	acts := x.core.Arrive(x.now, w)
	if x.core.calls.Drops[DropLate] > before {
		for _, r := range x.core.replicas {
			if !r.Offline && r.busy == 0 && r.open(x.now) && r.has(w.Place.Adapter) {
				x.fatalf("refused as late while %s is idle", r.ID)
			}
		}
	}
	x.apply(acts)
}

func (x *trial) first(b *Batch) {
	if !b.Alone || x.answered[b] || b.lost {
		return
	}
	x.answered[b] = true
	x.note("first %p", b)
	took := x.now.Sub(b.At)
	if b.Segs[0].Work.Unary {
		took = 0
	}
	x.apply(x.core.First(x.now, b, took))
}

func (x *trial) done(b *Batch, how Outcome) {
	x.note("done %p %v", b, how)
	lost, pair := b.lost, b.twin != nil
	x.calls = slices.DeleteFunc(x.calls, func(c *Batch) bool { return c == b })
	for _, s := range b.Segs {
		f := x.of[s.Work]
		for i := s.From; i < s.To; i++ {
			switch {
			case lost || pair && how != Answered: // its twin has the row
			case how == Answered:
				f.rows[i] = rowDone
			default:
				f.rows[i] = rowWaits
			}
		}
		if how == Answered && !lost && !slices.ContainsFunc(f.rows, func(r rowState) bool { return r != rowDone }) {
			f.ended = true
		}
		if how == Dropped && !lost && !pair {
			f.ended = true
		}
	}
	acts := x.core.Done(x.now, b, Result{Outcome: how, Took: x.now.Sub(b.At), Err: errors.New("x"), Output: x.pick(64)})
	x.apply(acts)
}

// apply does what the core decided, in the books, and audits it.
func (x *trial) apply(acts []Action) {
	acts = slices.Clone(acts)
	for _, a := range acts {
		switch a.Kind {
		case Fail:
			f := x.of[a.Work]
			if f.ended {
				x.fatalf("%p failed with %v, but had ended", a.Work, a.Err)
			}
			if f.ended = true; a.Err == nil {
				x.fatalf("%p failed without an error", a.Work)
			}
			x.note("  fail %p %v", a.Work, a.Err)
		case Abort:
			x.note("  abort %p", a.Batch)
			if !slices.Contains(x.calls, a.Batch) {
				x.fatalf("aborts %p, which does not fly", a.Batch)
			}
		case Dispatch, Hedge:
			x.dispatch(a.Batch, a.Kind == Hedge)
		}
	}
	for _, a := range acts { // a call may be aborted before its last member is told
		if a.Kind == Abort && !a.Batch.lost && slices.ContainsFunc(a.Batch.Segs, func(s Seg) bool { return !x.of[s.Work].ended }) {
			x.fatalf("aborts %p, for which somebody waits", a.Batch)
		}
	}
	x.audit()
}

func (x *trial) dispatch(b *Batch, hedge bool) {
	x.note("  dispatch %p to %s: %d rows, %d tokens, %v", b, b.Replica.ID, b.Rows, b.Tokens, b.Reason)
	at := slices.IndexFunc(x.ready, func(r Replica) bool { return r.ID == b.Replica.ID })
	if at < 0 {
		x.fatalf("dispatched to %s, which is not ready", b.Replica.ID)
	}
	r, busy, offline := x.ready[at], 1, b.OfflineRows
	for _, c := range x.calls {
		if c == b {
			x.fatalf("%p dispatched twice", b)
		}
		if c.Replica.ID == r.ID {
			busy++
		}
		if !c.Replica.Offline {
			offline += c.OfflineRows
		}
	}
	rows, tokens, offRows := 0, 0, 0
	for _, s := range b.Segs {
		f := x.of[s.Work]
		if f.ended {
			x.fatalf("%p dispatched, but it had ended", s.Work)
		}
		for i := s.From; i < s.To; i++ {
			if hedge != (f.rows[i] == rowFlies) || f.rows[i] == rowDone {
				x.fatalf("row %d of %p dispatched in state %d", i, s.Work, f.rows[i])
			}
			f.rows[i] = rowFlies
			tokens += max(s.Work.RowTokens[i], 1)
		}
		rows += s.To - s.From
		if s.Work.Class == backends.Offline {
			offRows += s.To - s.From
		}
		if s.Work.Key != b.Key || s.Work.Place.Adapter != b.Adapter || s.Work.Alone != b.Alone {
			x.fatalf("%p does not belong to %p", s.Work, b)
		}
	}
	one := b.Alone || x.opt.Off
	switch {
	case busy > max(r.Slots, 1):
		x.fatalf("%d calls on %s, which has %d slots", busy, r.ID, r.Slots)
	case rows == 0 || rows != b.Rows || tokens != b.Tokens || offRows != b.OfflineRows || rows > x.opt.MaxBatchRows && !one:
		x.fatalf("call of %d rows, %d tokens, %d offline; it says %+v", rows, tokens, offRows, b)
	case one && len(b.Segs) != 1:
		x.fatalf("%d members of a call that is alone", len(b.Segs))
	case b.Adapter != "" && !slices.Contains(r.Adapters, b.Adapter):
		x.fatalf("%s has no adapter %q", r.ID, b.Adapter)
	case r.Offline && offRows < rows:
		x.fatalf("serving work on %s, which is lent", r.ID)
	case !r.Offline && offRows > 0 && offline > x.limit:
		x.fatalf("%d offline rows on shared replicas, at most %d are allowed", offline, x.limit)
	}
	x.calls = append(x.calls, b)
}

// audit recounts everything that the core keeps counts of.
func (x *trial) audit() {
	c := x.core
	x.rows()
	var open [backends.Classes]uint64
	for _, f := range x.fates {
		if f.ended != f.w.closed {
			x.fatalf("%p: ended %v, the core says %v", f.w, f.ended, f.w.closed)
		}
		if !f.ended {
			open[f.w.Class]++
		}
	}
	for i := range c.order.classes {
		n := c.order.classes[i].count
		if sum := n.Done + n.Shed + n.Expired + n.Refused + n.Failed + n.Cancelled + open[i]; n.Arrived != sum {
			x.fatalf("class %d: %d arrived, but counters sum up to %d: %+v, %d open", i, n.Arrived, sum, n, open[i])
		}
	}
	x.queues()
	x.engines()
	if len(c.order.expiries) > 0 || len(c.redo) > 0 {
		if c.Wake().IsZero() {
			x.fatalf("work waits, but nobody wakes the core")
		}
	}
	x.idle()
}

// rows checks that each row of a work that has not ended is in one place.
func (x *trial) rows() {
	for _, f := range x.fates {
		if f.ended {
			if f.w.lane != nil {
				x.fatalf("%p has ended and waits", f.w)
			}
			continue
		}
		waits := make([]int, len(f.rows))
		for _, s := range f.w.todo {
			for i := s.from; i < s.to; i++ {
				waits[i]++
			}
		}
		if (len(f.w.todo) > 0) != (f.w.lane != nil) {
			x.fatalf("%p has %v to do, and lane %p", f.w, f.w.todo, f.w.lane)
		}
		for _, b := range x.core.redo {
			for _, s := range b.Segs {
				for i := s.From; s.Work == f.w && i < s.To; i++ {
					waits[i]++
				}
			}
		}
		for i, r := range f.rows {
			if want := r == rowWaits; waits[i] > 1 || want != (waits[i] == 1) {
				x.fatalf("row %d of %p is in state %d and waits %d times", i, f.w, r, waits[i])
			}
		}
	}
}

func (x *trial) queues() {
	o := x.core.order
	var queue, rows, tokens, active [backends.Classes]int
	works := 0
	accounts := map[*account][2]int{}
	for _, l := range o.lanes {
		inLane := 0
		for class := range l.bands {
			b := &l.bands[class]
			r, t := 0, 0
			for _, q := range b.tenants {
				for i, w := range q.works {
					if w.duePos != i || w.queue != q || w.lane != l || o.expiries[w.expiryPos] != w || i > 0 && w.due.Before(q.works[(i-1)/2].due) {
						x.fatalf("%p is out of its place: %+v", w, w.seat)
					}
					wr, wt := w.waiting()
					r, t = r+wr, t+wt
					a := accounts[q.account]
					accounts[q.account] = [2]int{a[0] + 1, a[1] + wt}
				}
				if len(q.works) > 0 && o.classes[class].accounts[q.name] != q.account {
					x.fatalf("tenant %s waits on an account that is not its own", q.name)
				}
				queue[class] += len(q.works)
				inLane += len(q.works)
			}
			x.turns(b)
			if r != b.rows || t != b.tokens {
				x.fatalf("band has %d rows, %d tokens; it says %d, %d", r, t, b.rows, b.tokens)
			}
			rows[class], tokens[class] = rows[class]+r, tokens[class]+t
		}
		if inLane != l.works {
			x.fatalf("lane has %d works; it says %d", inLane, l.works)
		}
		works += inLane
	}
	if works != len(o.expiries) {
		x.fatalf("%d wait, %d expire", works, len(o.expiries))
	}
	for class := range o.classes {
		c := &o.classes[class]
		for name, a := range c.accounts {
			if n := accounts[a]; n != [2]int{a.queued, a.tokens} {
				x.fatalf("account %s: %v wait; it says %d, %d", name, n, a.queued, a.tokens)
			}
			if a.queued > 0 {
				active[class]++
			}
		}
		if queue[class] != c.queue || rows[class] != c.rows || tokens[class] != c.tokens || active[class] != c.active {
			x.fatalf("class %d: queue %d, rows %d, tokens %d, active %d; it says %+v", class, queue[class], rows[class], tokens[class], active[class], c)
		}
	}
}

// turns checks that the tenants of a band lie as a heap of lower bounds, and that
// the first is the one whose turn it is.
func (x *trial) turns(b *band) {
	var first *tenantQueue
	for _, q := range b.tenants {
		if len(q.works) == 0 {
			continue
		}
		served, due := q.account.served, q.works[0].due
		if q.pos < 0 || b.turns[q.pos] != q || q.served > served || q.served == served && q.due.After(due) {
			x.fatalf("tenant %s is out of turn: %+v, served %v, due %v", q.name, q.turn, served, due)
		}
		if first == nil || served < first.account.served || served == first.account.served && due.Before(first.works[0].due) {
			first = q
		}
	}
	w := b.next()
	if (w == nil) != (first == nil) || w != nil && (w.queue.account.served != first.account.served || !w.due.Equal(first.works[0].due)) {
		x.fatalf("the turn is %p's, not that of %v", w, first)
	}
}

func (x *trial) engines() {
	c := x.core
	type load struct{ busy, tokens, kv, seats, prefills int }
	loads := map[*replica]load{}
	var inFlight, inFlightTok [backends.Classes]int
	offline := 0
	for _, b := range x.calls {
		l := loads[b.replica]
		l.busy, l.tokens = l.busy+1, l.tokens+b.load
		if b.sat {
			l.kv, l.seats = l.kv+b.cache(), l.seats+1
			if !b.begun {
				l.prefills++
			}
		}
		loads[b.replica] = l
		for _, s := range b.Segs {
			inFlight[s.Work.Class]++
			inFlightTok[s.Work.Class] += s.Tokens
		}
		if !b.Replica.Offline {
			offline += b.OfflineRows
		}
		if !x.drained && (b.pos >= len(c.flying) || c.flying[b.pos] != b) {
			x.fatalf("%p flies, but not where it says", b)
		}
	}
	if offline != c.offlineRows || !x.drained && len(c.flying) != len(x.calls) && !c.draining {
		x.fatalf("%d calls fly with %d offline rows; the core says %d, %d", len(x.calls), offline, len(c.flying), c.offlineRows)
	}
	for _, r := range c.byID {
		if l := (load{r.busy, r.tokens, r.kv, len(r.seats), len(r.prefills)}); loads[r] != l {
			x.fatalf("%s has %+v; it says %+v", r.ID, loads[r], l)
		}
		delete(loads, r)
	}
	if len(loads) > 0 {
		x.fatalf("calls fly on replicas that are forgotten")
	}
	for class := range c.order.classes {
		if cl := &c.order.classes[class]; cl.inFlight != inFlight[class] || cl.inFlightTok != inFlightTok[class] {
			x.fatalf("class %d: %d segments and %d tokens fly; it says %d, %d", class, inFlight[class], inFlightTok[class], cl.inFlight, cl.inFlightTok)
		}
	}
	x.core.Signals(x.now)
	for _, f := range c.fits {
		if !(f.alpha > 0 && f.beta > 0 && f.margin >= 1 && f.alpha < 1e6 && f.beta < 1e6) {
			x.fatalf("fit %+v", f)
		}
	}
}

// idle checks that no replica stands idle beside serving work that it may run at
// once.
func (x *trial) idle() {
	c := x.core
	if !c.opt.Merge || c.eta != 0 || c.opt.MaxQueueDelay > 0 || !c.Wake().After(x.now) { // a Tick is overdue
		return
	}
	for _, r := range c.replicas {
		if r.Offline || !r.open(x.now) {
			continue
		}
		for _, w := range c.order.expiries {
			if w.Class < backends.Offline && r.has(w.Place.Adapter) && !(w.avoid.id == r.ID && x.now.Before(w.avoid.until)) {
				x.fatalf("%s has a free slot, and %p waits", r.ID, w)
			}
		}
	}
}
