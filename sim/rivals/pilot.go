package rivals

import (
	"math"
	"time"
)

// PilotOptions are the margins of the clairvoyant pilot.
type PilotOptions struct {
	Margin float64       // of the requirement
	Spare  int           // replicas over it
	Ahead  time.Duration // how far ahead what is kept must do: a wake and 4 s
	// Keep is how far ahead a replica must not be needed to be lent: below the time
	// that out and back cost, lending it would lose slice time.
	Keep time.Duration
	// Slow is how far ahead work that is slow to return its slices, or would lose
	// all it has done, must not be in the way: the value test for it.
	Slow time.Duration
}

// TunedPilot is what reaches most of those tried (tune_test.go).
var TunedPilot = PilotOptions{Margin: 1.12, Spare: 1, Ahead: 7 * time.Second, Keep: 30 * time.Second, Slow: 600 * time.Second}

// NewPilot makes a pilot with other margins.
func NewPilot(o PilotOptions) *Policy {
	return &Policy{rules: rules{preempt: true, lines: true}, every: time.Second, scaler: &pilot{PilotOptions: o}}
}

// leave is what it takes to get a slice back from work that saves first: 30 s of
// grace, a wake, and a look.
const leave = 40 * time.Second

// pilot reads the requirement of the seconds to come.
type pilot struct {
	PilotOptions
	tops [][4][]float32 // by model: the largest requirement within Ahead, Keep, Slow and leave of each second
}

func (p *pilot) want(now time.Duration, y *yard) {
	if p.tops == nil {
		for i := range y.fleets {
			need := y.v.Need(i)
			p.tops = append(p.tops, [4][]float32{ahead(need, p.Ahead), ahead(need, p.Keep), ahead(need, p.Slow), ahead(need, leave)})
		}
	}
	for i := range y.fleets {
		f := &y.fleets[i]
		second := min(int(now/time.Second), len(p.tops[i][0])-1)
		of := func(k int) int { return f.clamp(math.Ceil(p.Margin*float64(p.tops[i][k][second])) + float64(p.Spare)) }
		f.want = max(of(0), min(f.have(), of(1)))
		f.line, f.soon = of(2), of(3)
	}
}

// ahead is, for each second, the largest of the values from it on within d.
func ahead(need []float64, d time.Duration) []float32 {
	n := int(math.Ceil(d.Seconds()))
	top := make([]float32, len(need))
	var rising []int // candidates: indexes that rise, values that fall
	for i := len(need) - 1; i >= 0; i-- {
		for k := len(rising); k > 0 && need[rising[k-1]] <= need[i]; k-- {
			rising = rising[:k-1]
		}
		rising = append(rising, i)
		for rising[0] > i+n {
			rising = rising[1:]
		}
		top[i] = float32(need[rising[0]])
	}
	return top
}
