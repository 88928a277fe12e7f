package search

import "math"

// normalTail is P(Z > z) of the standard normal law.
func normalTail(z float64) float64 { return math.Erfc(z/math.Sqrt2) / 2 }

// normalAbove is the z with P(Z > z) = p.
func normalAbove(p float64) float64 { return math.Sqrt2 * math.Erfcinv(2*p) }

// studentZ is the normal deviate that is as unlikely as Student's t with so many
// degrees of freedom (Wallace 1959, good to about 1 % of z from 3 on); below 0
// there are none to lose, and it is t itself.
func studentZ(t float64, dof int) float64 {
	if dof < 0 {
		return t
	}
	if dof == 0 {
		return 0
	}
	n := float64(dof)
	return math.Copysign((8*n+1)/(8*n+3)*math.Sqrt(n*math.Log1p(t*t/n)), t)
}

// studentT is the inverse of studentZ.
func studentT(z float64, dof int) float64 {
	if dof < 0 {
		return z
	}
	n := float64(max(dof, 1))
	c := z * (8*n + 3) / (8*n + 1)
	return math.Copysign(math.Sqrt(n*math.Expm1(c*c/n)), z)
}

// binomialAtLeast is P(X >= k) for n draws of probability p. k and n need not be
// whole numbers, so that counts can be shrunk by their variance inflation.
func binomialAtLeast(k, n, p float64) float64 {
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

// wilson is the interval of a share, good of n, at z normal deviates (Wilson
// 1927). good and n need not be whole.
func wilson(good, n, z float64) (low, high float64) {
	if n <= 0 {
		return 0, 1
	}
	p, zz := good/n, z*z
	mid := (p + zz/(2*n)) / (1 + zz/n)
	half := z / (1 + zz/n) * math.Sqrt(p*(1-p)/n+zz/(4*n*n))
	return max(mid-half, 0), min(mid+half, 1)
}
