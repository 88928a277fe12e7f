package serving

import (
	"fmt"
	"math"
	"time"

	"aloft/batcher"
)

// Law is how fast one replica is. Generation: up to Slots sequences; one prompt is
// read at a time, at Prefill tokens a second; a decode step over n sequences takes
// Alpha + Beta·n and gives each one token, and steps run at DecodeSpeed of their
// pace while a prompt is read. A sequence has its first token when its prompt is
// read and leaves a step for each output token later, so that a request costs what
// the scenarios call its knee work at least. Merged calls: one at a time, of
// Alpha + Beta·tokens, of MaxTokens at most unless one request has more; that size
// is the knee, by which merged work is measured.
type Law struct {
	Alpha, Beta float64 // seconds
	MaxTokens   int
	Slots       int
	Prefill     float64
	DecodeSpeed float64
	// DecodeBound: which form of knee work holds for the model, which is what batch
	// rows leave to it.
	DecodeBound bool
}

func (l Law) validate(merge bool) error {
	switch {
	case !(l.Alpha >= 0 && l.Beta >= 0 && l.Alpha+l.Beta > 0):
		return fmt.Errorf("serving: alpha is %g and beta %g, want seconds from 0, and one above", l.Alpha, l.Beta)
	case merge && l.MaxTokens < 1:
		return fmt.Errorf("serving: merged calls have at most %d tokens, want 1 or more", l.MaxTokens)
	case merge:
		return nil
	case l.Slots < 1 || !(l.Prefill > 0):
		return fmt.Errorf("serving: slots are %d and prefill is %g tokens/s, want at least 1 and more than 0", l.Slots, l.Prefill)
	case !(l.DecodeSpeed > 0 && l.DecodeSpeed <= 1):
		return fmt.Errorf("serving: decode speed is %g, want more than 0 and at most 1", l.DecodeSpeed)
	}
	return nil
}

// step is the time of a decode step over n sequences, in seconds.
func (l *Law) step(n int) float64 { return l.Alpha + l.Beta*float64(n) }

// knee is the rate of calls of MaxTokens, in tokens a second.
func (l *Law) knee() float64 {
	return float64(l.MaxTokens) / (l.Alpha + l.Beta*float64(l.MaxTokens))
}

// arrived is what a request of so many prompt tokens adds to its model's work, in
// seconds of a replica: of its prefill lane, or of calls at the knee.
func (l *Law) arrived(in int, merge bool) float64 {
	if merge {
		return float64(in) / l.knee()
	}
	return float64(in) / l.Prefill
}

// replica is one replica with what runs on it.
type replica struct {
	*Law
	number int
	id     string
	ready  bool // the core may use it

	now     time.Duration // up to when it was computed
	steps   float64       // decode steps done, since it last had none to do
	pace    float64       // steps a second, now
	decodes []sequence
	prompts []*batcher.Batch // the first is being read
	read    time.Duration    // when that ends
	call    *batcher.Batch   // merged calls: the one that runs
	began   time.Duration
	use     float64 // share of the replica that serving takes now, in knee work

	at  time.Duration // what happens next
	pos int           // in upcoming
}

// sequence is an answer being generated.
type sequence struct {
	ends  float64 // when steps has come so far
	batch *batcher.Batch
}

// done is a step that rounding has hidden: steps are kept in floating point.
const done = 1e-6

func (r *replica) running() int {
	n := len(r.decodes) + len(r.prompts)
	if r.call != nil {
		n++
	}
	return n
}

// advance computes r up to now.
func (r *replica) advance(s *Server, now time.Duration) {
	dt := (now - r.now).Seconds()
	r.now = now
	if dt <= 0 {
		return
	}
	r.steps += dt * r.pace
	if s.rows && r.ready {
		s.rowed += dt * rowsOf(r.use)
	}
}

// start takes a call that the core has dispatched.
func (r *replica) start(s *Server, b *batcher.Batch) {
	s.waiting, s.running = s.waiting-len(b.Segs), s.running+len(b.Segs)
	r.advance(s, s.now)
	if s.opt.Merge {
		if r.call != nil {
			panic("BUG: replica " + r.id + " has two calls")
		}
		r.call, r.began = b, s.now
	} else {
		if r.running() == r.Slots {
			panic("BUG: replica " + r.id + " has no slot free")
		}
		if r.prompts = append(r.prompts, b); len(r.prompts) == 1 {
			r.readFirst()
		}
	}
	r.plan(s)
}

