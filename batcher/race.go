package batcher

import (
	"context"
	"errors"
	"sync/atomic"

	"aloft/backends"
)

// errLost ends the call of a hedged pair that the other one overtook.
var errLost = errors.New("the other call of a hedged pair answered first")

// Who decides a race.
const (
	nobody int32 = iota
	byFirst
	bySecond
	byLeaving // the caller is gone
)

// race is what the two calls of a hedged pair share: whoever decides it, first,
// owns the reply.
type race struct {
	ctx     context.Context // of the first call
	stop    context.CancelCauseFunc
	decided atomic.Int32
	asked   atomic.Bool // a second call was made
	answer  chan *backends.Reply
}

func newRace(ctx context.Context) *race {
	r := &race{answer: make(chan *backends.Reply, 1)}
	r.ctx, r.stop = context.WithCancelCause(ctx)
	return r
}

// won reports whether who is the first to decide.
func (r *race) won(who int32) bool { return r.decided.CompareAndSwap(nobody, who) }

// leave gives up: an answer that the second call has ready, or is about to hand
// over, is closed.
func (r *race) leave() {
	if !r.won(byLeaving) && r.decided.Load() == bySecond {
		(<-r.answer).Body.Close()
	}
	r.stop(nil)
}

// hedged is where a second call's answer arrives; nil without one.
func (t *ticket) hedged() <-chan *backends.Reply {
	if t.race == nil {
		return nil
	}
	return t.race.answer
}

// hedge makes the second call of a pair.
func (b *Batcher) hedge(batch *Batch) {
	t := batch.Segs[0].Work.Load.(*ticket)
	ctx, stop := context.WithCancelCause(t.ctx)
	t.race.asked.Store(true)
	b.seconds[batch] = stop
	b.workers.Go(func() { b.second(ctx, stop, batch) })
}

func (b *Batcher) second(ctx context.Context, stop context.CancelCauseFunc, batch *Batch) {
	t := batch.Segs[0].Work.Load.(*ticket)
	release := context.AfterFunc(b.base, func() { stop(backends.ErrDraining) })
	defer release()
	if ctx.Err() != nil { // the caller has left since
		b.tell(event{kind: evDone, batch: batch, result: Result{Outcome: Dropped}})
		return
	}
	reply, err := batch.Replica.Backend.Do(ctx, &t.call)
	if err == nil && reply.Status != 200 {
		err = refusal(reply, batch.At)
	}
	if err == nil && t.race.won(bySecond) {
		reply = b.relay(t, batch, reply)
		t.slot.stop = stop
		t.race.answer <- reply
		return
	}
	how := Dropped
	if err != nil {
		how = outcome(ctx, err)
		b.broken(batch, how, err)
	} else {
		reply.Body.Close()
	}
	stop(nil)
	b.tell(event{kind: evDone, batch: batch, result: Result{Outcome: how, Err: err}})
}
