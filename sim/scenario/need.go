package scenario

import "time"

// envelope are the windows of the arrival envelope, in seconds.
var envelope = []int{1, 2, 3, 5, 10, 20, 40}

// Need is how many replicas the arrivals up to the end of each second of the
// horizon call for, before rounding: the larger of
//
//	sequences in flight / (0.95 x slots)          and, over windows L,
//	prefill seconds that arrived in L / (L + 0.8 x ttft)
//
// (merged calls: knee work instead of prefill, and no sequences). It is for the
// clairvoyant pilot and for learning from histories of other seeds.
//
// The rules do not say how long a sequence is in flight. It is taken to be what
// it stays in a full replica: slots x its work in the form where decoding fills
// the replica, which is Little's law for a replica with all slots in use. A
// shorter estimate (its steps alone, without the prefills of its neighbours)
// would size a fleet at which the queue grows, and a longer one would count a
// queue that is not there. The prototype took the true output lengths of the
// requests then in flight and so depended on what its own policy had let queue;
// this series depends on the arrivals alone.
func Need(t *Traffic, horizon time.Duration) []float64 {
	need, _ := Demand(t, horizon)
	return need
}

// Demand is the need and, beside it, the work that arrived in each second, in
// replica-seconds as the need counts it: a history to learn settings from.
func Demand(t *Traffic, horizon time.Duration) (need, arrived []float64) {
	s := t.Model.Service
	n := int((horizon + time.Second - 1) / time.Second)
	work := make([]float64, n)   // that arrived in each second
	flight := make([]float64, n) // change of the sequences in flight
	for _, a := range t.Arrivals {
		i := int(a.At / time.Second)
		if i >= n {
			break
		}
		if s.Merged() {
			work[i] += s.call(a.In)
			continue
		}
		work[i] += s.prefill(a.In)
		flight[i]++
		if end := int((a.At.Seconds()) + float64(s.Slots)*s.decode(a.In, a.Out)); end < n {
			flight[end]--
		}
	}
	slack := 0.8 * float64(t.Model.SLO.TTFTS)
	sums := make([]float64, n+1)
	need = make([]float64, n)
	in := 0.0
	for i := range need {
		sums[i+1] = sums[i] + work[i]
		if in += flight[i]; s.Slots > 0 {
			need[i] = in / (0.95 * float64(s.Slots))
		}
		for _, l := range envelope {
			need[i] = max(need[i], (sums[i+1]-sums[max(0, i+1-l)])/(float64(l)+slack))
		}
	}
	return need, work
}
