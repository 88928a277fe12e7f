package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"aloft/loadgen"
	"aloft/loadgen/arrivals"
	"aloft/loadgen/known"
)

// loadgens measures the load generator itself: what it can send, whether its
// figures are right, and what others report of a server that stalls.
func loadgens(ctx context.Context, l *lab) (*result, error) {
	null := []string{l.bin, "load", "null-server"}
	r := &result{title: "Load generator",
		how: "`aloft load calibrate`: the generator against a null server in a process of its own on the same machine, over loopback: 1 KiB unary answers, or streams of 1,000 events of which each is a write of its own. " +
			"All figures and wrk's take turns in every round; the best of the rounds counts. *Highest rate kept*: an open loop at that rate was sent within 1 %, every request was answered, and no queue grew. " +
			"Send lag is the time from a request's intended start to its actual send.",
		head: []string{"figure", "best", "median", "lowest to highest", "generator cores", "server cores"}}
	c, err := known.Calibrate(ctx, known.CalibrateOptions{Null: null, Rounds: l.rounds(), Span: l.span(1500 * time.Millisecond),
		Say: func(s string) { l.say("loadgen, %s", s) }})
	if err != nil {
		return nil, err
	}
	for _, f := range c.Figures {
		show := func(v float64) string {
			if f.Unit == "ms" {
				return fmt.Sprintf("%.3f ms", v)
			}
			return fmt.Sprintf("%.0f/s", v)
		}
		r.row(f.Name, show(f.Best), show(f.Median), show(slices.Min(f.Rounds))+" to "+show(slices.Max(f.Rounds)), fmt.Sprintf("%.2f", f.Generator), fmt.Sprintf("%.2f", f.Server))
		switch name := f.Name + ", " + f.Unit; {
		case f.Target == 0:
			r.measured(name, f.Best)
		case f.Unit == "ms":
			r.atMost(name, f.Best, f.Target)
		default:
			r.atLeast(name, f.Best, f.Target)
		}
	}
	for _, n := range c.Notes {
		r.note("%s.", n)
	}
	if err := stallTable(ctx, l, null, r); err != nil {
		return nil, err
	}
	return r, selfTest(ctx, l, r)
}

// selfTest asks the servers whose every figure is known.
func selfTest(ctx context.Context, l *lab, r *result) error {
	var table bytes.Buffer
	t, err := known.SelfTest(ctx, &table, true)
	if err != nil {
		return err
	}
	for _, row := range t.Rows {
		if !row.OK {
			l.say("loadgen, self-test: %s: %s is %v, right is %v", row.Server, row.Metric, row.Measured, row.Right)
		}
	}
	r.note("`aloft load selftest`: %d figures of known servers checked in %.0f s, each within 1 %% or 1 ms of what the server's own clock says and counts exactly; %d of them needed more than one try, %d were wrong in each of theirs, five at most.",
		len(t.Rows), t.Took, t.Again, t.Wrong)
	r.atMost("self-test: wrong figures", float64(t.Wrong), 0)
	return nil
}

// What the generators are asked for while the server stalls.
const (
	stallRate  = 1000 // requests/s
	stallConns = 10
)

// view is what one generator says of a server that stalled.
type view struct {
	tool, from, absent string
	requests           int
	seconds            float64
	q                  [4]float64 // p50, p95, p99 and the maximum, in ms
}

func (v *view) cells() []string {
	if v.absent != "" {
		return []string{v.tool, "absent: " + v.absent, "", "", "", "", "", ""}
	}
	out := []string{v.tool, v.from, fmt.Sprint(v.requests), fmt.Sprintf("%.0f/s", float64(v.requests)/v.seconds)}
	for _, q := range v.q {
		out = append(out, fmt.Sprintf("%.1f", q))
	}
	return out
}

