package arbiter

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"aloft/gpu"
)

// loanList is those of the last look, and how long they last unless it is repeated.
type loanList struct {
	until time.Time
	all   []loan
}

type loan struct {
	slice      gpu.Slice
	job, model string // model: whose replica sleeps there; "" = none
}

// listLoans is what is lent and at rest: moves end by themselves. The caller holds
// the lock.
func (a *Arbiter) listLoans(now time.Time) *loanList {
	l := &loanList{until: now.Add(a.core.opt.Lease)}
	for i, x := range a.core.leases {
		if s := &a.core.snapshot.Slices[i]; x.Job != "" && !x.Moving {
			l.all = append(l.all, loan{s.Slice, x.Job, s.Model})
		}
	}
	return l
}

// expired reports whether the loop has not looked for a whole lease.
func (a *Arbiter) expired() bool {
	l := a.loans.Load()
	return l != nil && time.Now().After(l.until)
}

var errExpired = errors.New("the arbiter has not looked for too long: every loan ends")

// watch ends the loans of a loop that looks no more, blind or stuck: silence means
// that a slice goes back to serving. It shares nothing with the loop that could
// hold it up, and the loop decides nothing until it has done.
func (a *Arbiter) watch(ctx context.Context) {
	tick := time.NewTicker(a.opt.Core.Guard)
	defer tick.Stop()
	var ending sync.WaitGroup
	defer ending.Wait()
	ended := time.Time{} // until when those lasted that were ended last
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		l := a.loans.Load()
		if l == nil || !time.Now().After(l.until) || l.until.Equal(ended) {
			continue
		}
		ended = l.until
		a.log.Error("loans end: the arbiter has not looked", "loans", len(l.all), "since", l.until)
		a.ending.Add(int64(len(l.all)))
		for _, x := range l.all {
			ending.Go(func() {
				defer a.ending.Add(-1)
				a.end(ctx, x)
			})
		}
	}
}

// end gives one slice back to serving.
func (a *Arbiter) end(ctx context.Context, x loan) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.opt.MoveTimeout)
	defer cancel()
	_, err := a.opt.Work.Preempt(ctx, x.job, x.slice)
	if err == nil && x.model != "" {
		err = a.opt.Serving.Bring(ctx, x.model, x.slice)
	}
	if err != nil {
		a.log.Error("loan not ended", "slice", x.slice.ID, "job", x.job, "error", err)
	}
}

// lend starts a job, unless the loans end meanwhile: the watch knows nothing of
// this one yet.
func (a *Arbiter) lend(ctx context.Context, job string, on []gpu.Slice) (lost time.Duration, err error) {
	if a.expired() {
		return 0, errExpired
	}
	if err := a.opt.Work.Start(ctx, job, on); err != nil || !a.expired() {
		return 0, err
	}
	for _, s := range on {
		l, err := a.opt.Work.Preempt(ctx, job, s)
		if lost += l; err != nil {
			return lost, fmt.Errorf("%w, and %s stays: %w", errExpired, job, err)
		}
	}
	return lost, errExpired
}
