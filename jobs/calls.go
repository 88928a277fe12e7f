package jobs

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"time"

	"aloft/backends"
)

// callRow calls until there is a final reply. false = ctx ended first.
func (m *Manager) callRow(ctx context.Context, r Row) (outcomeRow, bool) {
	for try, faults := 0, 0; ; try++ {
		res, err := m.callOnce(ctx, r)
		if ctx.Err() != nil && (err != nil || res.Status < 200 || res.Status > 299) {
			return outcomeRow{}, false // the echo of our own end is no answer
		}
		again, after := classify(res, err)
		if again == retryFault {
			if faults++; faults >= m.opt.Retry.Attempts {
				again = retryNever
			}
		}
		if again == retryNever && err != nil {
			return outcomeRow{code: "row_failed", message: err.Error()}, true
		}
		if again == retryNever {
			return outcomeRow{result: res}, true
		}
		wait := time.NewTimer(pause(m.opt.Retry, try, after))
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			return outcomeRow{}, false
		}
	}
}

// callOnce keeps a panic in the caller from taking the other rows with it.
func (m *Manager) callOnce(ctx context.Context, r Row) (res Result, err error) {
	defer func() {
		if p := recover(); p != nil {
			m.log.Error("row panicked", "row", r.ID, "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("internal error: %v", p)
		}
	}()
	res, err = m.opt.Caller.Call(ctx, r)
	if err == nil && res.Status == 0 {
		err = fmt.Errorf("row %s: reply without a status: %w", r.ID, backends.ErrBadReply)
	}
	return res, err
}

// retryClass says whether a row is worth another try.
type retryClass int

const (
	retryNever    retryClass = iota // the reply is final
	retryFault                      // may pass: tried Attempts times
	retryCapacity                   // did not run for lack of capacity: tried until the window ends
)

// classify sorts a reply, with the pause that its sender asked for.
func classify(res Result, err error) (retryClass, time.Duration) {
	if err == nil {
		if res.Final {
			return retryNever, 0
		}
		switch res.Status {
		case 429, 503:
			return retryCapacity, 0
		case 408, 500, 502, 504:
			return retryFault, 0
		}
		return retryNever, 0
	}
	if re, ok := errors.AsType[*backends.RetryError](err); ok {
		return retryCapacity, re.After
	}
	for _, e := range []error{backends.ErrOverloaded, backends.ErrUnavailable, backends.ErrDeadline, backends.ErrDraining} {
		if errors.Is(err, e) {
			return retryCapacity, 0
		}
	}
	if errors.Is(err, backends.ErrUnknownModel) || errors.Is(err, backends.ErrTooLong) {
		return retryNever, 0
	}
	return retryFault, 0
}

// pause is the time before the next try: doubling, at least what was asked for,
// never above Most, and between half and all of it so that rows spread.
func pause(r Retry, try int, after time.Duration) time.Duration {
	d := min(max(r.First<<min(try, 20), after), r.Most)
	return d/2 + rand.N(d/2+1)
}
