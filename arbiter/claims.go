package arbiter

import (
	"slices"
	"time"
)

// timeouts counts, by claimant, how often its claim has timed out in a row.
type timeouts map[claimant]int

// claimant is a job or a model.
type claimant struct{ job, model string }

func (c Claim) by() claimant { return claimant{c.Job, c.Model} }

// Resting reports whether the claim holds nothing: it has timed out, and its
// claimant may not claim anew before Until.
func (c Claim) Resting() bool { return len(c.Slices) == 0 && len(c.GPUs) == 0 }

// longestRest bounds the back-off of a claimant whose claims time out.
const longestRest = 10 * time.Minute

// expire lets the capacity of claims that have timed out go. The claimant then
// backs off, twice as long each time, so that two gangs that can never both
// gather do not keep capacity from everybody in turn.
func (t timeouts) expire(claims []Claim, now time.Time) []Claim {
	kept := claims[:0]
	for _, c := range claims {
		switch {
		case now.Before(c.Until):
		case c.Resting():
			continue
		default:
			t[c.by()]++
			n := t[c.by()]
			rest := min(longestRest, c.Until.Sub(c.Since)<<min(n-1, 10))
			c = Claim{Job: c.Job, Model: c.Model, Since: now, Until: now.Add(rest), Tries: n}
		}
		kept = append(kept, c)
	}
	return kept
}

// keep makes the claims of a plan those that last. A claim that is made again in
// every plan keeps its first timeout; one of a claimant that backs off is refused.
func (t timeouts) keep(old, want []Claim) []Claim {
	var out []Claim
	for _, c := range old {
		i := slices.IndexFunc(want, func(w Claim) bool { return w.by() == c.by() })
		switch {
		case c.Resting():
			out = append(out, c)
		case i < 0: // met, or given up
			delete(t, c.by())
		default:
			c.Slices, c.GPUs, c.Cut = want[i].Slices, want[i].GPUs, want[i].Cut
			out = append(out, c)
		}
	}
	for _, w := range want {
		if !w.Resting() && !slices.ContainsFunc(old, func(c Claim) bool { return w.by() == c.by() }) {
			w.Tries = t[w.by()]
			out = append(out, w)
		}
	}
	return out
}
