package pool

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"aloft/gpu"
)

// F12: an engine starts when its slice has the memory, not before, and not for ever.
func TestF12LaunchWaitsForMeasuredMemory(t *testing.T) {
	const need = 8 << 30
	for _, c := range []struct {
		name   string
		back   time.Duration // when the memory is back; 0 = it was never gone
		blind  bool          // nobody can measure
		after  time.Duration
		want   State
		reason string
	}{
		{name: "free", after: 10 * time.Millisecond, want: Ready},
		{name: "not back yet", back: 3 * time.Second, after: 2900 * time.Millisecond, want: Loading},
		{name: "back", back: 3 * time.Second, after: 3200 * time.Millisecond, want: Ready},
		{name: "not back within the limit", back: time.Minute, after: 10100 * time.Millisecond, want: Failed,
			reason: "slice g0/s0 has 1000 bytes free, m needs 8589934592: waited 10s"},
		{name: "back after some tries", back: 15 * time.Second, after: 16 * time.Second, want: Ready},
		{name: "simulated", blind: true, after: 10 * time.Millisecond, want: Ready},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &script{}
				w := build(t, s)
				began := time.Now()
				w.opt.Free = func(gpu.Slice) (int64, bool) {
					if time.Since(began) < c.back {
						return 1000, true
					}
					return need, !c.blind
				}
				must(t, w.SetModels([]Model{{Name: "m", Slots: 1, Bytes: need}}))
				_, err := w.Start("m", slice, "")
				must(t, err)
				time.Sleep(c.after)
				synctest.Wait()
				r := w.Replicas()[0]
				if r.State != c.want || !strings.Contains(r.Error, c.reason) {
					t.Errorf("after %v: %s (%s), want %s (%s)", c.after, r.State, r.Error, c.want, c.reason)
				}
				if (len(s.launched) > 0) != (c.want == Ready) {
					t.Errorf("%d engines launched", len(s.launched))
				}
				must(t, w.Close(t.Context()))
			})
		})
	}
}

// What waits for memory is stopped at once; and a successor that does not fit
// beside the old replica takes its place without a wait.
func TestF12WaitForMemoryEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{load: time.Second}
		w := build(t, s)
		var free atomic.Int64
		w.opt.Free = func(gpu.Slice) (int64, bool) { return free.Load(), true }
		must(t, w.SetModels([]Model{{Name: "m", Slots: 1, Bytes: 8}}))
		id, err := w.Start("m", slice, "")
		must(t, err)
		time.Sleep(time.Second)
		must(t, w.Stop(id))
		synctest.Wait()
		if got := w.ids(); got != "" || len(s.launched) != 0 {
			t.Fatalf("stopped while it waited: %q, %d launched", got, len(s.launched))
		}
		free.Store(8)
		_, err = w.Start("m", slice, "")
		must(t, err)
		time.Sleep(1100 * time.Millisecond)
		free.Store(0)
		must(t, w.SetModels([]Model{{Name: "m", Slots: 2, Bytes: 8}}))
		synctest.Wait()
		if got := w.ids(); got != "m-4 loading" || w.published() != 0 {
			t.Fatalf("no room beside the old replica: %q, want the new one in its place, waiting", got)
		}
		free.Store(8)
		time.Sleep(1200 * time.Millisecond)
		if got := w.ids(); got != "m-4 ready" {
			t.Errorf("memory is back: %q, want m-4 ready", got)
		}
		must(t, w.Close(t.Context()))
	})
}
