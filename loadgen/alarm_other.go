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
func (*fineTimer) wait(time.Duration) error            { return errors.ErrUnsupported }
func (*fineTimer) close()                              {}