// readFirst begins with the first prompt.
func (r *replica) readFirst() { r.read = r.now + seconds(float64(r.prompts[0].Tokens)/r.Prefill) }

// seconds rounds up, so that what is due has happened.
func seconds(v float64) time.Duration { return time.Duration(math.Ceil(v * 1e9)) }

// plan works out how fast r is now and what happens next on it.
func (r *replica) plan(s *Server) {
	r.at, r.pace, r.use = never, 0, 0
	if b := r.call; b != nil {
		took := r.Alpha + r.Beta*float64(b.Tokens)
		r.at, r.use = r.began+seconds(took), float64(b.Tokens)/r.knee()/took
	}
	if n := len(r.decodes); n > 0 {
		r.pace = 1 / r.step(n)
		if len(r.prompts) > 0 {
			r.pace *= r.DecodeSpeed
		}
		r.at = r.now + seconds((r.decodes[r.last()].ends-r.steps)/r.pace)
		if r.DecodeBound {
			r.use = float64(n) * r.pace * r.step(r.Slots) / float64(r.Slots)
		}
	} else {
		r.steps = 0
	}
	if len(r.prompts) > 0 {
		r.at = min(r.at, r.read)
		if r.DecodeBound {
			r.use += 1 - r.DecodeSpeed
		} else {
			r.use = 1
		}
	}
	s.queue.place(r)
}

// last is the sequence that ends first. There are slots of them at most: a heap
// would gain nothing.
func (r *replica) last() (first int) {
	for i := range r.decodes {
		if r.decodes[i].ends < r.decodes[first].ends {
			first = i
		}
	}
	return first
}

// step does what is due on r: answers end before the next prompt is read, so that
// their slots are free.
func (s *Server) step(r *replica) {
	r.advance(s, s.now)
	at := epoch.Add(s.now)
	switch {
	case r.call != nil:
		b := r.call
		r.call = nil
		r.plan(s)
		s.answered(b)
		s.apply(s.core.Done(at, b, batcher.Result{Outcome: batcher.Answered, Took: s.now - r.began}))
	case len(r.prompts) > 0 && r.read <= s.now && !r.ends():
		b := r.prompts[0]
		r.prompts = append(r.prompts[:0], r.prompts[1:]...)
		q := b.Segs[0].Work.Load.(*request)
		q.first = s.now
		r.decodes = append(r.decodes, sequence{r.steps + float64(q.out), b})
		if len(r.prompts) > 0 {
			r.readFirst()
		}
		r.plan(s)
		s.firstToken(q)
		s.apply(s.core.First(at, b, at.Sub(b.At)))
	default:
		i := r.last()
		b := r.decodes[i].batch
		n := len(r.decodes) - 1
		r.decodes[i], r.decodes[n] = r.decodes[n], sequence{}
		r.decodes = r.decodes[:n]
		r.plan(s)
		q := b.Segs[0].Work.Load.(*request)
		s.apply(s.core.Done(at, b, batcher.Result{Outcome: batcher.Answered, Took: at.Sub(b.At), Output: q.out}))
		s.end(q, s.now, Finished)
	}
}

// ends reports whether a sequence has all its tokens.
func (r *replica) ends() bool {
	return len(r.decodes) > 0 && r.decodes[r.last()].ends <= r.steps+done
}

// answered ends the members of a merged call.
func (s *Server) answered(b *batcher.Batch) {
	for _, g := range b.Segs {
		q := g.Work.Load.(*request)
		q.first = s.now
		s.firstToken(q)
		s.end(q, s.now, Finished)
	}
}

// clear takes everything off r, and says what that was, in order of its start.
func (r *replica) clear(s *Server, now time.Duration) (lost []*batcher.Batch) {
	r.advance(s, now)
	for _, d := range r.decodes {
		lost = append(lost, d.batch)
	}
	lost = append(lost, r.prompts...)
	if r.call != nil {
		lost = append(lost, r.call)
	}
	clear(r.decodes)
	clear(r.prompts)
	r.decodes, r.prompts, r.call = r.decodes[:0], r.prompts[:0], nil
	r.plan(s)
	return lost
}
