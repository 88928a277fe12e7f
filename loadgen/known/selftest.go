package known

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"aloft/loadgen"
)

// tries is how often a server is asked at most until each of its rows was right
// once. A machine that does other work delays the generator and the servers
// alike; the tolerance stays what it is, and the table tells the tries.
const (
	tries = 5
	// retryWithin is how long the self-test may have run when it begins one more
	// try: it has to end within two minutes.
	retryWithin = 100 * time.Second
)

// Row is one metric of one server.
type Row struct {
	Server string `json:"server"`
	Metric string `json:"metric"`
	// Right and Measured are p50, p95, p99 and the maximum of a time in ms, or
	// one number.
	Right    []float64 `json:"right"`
	Measured []float64 `json:"measured"`
	OK       bool      `json:"ok"`
	Tries    int       `json:"tries"` // until it was right
}

// Result is what the self-test found.
type Result struct {
	Rows  []Row   `json:"rows"`
	Wrong int     `json:"wrong"`    // rows that were right in no try
	Again int     `json:"repeated"` // rows that were right only when repeated
	Took  float64 `json:"took_s"`
}

// OK reports whether every row was right.
func (r *Result) OK() bool { return r.Wrong == 0 && len(r.Rows) > 0 }

// SelfTest runs the generator against servers whose every figure is known and
// writes what is right, what was measured and the verdict to out, server by
// server: all rows, or those that were not right at once and how many were. An
// error means that it could not be carried out; a wrong row is none.
func SelfTest(ctx context.Context, out io.Writer, all bool) (Result, error) {
	began := time.Now()
	groups := [][]*subject{faults(), stalls()}
	for _, s := range timed() { // alone, so that none delays another
		groups = append(groups, []*subject{s})
	}
	fmt.Fprintln(out, "Times are p50, p95, p99 and the maximum in ms; right is by the server's own clock. A time or a rate is ok within 1 % or 1 ms, a count if it is exact.")
	var result Result
	for _, g := range groups {
		rows, err := test(ctx, g, began.Add(retryWithin))
		if err != nil {
			return result, err
		}
		for _, r := range rows {
			if !r.OK {
				result.Wrong++
			} else if r.Tries > 1 {
				result.Again++
			}
		}
		result.Rows = append(result.Rows, rows...)
		if err := writeRows(out, rows, all); err != nil {
			return result, err
		}
	}
	result.Took = time.Since(began).Seconds()
	verdict := "every figure is right"
	if !result.OK() {
		verdict = fmt.Sprintf("%d WRONG; on a machine that does other work, try again when it does not", result.Wrong)
	}
	_, err := fmt.Fprintf(out, "\n%d rows, %d of them right only when repeated: %s (%.0f s)\n", len(result.Rows), result.Again, verdict, result.Took)
	return result, err
}

// test runs servers side by side, again while a row has never been right and the
// last time to begin has not passed.
func test(ctx context.Context, g []*subject, last time.Time) ([]Row, error) {
	var rows []Row
	for try := 1; try == 1 || try <= tries && time.Now().Before(last); try++ {
		now, err := runOnce(ctx, g)
		if err != nil {
			return nil, err
		}
		rows = merge(rows, now, try)
		right := true
		for _, r := range rows {
			right = right && r.OK
		}
		if right {
			break
		}
	}
	return rows, nil
}

// merge takes rows of a further try where they were not right before. The rows
// of a server are the same in every try but for outcomes that came up once.
func merge(old, now []Row, try int) []Row {
	type key struct{ server, metric string }
	at := map[key]int{}
	for i, r := range old {
		at[key{r.Server, r.Metric}] = i
	}
	for _, r := range now {
		r.Tries = try
		i, seen := at[key{r.Server, r.Metric}]
		switch {
		case !seen:
			old = append(old, r)
		case !old[i].OK:
			old[i] = r
		}
	}
	return old
}

