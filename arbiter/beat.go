package arbiter

import "time"

// beat is what is due once a period, in a core that is asked when its driver comes
// round. It keeps to the times at which the periods end: counted from the look at
// which it was last found due, one that comes a millisecond early would put it off
// to the next, and a plan of every second live would come every 1.25 s.
type beat struct{ last time.Time }

// longestBeat is after how many periods without a look, or of a clock that was set,
// it begins anew.
const longestBeat = 60

// due is how many periods have ended since it was last asked; the first time one.
func (b *beat) due(now time.Time, every time.Duration) int {
	n := int(now.Sub(b.last) / every)
	if n > longestBeat {
		b.last = now
		return 1
	}
	b.last = b.last.Add(time.Duration(n) * every)
	return n
}
