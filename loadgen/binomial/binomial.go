// Package binomial is what can be said of a share: how likely it is to see k or
// more of n, the interval of a share that was seen, and that of a mean. It is pure.
package binomial

import "math"

// AtLeast is P(X >= k) for n draws of probability p. k and n need not be
// whole numbers, so that counts can be shrunk by their variance inflation.
func AtLeast(k, n, p float64) float64 {
	if k <= 0 {
		return 1
	}
	if k > n {
		return 0
	}
	return betaBelow(p, k, n-k+1)
}

// betaBelow is the regularised incomplete beta function I_x(a, b), by the
// continued fraction of DLMF 8.17.22 in the modified form of Lentz.
func betaBelow(x, a, b float64) float64 {
	if x <= 0 || x >= 1 {
		return min(max(x, 0), 1)
	}
	if x > (a+1)/(a+b+2) { // where the fraction converges slowly
		return 1 - betaBelow(1-x, b, a)
	}
	gamma := func(v float64) float64 { g, _ := math.Lgamma(v); return g }
	front := math.Exp(gamma(a+b)-gamma(a)-gamma(b)+a*math.Log(x)+b*math.Log1p(-x)) / a
	const tiny, enough = 1e-300, 1e-12
	off0 := func(v float64) float64 {
		if math.Abs(v) < tiny {
			return tiny
		}
		return v
	}
	c, d := 1.0, 1/off0(1-(a+b)*x/(a+1))
	f := d
	for i := 1; i <= 10_000; i++ { // it takes about the root of the larger of a and b
		m := float64(i)
		for _, t := range [2]float64{
			m * (b - m) * x / ((a + 2*m - 1) * (a + 2*m)),
			-(a + m) * (a + b + m) * x / ((a + 2*m) * (a + 2*m + 1)),
		} {
			d, c = 1/off0(1+t*d), off0(1+t/c)
			f *= c * d
		}
		if math.Abs(c*d-1) < enough {
			break
		}
	}
	return min(front*f, 1)
}

// Wilson is the interval of a share, good of n, at z normal deviates (E. B. Wilson,
// 1927): unlike the textbook one it stays right near 0 and 1, where attainment is.
// good and n need not be whole numbers.
func Wilson(good, n, z float64) (low, high float64) {
	if n <= 0 {
		return 0, 1
	}
	p, zz := good/n, z*z
	mid := (p + zz/(2*n)) / (1 + zz/n)
	half := z / (1 + zz/n) * math.Sqrt(p*(1-p)/n+zz/(4*n*n))
	low, high = max(mid-half, 0), min(mid+half, 1)
	if good <= 0 { // rounding must not keep an end off the bound that it has
		low = 0
	}
	if good >= n {
		high = 1
	}
	return low, high
}