// runOnce starts fresh servers, puts the load on them and compares.
func runOnce(ctx context.Context, g []*subject) (rows []Row, err error) {
	ctx, cancel := context.WithCancel(ctx)
	var waits []func()
	stop := sync.OnceFunc(func() {
		cancel()
		for _, wait := range waits {
			wait()
		}
	})
	defer stop()
	opt := loadgen.Options{Name: "self-test", Seed: 1, Drain: 5 * time.Second}
	opt.WarmUp, opt.Drain = g[0].warm, cmp.Or(g[0].drain, opt.Drain)
	opt.Open = func(name string) (io.ReadCloser, error) {
		i := slices.IndexFunc(g, func(s *subject) bool { return s.name == name })
		return io.NopCloser(bytes.NewReader(g[i].file)), nil // each names its own
	}
	for _, s := range g {
		s.server.records, s.server.warm = nil, s.warmRequests()
		addr, err := nobody()
		if err == nil && !s.nobody {
			var wait func()
			if addr, wait, err = s.server.start(ctx); err == nil {
				waits = append(waits, wait)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("known: start %s: %w", s.name, err)
		}
		opt.Workloads = append(opt.Workloads, s.workload(addr))
	}
	report, err := loadgen.Run(ctx, opt)
	if err != nil {
		return nil, err
	}
	if report.Interrupted {
		return nil, errors.Join(errors.New("known: the self-test was interrupted"), context.Cause(ctx))
	}
	stop() // the records are complete
	for i, s := range g {
		r := &report.Results[i]
		rows = append(rows, s.counts(r, report.Started)...)
		if !s.counted {
			rows = append(rows, s.times(r, report.Started)...)
		}
		rows = append(rows, s.omission(r)...)
		if s.more != nil {
			rows = append(rows, s.more(s, report)...)
		}
		if s.warm > 0 {
			t := tally{server: s.name}
			t.exact("warm-up requests, counted nowhere else", s.warmRequests(), report.WarmUp.Offered)
			rows = append(rows, t.rows...)
		}
	}
	return rows, nil
}

// omission proves that there is none: the stall shows from the intended start,
// and of those that waited in the generator not from the send.
func (s *subject) omission(r *loadgen.Result) []Row {
	if s.server.stall == 0 {
		return nil
	}
	ms := float64(s.server.stall) / float64(msec)
	rows := []Row{{Server: s.name, Metric: "stall in the maximum from intended start, ms, at least", Right: []float64{0.99 * ms}, Measured: []float64{r.Max}, OK: r.Max >= 0.99*ms},
		{Server: s.name, Metric: "stall in p99 from intended start, ms, at least", Right: []float64{0.95 * ms}, Measured: []float64{r.P99}, OK: r.P99 >= 0.95*ms}}
	if s.name == queued {
		rows = append(rows, Row{Server: s.name, Metric: "p99 from send, ms, at most (one request of 500 saw the stall)",
			Right: []float64{50}, Measured: []float64{r.FromSend.P99}, OK: r.FromSend.P99 <= 50})
	}
	return rows
}

// nobody is an address at which nobody listens.
func nobody() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// writeRows writes the rows of servers that ran side by side.
func writeRows(out io.Writer, rows []Row, all bool) error {
	var b strings.Builder
	server, right, servers := "", 0, map[string]bool{}
	for _, r := range rows {
		servers[r.Server] = true
		if r.OK && r.Tries == 1 && !all {
			right++
			continue
		}
		if r.Server != server {
			server = r.Server
			fmt.Fprintf(&b, "\n%s\n", server)
		}
		verdict := "ok"
		if !r.OK {
			verdict = "WRONG"
		}
		if r.Tries > 1 {
			verdict += fmt.Sprintf(" (try %d)", r.Tries)
		}
		fmt.Fprintf(&b, "  %-52s right %-36s measured %-36s %s\n", r.Metric, figures(r.Right), figures(r.Measured), verdict)
	}
	if who := fmt.Sprintf("%d servers", len(servers)); right > 0 {
		if len(servers) == 1 {
			who = rows[0].Server
		}
		fmt.Fprintf(&b, "%s: %d of %d rows right at once\n", who, right, len(rows))
	}
	_, err := io.WriteString(out, b.String())
	return err
}

func figures(v []float64) string {
	if len(v) == 0 {
		return "-"
	}
	var cells []string
	for _, x := range v {
		switch {
		case x == float64(int64(x)):
			cells = append(cells, fmt.Sprintf("%.0f", x))
		case x < 1 && len(v) == 1:
			cells = append(cells, fmt.Sprintf("%.4f", x))
		default:
			cells = append(cells, fmt.Sprintf("%.2f", x))
		}
	}
	return strings.Join(cells, " ")
}
