package loadgen

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Assert is one demand on a report, such as chat/steady.ttft_p99<800ms.
type Assert struct {
	Workload, Phase string // "" = each
	Metric          string
	Op              string  // < <= > >= == !=
	Value           float64 // milliseconds, a share of 1, or a second
	text            string
	measure         measure
}

// operators, the longer ones first: "<=" begins with "<".
var operators = []string{"<=", ">=", "==", "!=", "<", ">"}

// ParseAsserts reads demands joined by commas:
//
//	[workload[/phase].]metric OP value
//
// A metric is attainment, late, shed or failed (shares of the offered: 0.99 or
// 99%), goodput, good_tokens, achieved or retries (a second: 50 or 50/s), or a
// distribution and a quantile, such as ttft_p99: one of Metrics, and mean, p50,
// p90, p95, p99, p999 or max (a time with its unit: 800ms, 1.5s). Without a
// workload it is demanded of each phase of each.
func ParseAsserts(text string) ([]Assert, error) {
	var out []Assert
	for i, term := range strings.Split(text, ",") {
		a, err := parseAssert(strings.TrimSpace(term))
		if err != nil {
			return nil, fmt.Errorf("loadgen: assert %d, %q: %w", i+1, strings.TrimSpace(term), err)
		}
		out = append(out, a)
	}
	return out, nil
}

func parseAssert(text string) (Assert, error) {
	out := Assert{text: text}
	at := strings.IndexAny(text, "<>=!")
	if at < 0 {
		return out, fmt.Errorf("no operator after the metric, want one of %s", strings.Join(operators, " "))
	}
	left, right := strings.TrimSpace(text[:at]), text[at:]
	for _, op := range operators {
		if strings.HasPrefix(right, op) {
			out.Op = op
			break
		}
	}
	if out.Op == "" {
		return out, fmt.Errorf("at character %d: %q is no operator, want one of %s", at+1, right[:1], strings.Join(operators, " "))
	}
	if dot := strings.LastIndexByte(left, '.'); dot >= 0 {
		out.Workload, out.Phase, _ = strings.Cut(left[:dot], "/")
		if left = left[dot+1:]; out.Workload == "" {
			return out, errors.New("no workload before the dot")
		}
	}
	out.Metric = left
	var known bool
	if out.measure, known = measureNamed(left); !known {
		return out, fmt.Errorf("unknown metric %q, want attainment, goodput, good_tokens, late, shed, failed, achieved, retries, "+
			"or one of %s with _mean, _p50, _p90, _p95, _p99, _p999 or _max", left, strings.Join(Metrics(), ", "))
	}
	value := strings.TrimSpace(right[len(out.Op):])
	var err error
	if out.Value, err = out.measure.unit.parse(value); err != nil {
		return out, fmt.Errorf("at %q: %w", value, err)
	}
	return out, nil
}

// parse reads a value of the unit.
func (u unit) parse(text string) (float64, error) {
	if u == asTime {
		d, err := time.ParseDuration(text)
		if err != nil || text == "0" || d < 0 {
			return 0, errors.New("want a time with its unit, such as 800ms or 1.5s")
		}
		return float64(d) / float64(time.Millisecond), nil
	}
	number, want, by := text, "a number, such as 50 or 50/s", 1.0
	if u == perSecond {
		number = strings.TrimSuffix(text, "/s")
	} else {
		want = "a share, such as 0.99 or 99%"
		if cut, percent := strings.CutSuffix(text, "%"); percent {
			number, by = cut, 100
		}
	}
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || v < 0 || math.IsInf(v, 0) || math.IsNaN(v) || u == asShare && v/by > 1 {
		return 0, fmt.Errorf("want %s", want)
	}
	return v / by, nil
}

// show writes a value of the unit for people.
func (u unit) show(v float64) string {
	switch u {
	case asTime:
		return Cell(v, true) + " ms"
	case perSecond:
		return Cell(v, true) + "/s"
	}
	return fmt.Sprintf("%.2f %%", 100*v)
}

// Check returns what is not as demanded, and where; nil when all is. A figure
// that a phase does not have is not as demanded.
func (r *Report) Check(demands []Assert) error {
	var found []error
	for _, a := range demands {
		matched := false
		for i := range r.Results {
			x := &r.Results[i]
			if a.Workload != "" && a.Workload != x.Name || a.Phase != "" && a.Phase != x.Phase {
				continue
			}
			matched = true
			v, is := a.measure.of(x)
			switch {
			case !is:
				found = append(found, fmt.Errorf("%s, phase %s: expected %s, but there is no %s", x.Name, x.Phase, a.text, a.Metric))
			case !a.holds(v):
				found = append(found, fmt.Errorf("%s, phase %s: expected %s, got %s", x.Name, x.Phase, a.text, a.measure.unit.show(v)))
			}
		}
		if !matched {
			found = append(found, fmt.Errorf("expected %s, but no such workload and phase was run", a.text))
		}
	}
	return errors.Join(found...)
}

func (a Assert) holds(v float64) bool {
	switch a.Op {
	case "<":
		return v < a.Value
	case "<=":
		return v <= a.Value
	case ">":
		return v > a.Value
	case ">=":
		return v >= a.Value
	case "==":
		return v == a.Value
	}
	return v != a.Value
}
