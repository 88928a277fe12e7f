package loadgen

import (
	"context"
	"errors"
	"testing"
	"time"
)

// Both timers wake neither early nor not at all, and end with their context.
func TestAlarm(t *testing.T) {
	for _, coarse := range []bool{false, true} {
		ctx, cancel := context.WithCancelCause(t.Context())
		a := newAlarm(ctx, !coarse)
		for range 10 {
			until := time.Now().Add(2 * msec)
			if err := a.sleep(until); err != nil {
				t.Fatal(err)
			}
			if early := time.Until(until); early > 0 {
				t.Errorf("coarse %v: woke %v early", coarse, early)
			}
		}
		if err := a.sleep(time.Now().Add(-time.Hour)); err != nil {
			t.Error(err)
		}
		why := errors.New("enough")
		time.AfterFunc(5*msec, func() { cancel(why) })
		if err := a.sleep(time.Now().Add(time.Minute)); err != why {
			t.Errorf("coarse %v: error %v, want the cause %v", coarse, err, why)
		}
		if err := a.sleep(time.Now()); err != why {
			t.Errorf("coarse %v: error %v after the end, want the cause %v", coarse, err, why)
		}
		a.close()
	}
}
