package arbiter

import "time"

// Worth is what a loan is weighed by, in slice time.
type Worth struct {
	Idle    time.Duration // expected until the slice is needed again
	Rest    time.Duration // of the job; 0 = unknown
	Chance  float64       // that the job is stopped before it ends
	Stop    time.Duration // what that costs
	OutBack time.Duration // for the replica to go out and to come back, and the job to begin
}

// Value is what the loan is expected to bring: the job works as long as the slice
// stays idle or its rest takes.
func (w Worth) Value() time.Duration {
	gain := w.Idle
	if w.Rest > 0 {
		gain = min(gain, w.Rest)
	}
	return gain - time.Duration(w.Chance*float64(w.Stop)) - w.OutBack
}
