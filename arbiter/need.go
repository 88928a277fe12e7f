package arbiter

// windows of the arrival envelope, in seconds.
var windows = []int{1, 2, 3, 5, 10, 20, 40}

// level is how many replicas the arrivals up to now call for, before rounding:
// two resources bind, so it is the larger of
//
//	sequences in flight / (0.95 × slots)          and
//	max over windows L of work in L / (L + 0.8 × slack)
//
// with the work of merged calls divided by rho, since they wait at a batch's end.
func (p Policy) level(m Model) float64 {
	need := 0.0
	if m.Slots > 0 {
		need = m.InFlight / (0.95 * float64(m.Slots))
	}
	rho := 1.0
	if m.Slots == 0 {
		rho = p.Rho
	}
	work, n := 0.0, len(m.Work)
	next := 0
	for i := 1; i <= n && next < len(windows); i++ {
		work += m.Work[n-i]
		if i == windows[next] {
			need = max(need, work/rho/(float64(i)+0.8*m.Target.Seconds()))
			next++
		}
	}
	return need
}
