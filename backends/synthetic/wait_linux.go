package synthetic

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// lastStretch is how much of a wait the kernel's own sleep takes. It cannot be
// cancelled, so it is short; it is longer than the runtime's timers are late.
const lastStretch = 2 * time.Millisecond

// exactly waits until a time with the accuracy of nanosleep (tens of
// microseconds on an idle machine). It does not spin: on two busy cores that
// would take time from the very engines and clients being measured.
func exactly(ctx context.Context, until time.Time) error {
	if err := timer(ctx, until.Add(-lastStretch)); err != nil {
		return err
	}
	for d := time.Until(until); d > 0; d = time.Until(until) {
		ts := unix.NsecToTimespec(d.Nanoseconds())
		// A signal (the runtime preempts by signals) ends it early: sleep on.
		if err := unix.Nanosleep(&ts, nil); err != nil && err != unix.EINTR {
			return fmt.Errorf("nanosleep: %w", err)
		}
	}
	return nil
}
