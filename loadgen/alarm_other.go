//go:build !linux

package loadgen

import (
	"context"
	"errors"
	"time"
)

// fineTimer exists on Linux only.
type fineTimer struct{}

func newFineTimer(context.Context) (*fineTimer, error) { return nil, errors.ErrUnsupported }
func (*fineTimer) nudge()                              {}
func (*fineTimer) close()                              {}
func (*fineTimer) wait(time.Duration, <-chan struct{}) error {
	return errors.ErrUnsupported
}
