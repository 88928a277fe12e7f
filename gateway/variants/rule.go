package variants

import (
	"fmt"
	"math"
	"strings"
)

// Rule says when a variant takes over by itself, and when it goes. The zero Rule
// leaves both to people.
type Rule struct {
	Promote *PromoteIf `json:"promote_if,omitempty"`
	Drop    *DropIf    `json:"drop_if,omitempty"`
}

// PromoteIf is met when all that it names holds.
type PromoteIf struct {
	Samples     int      `json:"samples"`                // requests that each side must have answered
	Compared    int      `json:"compared,omitempty"`     // answers that must have been compared, if agreement is asked for; 0 = 20
	Agreement   *float64 `json:"agreement,omitempty"`    // at least
	P99Ratio    *float64 `json:"p99_ratio,omitempty"`    // of the variant's over the model's, at most
	QualityDrop *float64 `json:"quality_drop,omitempty"` // share, at most
}

// DropIf is met when anything that it names holds.
type DropIf struct {
	Samples   int      `json:"samples"`              // requests of the variant, answered or failed, before anything is judged
	ErrorRate *float64 `json:"error_rate,omitempty"` // above
	P99Ratio  *float64 `json:"p99_ratio,omitempty"`  // above
	Agreement *float64 `json:"agreement,omitempty"`  // below
}

// standardCompared is how many answers are compared before agreement is judged.
const standardCompared = 20

// Validate says what is wrong with a rule.
func (r Rule) Validate() error {
	least := func(of string, n int) error {
		if n < 1 || n > keptRequests {
			return fmt.Errorf("%s.samples is %d, want 1 to %d", of, n, keptRequests)
		}
		return nil
	}
	within := func(name string, v *float64, low, high float64) error {
		if v != nil && !(*v >= low && *v <= high) {
			return fmt.Errorf("%s is %v, want %v to %v", name, *v, low, high)
		}
		return nil
	}
	var errs []error
	if p := r.Promote; p != nil {
		if p.Compared < 0 || p.Compared > keptAnswers {
			errs = append(errs, fmt.Errorf("promote_if.compared is %d, want 0 (%d) to %d", p.Compared, standardCompared, keptAnswers))
		}
		errs = append(errs, least("promote_if", p.Samples), within("promote_if.agreement", p.Agreement, -1, 1),
			within("promote_if.p99_ratio", p.P99Ratio, 0, 1000), within("promote_if.quality_drop", p.QualityDrop, -10, 10))
	}
	if d := r.Drop; d != nil {
		if d.ErrorRate == nil && d.P99Ratio == nil && d.Agreement == nil {
			errs = append(errs, fmt.Errorf("drop_if names no reason, want error_rate, p99_ratio or agreement"))
		}
		errs = append(errs, least("drop_if", d.Samples), within("drop_if.error_rate", d.ErrorRate, 0, 1),
			within("drop_if.p99_ratio", d.P99Ratio, 0, 1000), within("drop_if.agreement", d.Agreement, -1, 1))
	}
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// Action is what a verdict calls for.
type Action string

// The actions.
const (
	Wait    Action = "wait"
	Promote Action = "promote"
	Drop    Action = "drop"
)

// Verdict is what the numbers call for, and each of them beside its limit.
type Verdict struct {
	Action Action `json:"action"`
	Terms  []Term `json:"terms"`
}

// Term is one condition of a rule.
type Term struct {
	For   Action  `json:"for"` // what it speaks for once it is met
	What  string  `json:"what"`
	Known bool    `json:"known"` // false: too little is known to say
	Value float64 `json:"value"`
	Sign  string  `json:"sign"` // of what is met: value SIGN limit
	Limit float64 `json:"limit"`
	Met   bool    `json:"met"`
}

// String says it as people would.
func (t Term) String() string {
	if !t.Known {
		return fmt.Sprintf("%s not known yet, want %s %.4g", t.What, t.Sign, t.Limit)
	}
	mark := "not "
	if t.Met {
		mark = ""
	}
	return fmt.Sprintf("%s %.4g (%s%s %.4g)", t.What, t.Value, mark, t.Sign, t.Limit)
}

// String is the verdict with its numbers: of one that waits all, else those that
// it rests on.
func (v Verdict) String() string {
	var parts []string
	for _, t := range v.Terms {
		if v.Action == Wait || t.For == v.Action && t.Met {
			parts = append(parts, t.String())
		}
	}
	return strings.Join(parts, ", ")
}

// Judge holds a comparison against a rule. Who is to be dropped is, whatever
// speaks for it.
func Judge(r Rule, c Comparison) Verdict {
	v := Verdict{Action: Wait, Terms: []Term{}}
	if d := r.Drop; d != nil && v.drop(d, c) {
		v.Action = Drop
	}
	if p := r.Promote; p != nil && v.promote(p, c) && v.Action == Wait {
		v.Action = Promote
	}
	return v
}

// add notes a term and reports whether it is met.
func (v *Verdict) add(t Term) bool {
	switch {
	case !t.Known || math.IsNaN(t.Value):
		t.Value, t.Known = 0, false
	case t.Sign == ">=":
		t.Met = t.Value >= t.Limit
	case t.Sign == "<=":
		t.Met = t.Value <= t.Limit
	case t.Sign == ">":
		t.Met = t.Value > t.Limit
	case t.Sign == "<":
		t.Met = t.Value < t.Limit
	}
	v.Terms = append(v.Terms, t)
	return t.Met
}

func (v *Verdict) drop(d *DropIf, c Comparison) (met bool) {
	enough := c.Variant.Requests+c.Variant.Failed >= d.Samples
	both := c.Variant.Requests >= d.Samples && c.Base.Requests >= d.Samples
	if d.ErrorRate != nil {
		met = v.add(Term{For: Drop, What: "error rate", Known: enough, Value: c.Variant.Errors(), Sign: ">", Limit: *d.ErrorRate})
	}
	if d.P99Ratio != nil {
		met = v.add(Term{For: Drop, What: "p99 ratio", Known: both && c.Base.P99 > 0, Value: c.Variant.P99 / c.Base.P99, Sign: ">", Limit: *d.P99Ratio}) || met
	}
	if d.Agreement != nil {
		a := c.Agreement
		met = v.add(Term{For: Drop, What: "agreement", Known: a.Samples >= standardCompared, Value: a.Mean, Sign: "<", Limit: *d.Agreement}) || met
	}
	return met
}

func (v *Verdict) promote(p *PromoteIf, c Comparison) (met bool) {
	samples := min(c.Base.Requests, c.Variant.Requests)
	met = v.add(Term{For: Promote, What: "samples of each side", Known: true, Value: float64(samples), Sign: ">=", Limit: float64(p.Samples)})
	if p.P99Ratio != nil {
		met = v.add(Term{For: Promote, What: "p99 ratio", Known: samples >= p.Samples && c.Base.P99 > 0, Value: c.Variant.P99 / c.Base.P99, Sign: "<=", Limit: *p.P99Ratio}) && met
	}
	if p.Agreement != nil {
		want := p.Compared
		if want == 0 {
			want = standardCompared
		}
		met = v.add(Term{For: Promote, What: "agreement", Known: c.Agreement.Samples >= want, Value: c.Agreement.Mean, Sign: ">=", Limit: *p.Agreement}) && met
	}
	if p.QualityDrop != nil {
		t := Term{For: Promote, What: "quality drop", Sign: "<=", Limit: *p.QualityDrop}
		if c.Quality != nil {
			t.Known, t.Value = true, c.Quality.Drop()
		}
		met = v.add(t) && met
	}
	return met
}
