package arbiter

import (
	"cmp"
	"math"
)

// lines works out what a model needs now and within the two horizons. The fast
// line is what stays ready: the rise until work that stops at once has given its
// slice back. The slow line is how far work that must save first may borrow.
func (d *decision) lines(m *Model) serving {
	lv := d.level(*m)
	need := m.replicas(lv)
	if d.Risk == Strict { // replicas that come and go beyond the share cost single requests their luck
		need = m.cover(lv)
	}
	c := serving{Model: m, Numbers: Numbers{Level: lv, Need: need, Latency: m.P99, Within: m.Within, Quantile: m.Quantile, Hold: m.Law.Hold}}
	scale := m.Law.scale(lv)
	fast, slow := m.HeldFast, m.HeldSlow
	if !m.Law.Learned() || fast == 0 {
		// A law's lines move once a second, as it was learned: levels between two
		// seconds are noisier, and only add what is there.
		fast, slow = max(fast, lv+m.RiseFast*scale), max(slow, lv+m.RiseSlow*scale)
	}
	c.Fast = max(c.Need, m.cover(fast))
	c.Slow = max(c.Fast, m.cover(slow))
	if d.Mode == ModeStatic {
		c.Fast = max(c.Fast, m.share())
		c.Slow = max(c.Fast, c.Slow)
	}
	if h, ok := m.Headroom(d.MinSamples); ok {
		c.Room = &h
	}
	return c
}

// share is how many replicas the model has under a static split.
func (m *Model) share() int { return max(m.Min, min(cmp.Or(m.Static, m.Max), m.Max)) }

// cover is how many replicas stay ready for a level that may come: its share at
// most. A level that is there may get all that is configured.
func (m *Model) cover(level float64) int { return min(m.replicas(level), m.share()) }

// replicas rounds a level up, within what is configured.
func (m *Model) replicas(level float64) int {
	return min(max(int(math.Ceil(level-1e-9)), m.Min), m.Max)
}

// missed asks for one more replica where the target is being missed: the envelope
// knows demand and a fitted rate; a missed target knows better. One at a time,
// since headroom tells what was, not what is; and only while the replicas that
// are there are at least half in use, since more of them mend nothing that is over.
func (d *decision) missed(c *serving) {
	if c.Room == nil || *c.Room >= d.ReclaimBelow || c.coming || !c.Traffic() || c.Level < 0.5*float64(c.Have) {
		return
	}
	c.Fast = max(c.Fast, c.cover(float64(c.Have+1)))
	c.Slow = max(c.Slow, c.Fast)
}
