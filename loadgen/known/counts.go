package known

import (
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"aloft/loadgen"
)

// tally gathers the rows of one server.
type tally struct {
	server string
	rows   []Row
}

func (t *tally) exact(metric string, right, got int) { t.number(metric, float64(right), float64(got)) }

// number is a row of a figure that has to be exact.
func (t *tally) number(metric string, right, got float64) {
	t.rows = append(t.rows, Row{Server: t.server, Metric: metric, Right: []float64{right}, Measured: []float64{got}, OK: right == got})
}

// rate is a row of a rate, per second, that is right within 1 %.
func (t *tally) rate(metric string, right, got float64) {
	t.rows = append(t.rows, Row{Server: t.server, Metric: metric, Right: []float64{right}, Measured: []float64{got}, OK: math.Abs(got-right) <= tolerance*right})
}

// times is a row of times in ms.
func (t *tally) times(metric string, right, got []float64) {
	t.rows = append(t.rows, Row{Server: t.server, Metric: metric + ", ms", Right: right, Measured: got, OK: near(right, got)})
}

// counts are the rows of what was counted; all have to be exact but the rate.
func (s *subject) counts(r *loadgen.Result, started time.Time) []Row {
	t := tally{server: s.name}
	all := s.all(started)
	abandoned := s.abandoned
	if s.server.watch { // how many leave is drawn; that they left, the server saw
		abandoned = len(leavers(all))
	}
	offered := s.n - abandoned
	want := map[loadgen.Outcome]int{}
	for i := range offered {
		want[s.want(i)]++
	}
	if s.server.stall > 0 { // who is late, how long the machine took to catch up decides too
		late := s.truth(started).late(s.load.Target)
		want[loadgen.Late], want[loadgen.OK] = late, s.n-late
	}
	t.exact("offered", offered, r.Offered)
	if s.retries+r.Retries > 0 {
		t.exact("retries", s.retries, r.Retries)
		t.rate("offered in addition by retries/s", float64(s.retries)/s.span().Seconds(), r.Extra)
	}
	if abandoned+r.Abandoned > 0 {
		t.exact("clients that left as planned", abandoned, r.Abandoned)
	}
	unfinished := 0
	if s.drain > 0 {
		unfinished = s.n
	}
	if unfinished+r.Unfinished > 0 {
		t.exact("unfinished at the drain", unfinished, r.Unfinished)
	}
	if !s.nobody && s.load.Abandon == nil { // on a busy machine a client may leave before it has sent anything
		t.exact("requests that the server saw", s.n+s.retries+s.steps, len(s.server.seen()))
	}
	got := map[loadgen.Outcome]int{loadgen.OK: r.OK, loadgen.Late: r.Late, loadgen.Shed: r.Shed}
	for o, n := range r.FailedBy {
		got[o] = n
	}
	others := r.Offered
	for _, o := range slices.Sorted(maps.Keys(want)) {
		t.exact("outcome "+string(o), want[o], got[o])
		others -= got[o]
	}
	t.exact("any other outcome", 0, others)
	if again := sheds(all); again+r.RetryAfter > 0 {
		t.exact("sheds with Retry-After", again, r.RetryAfter)
	}
	t.number("attainment", float64(want[loadgen.OK])/float64(max(1, offered)), r.Attainment)
	if want[loadgen.OK]+want[loadgen.Late] > 0 {
		right := s.tokens(all)
		t.exact("prompt tokens", right.Prompt, r.Tokens.Prompt)
		t.exact("completion tokens", right.Completion, r.Tokens.Completion)
		t.exact("answers without usage", right.Estimated, r.Tokens.Estimated)
	}
	t.rate("sent/s", s.rate, r.Achieved)
	return t.rows
}

// leavers are the requests whose clients left.
func leavers(all []asked) (out []asked) {
	for _, r := range all {
		if !r.left.IsZero() {
			out = append(out, r)
		}
	}
	return out
}

// sheds is how many refusals that stood said when to come back.
func sheds(all []asked) int {
	n := 0
	for _, r := range all {
		for _, p := range r.script.parts {
			if r.want == loadgen.Shed && p.raw && strings.Contains(p.text, "\r\nRetry-After: ") {
				n++
			}
		}
	}
	return n
}

// tokens are those of the answers that were given.
func (s *subject) tokens(all []asked) loadgen.Tokens {
	var t loadgen.Tokens
	for _, r := range all {
		if r.script.untold || !r.left.IsZero() {
			continue
		}
		t.Completion += r.completion()
		if s.load.Stream && r.script.tokens == 0 {
			t.Estimated++
			continue
		}
		t.Prompt += promptTokens
	}
	return t
}