// stallTable has every generator send at the same rate to the same server, which
// stands still for two seconds in the midst of it.
func stallTable(ctx context.Context, l *lab, null []string, r *result) error {
	child, err := known.StartNull(ctx, null...)
	if err != nil {
		return err
	}
	defer child.Close()
	s := &stalling{l: l, child: child, span: l.span(10 * time.Second)}
	if l.setSpan > 0 {
		s.span = 10 * time.Second
	}
	_, _ = vegetaBin(ctx) // built before any clock runs; its own row says if it fails
	var rows [][]string
	var truth, ours *view
	for _, ask := range []func(context.Context) ([]*view, error){s.aloft, s.hey, s.vegetaFew, s.vegeta, s.wrk} {
		views, err := s.during(ctx, ask)
		if err != nil {
			return err
		}
		if truth == nil {
			if truth, err = s.truth(ctx); err != nil {
				return err
			}
			ours = views[0]
			rows = append(rows, truth.cells())
		}
		for _, v := range views {
			l.say("loadgen, a stall of %v: %s", s.span/5, strings.Join(v.cells(), " | "))
			rows = append(rows, v.cells())
		}
	}
	var b strings.Builder
	writeTable(&b, []string{"generator", "clock starts at", "requests", "rate", "p50 ms", "p95 ms", "p99 ms", "max ms"}, rows)
	r.note("What each generator reports of one server that stands still for %v in the midst of %v, at %d requests/s over %d connections (wrk cannot be held to a rate, and has a timeout of 30 s: with its own of 2 s it leaves out what waited longer). "+
		"*The server* is the truth for requests due every millisecond: what was due while it stood still waited until its end, by its own clock.\n\n%s",
		s.span/5, s.span, stallRate, stallConns, strings.TrimSuffix(b.String(), "\n"))
	r.atLeast("stall: p99 from intended start / the server's", ours.q[2]/truth.q[2], 0.99)
	r.atMost("stall: p99 from intended start / the server's, at most", ours.q[2]/truth.q[2], 1.1)
	return nil
}

// stalling is a null server that is asked to stand still.
type stalling struct {
	l     *lab
	child *known.Child
	span  time.Duration
}

// during freezes the server for a fifth of the time, from two fifths on.
func (s *stalling) during(ctx context.Context, ask func(context.Context) ([]*view, error)) ([]*view, error) {
	froze := make(chan error, 1)
	timer := time.AfterFunc(2*s.span/5, func() { froze <- s.child.Freeze(ctx, s.span/5) })
	views, err := ask(ctx)
	if !timer.Stop() { // it went off: the next one must find a server that goes on
		err = errors.Join(err, <-froze)
		pause(ctx, 200*time.Millisecond)
	}
	return views, err
}

// truth follows from when the server stood still: of requests due at equal gaps
// those in it waited for its end, the others not at all.
func (s *stalling) truth(ctx context.Context) (*view, error) {
	u, err := s.child.Usage(ctx)
	if err != nil {
		return nil, err
	}
	if len(u.Freezes) == 0 {
		return nil, errors.New("the null server did not stand still")
	}
	f := u.Freezes[len(u.Freezes)-1]
	n := int(s.span.Seconds() * stallRate)
	waits := make([]float64, n)
	for i := range waits {
		waits[i] = max(0, ms(f.To.Sub(f.From))-float64(i)*1000/stallRate)
	}
	return &view{tool: "the server", from: "intended start", requests: n, seconds: s.span.Seconds(),
		q: [4]float64{quantile(waits, 0.5), quantile(waits, 0.95), quantile(waits, 0.99), quantile(waits, 1)}}, nil
}

// aloft is our own, with both of its clocks.
func (s *stalling) aloft(ctx context.Context) ([]*view, error) {
	report, err := loadgen.Run(ctx, loadgen.Options{Name: "stall", Seed: 1, Drain: 5 * time.Second, Workloads: []loadgen.Workload{{
		Name: "stall", Kind: loadgen.Chat, URL: "http://" + s.child.Addr, Model: "null", MaxInFlight: stallConns,
		Phases: []arrivals.Phase{{Name: "steady", Duration: s.span, Process: arrivals.Process{Kind: arrivals.Constant, Rate: stallRate}}},
	}}})
	if err != nil {
		return nil, err
	}
	r := report.Results[0]
	if r.OK != r.Offered {
		return nil, fmt.Errorf("of %d requests %d were answered: %v", r.Offered, r.OK, r.Problems)
	}
	of := func(from string, q loadgen.Quantiles) *view {
		return &view{tool: "aloft load", from: from, requests: r.Offered, seconds: float64(r.Offered) / r.Achieved, q: [4]float64{q.P50, q.P95, q.P99, q.Max}}
	}
	return []*view{of("intended start", r.Quantiles), of("send", r.FromSend)}, nil
}
