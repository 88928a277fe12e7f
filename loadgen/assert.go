package loadgen

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Assert is one demand on a report, such as chat/steady.ttft_p99<800ms.
type Assert struct {
	Workload, Phase string // "" = each
	// By is "" for whole phases, or what the cuts are by that it is demanded of:
	// tenant, class or input_tokens; Cut is the name of one, "" = each.
	By, Cut string
	Metric  string
	Op      string  // < <= > >= == !=
	Value   float64 // milliseconds, a share of 1, or a second
	text    string
	measure measure
}

// operators, the longer ones first: "<=" begins with "<".
var operators = []string{"<=", ">=", "==", "!=", "<", ">"}

// ParseAsserts reads demands joined by commas:
//
//	[workload[/phase].]metric[{by[=name]}] OP value
//
// A metric is attainment, late, shed or failed (shares of the offered: 0.99 or
// 99%), goodput, good_tokens, achieved or retries (a second: 50 or 50/s), or a
// distribution and a quantile, such as ttft_p99: one of Metrics, and mean, p50,
// p90, p95, p99, p999 or max (a time with its unit: 800ms, 1.5s). Without a
// workload it is demanded of each phase of each.
//
// {tenant=a} demands it of the requests of tenant a over all phases, {class=a} of
// those of a class, {input_tokens=12-80} of those of a tenth by length as the
// report names it; {tenant} demands it of each. A name with a comma or a brace
// stands in double quotes. Cuts have the shares, e2e, ttft and tpot.
func ParseAsserts(text string) ([]Assert, error) {
	var out []Assert
	for i, term := range terms(text) {
		a, err := parseAssert(strings.TrimSpace(term))
		if err != nil {
			return nil, fmt.Errorf("loadgen: assert %d, %q: %w", i+1, strings.TrimSpace(term), err)
		}
		out = append(out, a)
	}
	return out, nil
}

// terms cuts at the commas that stand in no braces.
func terms(text string) (out []string) {
	from, within := 0, false
	for at := 0; at < len(text); at++ {
		switch c := text[at]; {
		case within && c == '"':
			if quoted, err := strconv.QuotedPrefix(text[at:]); err == nil {
				at += len(quoted) - 1
			}
		case c == '{' || c == '}':
			within = c == '{'
		case c == ',' && !within:
			out = append(out, text[from:at])
			from = at + 1
		}
	}
	return append(out, text[from:])
}

// cutKinds are what an assert may name.
var cutKinds = []string{byTenant, byClass, byLength}

// readCut reads by} or by=name} and returns what follows.
func (a *Assert) readCut(text string) (rest string, err error) {
	end := strings.IndexAny(text, "=}")
	if end < 0 {
		return "", errors.New("a { without its }")
	}
	if a.By = strings.TrimSpace(text[:end]); !slices.Contains(cutKinds, a.By) {
		return "", fmt.Errorf("nothing is cut by %q, want %s", a.By, strings.Join(cutKinds, ", "))
	}
	if text[end] == '}' {
		return text[end+1:], nil
	}
	text = strings.TrimSpace(text[end+1:])
	quoted, err := strconv.QuotedPrefix(text)
	if err == nil {
		text = text[len(quoted):]
		a.Cut, _ = strconv.Unquote(quoted) // a quoted prefix is quoted
	}
	name, rest, closed := strings.Cut(text, "}")
	switch name = strings.TrimSpace(name); {
	case !closed:
		return "", errors.New("a { without its }")
	case err == nil && name != "":
		return "", fmt.Errorf("%q after the name, want }", name)
	case strings.Contains(name, ","):
		return "", fmt.Errorf("a cut is by one thing, and %q is no name: want {%s=name}, in double quotes where it has a comma", name, a.By)
	case err != nil:
		a.Cut = name
	}
	if a.Cut == "" {
		return "", fmt.Errorf("no name after the =, want {%s=name}, or {%s} for each", a.By, a.By)
	}
	return rest, nil
}

func parseAssert(text string) (Assert, error) {
	out := Assert{text: text}
	left, right := text, ""
	at := strings.IndexAny(text, "<>=!{")
	if at >= 0 {
		left, right = strings.TrimSpace(text[:at]), text[at:]
	}
	if strings.HasPrefix(right, "{") {
		rest, err := out.readCut(right[1:])
		if err != nil {
			return out, fmt.Errorf("at character %d: %w", at+1, err)
		}
		right = strings.TrimSpace(rest)
		at = len(text) - len(right)
	}
	if right == "" {
		return out, fmt.Errorf("no operator after the metric, want one of %s", strings.Join(operators, " "))
	}
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
	if out.By != "" {
		if !slices.ContainsFunc(ofCuts(), func(m measure) bool { return m.name == left }) {
			return out, fmt.Errorf("%s is not known of cuts, want attainment, late, shed, failed, or one of e2e, ttft, tpot with a quantile", left)
		}
		if out.Phase != "" {
			return out, fmt.Errorf("a cut is over all phases: leave out /%s", out.Phase)
		}
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

// place is where something is demanded.
type place struct {
	name string
	in   *Result
}

// places are those of an assert, and what it could have named instead.
func (r *Report) places(a Assert) (found []place, others []string) {
	if a.By == "" {
		for i := range r.Results {
			x := &r.Results[i]
			if (a.Workload == "" || a.Workload == x.Name) && (a.Phase == "" || a.Phase == x.Phase) {
				found = append(found, place{x.Name + ", phase " + x.Phase, x})
			}
			others = append(others, x.Name+"/"+x.Phase)
		}
		return found, others
	}
	for i := range r.Cuts {
		c := &r.Cuts[i]
		if c.By == a.By && (a.Workload == "" || a.Workload == c.Workload) && (a.Cut == "" || a.Cut == c.Name) {
			found = append(found, place{c.Workload + ", " + c.String(), c.result()})
		}
		others = append(others, c.Workload+" {"+c.String()+"}")
	}
	return found, others
}

// Check returns what is not as demanded, and where; nil when all is. A figure
// that a phase or cut does not have is not as demanded.
func (r *Report) Check(demands []Assert) error {
	var found []error
	for _, a := range demands {
		places, others := r.places(a)
		for _, p := range places {
			v, is := a.measure.of(p.in)
			switch {
			case !is:
				found = append(found, fmt.Errorf("%s: expected %s, but there is no %s", p.name, a.text, a.Metric))
			case !a.holds(v):
				found = append(found, fmt.Errorf("%s: expected %s, got %s", p.name, a.text, a.measure.unit.show(v)))
			}
		}
		if len(places) > 0 {
			continue
		}
		what := "workload and phase was run"
		if a.By != "" {
			what = "part of a workload was seen"
		}
		found = append(found, fmt.Errorf("expected %s, but no such %s; there is %s", a.text, what, listed(others)))
	}
	return errors.Join(found...)
}

// listed is a list for an error, of which the first few say enough.
func listed(names []string) string {
	const few = 12
	switch n := len(names); {
	case n == 0:
		return "none"
	case n > few:
		return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), n-few)
	}
	return strings.Join(names, ", ")
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
