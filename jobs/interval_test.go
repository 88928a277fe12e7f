package jobs

import (
	"testing"
	"time"
)

// By hand, with x = δ/2M:
//
//	δ 1 s, M 200 s:    √400 = 20;  x = 1/400, √x = 0.05;  20·(1 + 0.0166667 + 0.0002778) − 1 = 19.338889
//	δ 8 s, M 100 s:    √1600 = 40; x = 0.04, √x = 0.2;    40·(1 + 0.0666667 + 0.0044444) − 8 = 34.844444
//	δ 50 s, M 100 s:   √10000 = 100; x = 0.25, √x = 0.5;  100·(1 + 0.1666667 + 0.0277778) − 50 = 69.444444
//	δ 0.02 s, M 3600 s: √144 = 12; x = 1/360000, √x = 1/600; 12·(1 + 0.00055556 + 0.00000031) − 0.02 = 11.986670
func TestCheckpointInterval(t *testing.T) {
	s := func(f float64) time.Duration { return time.Duration(f * float64(time.Second)) }
	for _, c := range []struct{ cost, mtbp, want float64 }{
		{1, 200, 19.338889}, {8, 100, 34.844444}, {50, 100, 69.444444}, {0.02, 3600, 11.986670},
		{200, 100, 100}, {1000, 100, 100}, // saving takes as long as it lasts
		{0, 100, 0}, {1, 0, 0}, {-1, 100, 0}, // not known
	} {
		if got := CheckpointInterval(s(c.cost), s(c.mtbp)); got.Round(time.Microsecond) != s(c.want) {
			t.Errorf("saving takes %g s, stopped once in %g s: %v, want %v", c.cost, c.mtbp, got, s(c.want))
		}
	}
}

func TestAdvice(t *testing.T) {
	for _, c := range []struct{ cost, mtbp, want time.Duration }{
		{time.Microsecond, time.Second, time.Second}, {time.Minute, 1000 * time.Hour, time.Hour}, {8 * time.Second, 100 * time.Second, 34844444444},
	} {
		if got := advice(c.cost, c.mtbp); got != c.want {
			t.Errorf("advice(%v, %v) = %v, want %v", c.cost, c.mtbp, got, c.want)
		}
	}
	for _, c := range []struct {
		before, ran time.Duration
		stops       int
		want        time.Duration
	}{
		{30 * time.Minute, 0, 0, 30 * time.Minute}, {30 * time.Minute, 90 * time.Minute, 3, 30 * time.Minute},
		{30 * time.Minute, 10 * time.Minute, 3, 10 * time.Minute}, {time.Hour, -1, -1, time.Hour},
	} {
		if got := meanTime(c.before, c.ran, c.stops); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
	if got := smooth(0, time.Second); got != time.Second {
		t.Errorf("the first measurement is %v", got)
	}
	if got := smooth(4*time.Second, 8*time.Second); got != 5*time.Second {
		t.Errorf("the second is %v", got)
	}
}
