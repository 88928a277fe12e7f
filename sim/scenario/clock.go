package scenario

import "math"

// even is a time in which the rate of the traffic is even: the integral of the
// day curve, 1 - amplitude x cos(2π(t - trough)/period), from 0 to t. Seconds.
func (d Diurnal) even(t float64) float64 {
	if d.Amplitude == 0 {
		return t
	}
	k := 2 * math.Pi / (float64(d.PeriodH) * 3600)
	trough := float64(d.TroughAtH) * 3600
	return t - d.Amplitude/k*(math.Sin(k*(t-trough))+math.Sin(k*trough))
}

// rate of the traffic at t, over its mean.
func (d Diurnal) rate(t float64) float64 {
	if d.Amplitude == 0 {
		return 1
	}
	return 1 - d.Amplitude*math.Cos(2*math.Pi*(t/3600-float64(d.TroughAtH))/float64(d.PeriodH))
}

// at is the inverse of even: when so much even time has passed. near is a time
// not far from it. The rate is at least 1 - amplitude, so that Newton's steps
// are safe; from one request to the next they are one or two.
func (d Diurnal) at(even, near float64) float64 {
	if d.Amplitude == 0 {
		return even
	}
	t := near
	for range 60 {
		step := (even - d.even(t)) / d.rate(t)
		// Far away the rate here says nothing about there: an eighth of a period at a time.
		most := float64(d.PeriodH) * 3600 / 8
		t += min(max(step, -most), most)
		if math.Abs(step) < 1e-9 {
			break
		}
	}
	return t
}
