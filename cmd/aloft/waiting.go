package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"
)

// The exit codes of commands that wait for a job or a batch (docs/jobs.md). A
// command that could not do what was asked has exitError, as everywhere.
const (
	exitFailed    exitCode = 1
	exitCancelled exitCode = 3
	exitExpired   exitCode = 4
	exitTimeout   exitCode = 124 // as of timeout(1)
)

// waiting are the flags of commands that wait.
type waiting struct {
	Timeout time.Duration `help:"Give up after so long, with exit code 124; default: never." placeholder:"DURATION"`
	Live    string        `help:"The progress, on standard error: auto redraws a terminal, plain writes a line at times, none." default:"auto" enum:"auto,plain,none"`
}

var errWaited = errors.New("it has not ended within --timeout")

// bounded ends ctx when the timeout is over.
func (w waiting) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if w.Timeout <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, w.Timeout, coded(exitTimeout, fmt.Errorf("%w of %v; it goes on", errWaited, w.Timeout)))
}

// until shows progress until see says that what is at path has ended, and returns
// the last answer.
func (w waiting) until(ctx context.Context, api *client, path string, see func(json.RawMessage) (ended bool, show func() reached, err error)) (last json.RawMessage, err error) {
	ctx, stop := w.bounded(ctx)
	defer stop()
	view := newProgress(w.Live, os.Stderr, os.Getenv)
	defer view.close()
	err = api.poll(ctx, path, func(now json.RawMessage) (bool, error) {
		ended, show, err := see(now)
		if err == nil {
			last = now
			view.draw(func(time.Duration) reached { return show() })
		}
		return ended, err
	})
	return last, err
}

const (
	pollEvery = 500 * time.Millisecond
	// outageMost is how long a server may be away, as it is over a restart, before
	// a wait gives up.
	outageMost = time.Minute
)

// poll asks until done says so. ctx's cause is its error.
func (c *client) poll(ctx context.Context, path string, done func(json.RawMessage) (bool, error)) error {
	var last time.Time // an answer came
	for {
		var raw json.RawMessage
		err := c.call(ctx, http.MethodGet, path, nil, &raw)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		over := false
		if err == nil {
			last = time.Now()
			over, err = done(raw)
		} else if passing(err) && time.Since(last) < outageMost {
			err = nil
		}
		if err != nil || over {
			return err
		}
		select {
		case <-time.After(pollEvery):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// passing reports whether an error may be gone at the next try.
func passing(err error) bool {
	var answer *apiError
	if errors.As(err, &answer) {
		return answer.status == http.StatusTooManyRequests || answer.status >= 500
	}
	return true
}

// printID prints what is left to know of something that was just changed.
func printID(raw []byte) error {
	var v struct{ ID, Status, State string }
	if err := json.Unmarshal(raw, &v); err != nil {
		return err
	}
	fmt.Println(v.ID, cmp.Or(v.Status, v.State))
	return nil
}
