package binomial

// Student is the t within which, in both directions, a mean over df+1 values lies
// with the confidence, in standard errors.
func Student(df int, confidence float64) float64 {
	v := float64(df)
	lo, hi := 0.0, 1e4 // 64 with one degree of freedom at 99 %, less with more
	for hi-lo > 1e-9*hi {
		t := (lo + hi) / 2
		if beyond := betaBelow(v/(v+t*t), v/2, 0.5); beyond > 1-confidence {
			lo = t
		} else {
			hi = t
		}
	}
	return (lo + hi) / 2
}
