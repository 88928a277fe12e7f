package loadgen

import (
	"math"
	"testing"
	"time"
)

// Every duration is in the first bucket whose bound it does not exceed.
func TestCoarsely(t *testing.T) {
	bounds := CoarseBounds()
	for _, us := range []int64{0, 1, 62, 63, 125, 126, 250, 251, 1000, 1001, 32_768_000, 65_536_000, 65_536_001, math.MaxInt64 / 4} {
		want := 0
		for want < len(bounds) && float64(us)/1e6 > bounds[want] {
			want++
		}
		if got := coarsely(us); got != want {
			t.Errorf("%d us is in bucket %d, want %d", us, got, want)
		}
	}
}

func TestCoarseOfSnapshots(t *testing.T) {
	var d dist
	d.one(time.Millisecond, false)
	d.add(3*time.Millisecond, 2)
	c := d.quantiles(3, false).Coarse
	if c == nil || c.Counts[4] != 1 || c.Counts[6] != 2 || math.Abs(c.Sum-0.007) > 1e-9 {
		t.Errorf("coarse is %+v, want one value up to 1 ms, two up to 4 ms, 7 ms together", c)
	}
	if d.quantiles(3, true).Coarse != nil {
		t.Error("a report has coarse counts beside its whole distribution")
	}
}
