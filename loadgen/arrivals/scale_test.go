package arrivals

import (
	"math"
	"reflect"
	"testing"
	"time"
)

func TestScaledAndCycle(t *testing.T) {
	day := Process{Kind: Diurnal, Day: Day{Low: 1, High: 9, Period: time.Minute}}
	burst := Process{Kind: Burst, Rate: 20, Base: 4, On: time.Second, Off: 3 * time.Second}
	for _, c := range []struct {
		p     Process
		cycle time.Duration
		stays bool
	}{
		{Process{Kind: Constant, Rate: 3}, 0, true},
		{Process{Kind: Poisson, Rate: 3}, 0, true},
		{Process{Kind: Gamma, Rate: 3, CV: 2}, 0, true},
		{Process{Kind: Many, Rate: 3, Clients: Clients{N: 5}}, 0, true},
		{burst, 4 * time.Second, true},
		{day, time.Minute, true},
		{Process{Kind: Mix, Parts: []Process{day, burst}}, time.Minute, true},
		{Process{Kind: Ramp, Rate: 1, To: 5}, 0, false},
		{Process{Kind: Steps, Steps: []Step{{1, 40 * time.Second}, {6, 80 * time.Second}}}, 0, false},
		{Process{Kind: Mix, Parts: []Process{day, {Kind: Ramp, Rate: 1, To: 5}}}, 0, false},
	} {
		if err := c.p.Validate(); err != nil {
			t.Fatal(err)
		}
		before := c.p
		before.Steps, before.Parts = append([]Step(nil), c.p.Steps...), append([]Process(nil), c.p.Parts...)
		twice, err := c.p.Scaled(2.5)
		if err != nil {
			t.Errorf("%s: %v", c.p.Kind, err)
		}
		if !reflect.DeepEqual(before, c.p) {
			t.Errorf("%s: the original changed", c.p.Kind)
		}
		d := 2 * time.Minute
		if got, want := twice.expected(d), 2.5*c.p.expected(d); want == 0 || math.Abs(got-want) > 1e-9*want {
			t.Errorf("%s: %v arrivals are expected, want %v", c.p.Kind, got, want)
		}
		if cycle, stays := c.p.Cycle(); cycle != c.cycle || stays != c.stays {
			t.Errorf("%s: cycle %v, stays %v, want %v, %v", c.p.Kind, cycle, stays, c.cycle, c.stays)
		}
	}
	trace := Process{Kind: Replay, Trace: Trace{File: "x", Format: AzureFormat}}
	for _, p := range []Process{trace, {Kind: Mix, Parts: []Process{trace}}} {
		if _, err := p.Scaled(2); err == nil {
			t.Errorf("%s: a recording was scaled", p.Kind)
		}
		if _, stays := p.Cycle(); stays {
			t.Errorf("%s: a recording stays", p.Kind)
		}
	}
}
