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
