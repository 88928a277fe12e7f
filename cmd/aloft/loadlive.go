package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"aloft/loadgen"
)

// loadWatch is who may look on while a load runs.
type loadWatch struct {
	Live    string `help:"The view while it runs, on standard error: auto redraws a terminal, plain writes a line at times, none." default:"auto" enum:"auto,plain,none"`
	Metrics string `help:"Serve the figures to Prometheus here while it runs, at /metrics; without a host on 127.0.0.1." placeholder:"ADDRESS"`
}

// watching is them, looking on.
type watching struct {
	*live
	metrics *loadMetrics
}

func (c *loadWatch) start(ctx context.Context) (watching, error) {
	metrics, err := serveLoadMetrics(ctx, c.Metrics)
	if err != nil {
		return watching{}, err
	}
	return watching{newLive(c.Live, os.Stderr, os.Getenv), metrics}, nil
}

// show is for loadgen.Options.OnSample.
func (w watching) show(s loadgen.Snapshot) {
	w.live.show(s)
	w.metrics.show(s)
}

func (w watching) close() {
	w.live.close()
	if err := w.metrics.close(); err != nil { // what was measured stands nevertheless
		fmt.Fprintln(os.Stderr, err)
	}
}

// How a run is shown while it goes on.
const (
	liveAuto  = "auto"  // as the terminal can
	livePlain = "plain" // a line at times
	liveNone  = "none"
)

// plainEvery is how often a log gets a line.
const plainEvery = 5 * time.Second

// live shows a run on a terminal or in a log. A goroutine of its own writes: one
// who has stopped the terminal must not stop the run.
type live struct {
	in   chan news // what was not shown yet
	done chan struct{}
	run  string // that goes on; it belongs to whoever calls show
}

// news is what a view has not drawn yet.
type news struct {
	said  []string          // lines that stay
	run   string            // of several, one after the other: which one; "" = there is but one
	shown *loadgen.Snapshot // the latest of it
}

// newLive starts the view; auto redraws a terminal that can and writes plain
// lines to all else. nil, for none, shows nothing.
func newLive(mode string, f *os.File, getenv func(string) string) *live {
	switch {
	case mode == liveNone:
		return nil
	case mode == livePlain || !canRedraw(f, getenv):
		return startLive(&plainView{out: f})
	}
	return startLive(&screenView{out: f, colour: getenv("NO_COLOR") == "", size: func() (int, int) {
		width, height, _ := term.GetSize(int(f.Fd()))
		return width, height
	}})
}

// canRedraw reports whether what is written is a terminal that can go back.
func canRedraw(f *os.File, getenv func(string) string) bool {
	return term.IsTerminal(int(f.Fd())) && getenv("TERM") != "" && getenv("TERM") != "dumb"
}

// view draws the news, the last of a run last. close leaves the terminal as it
// was, but for what was said.
type view interface {
	draw(news)
	close()
}

func startLive(v view) *live {
	l := &live{in: make(chan news, 1), done: make(chan struct{})}
	go func() {
		defer close(l.done)
		defer v.close()
		for n := range l.in {
			v.draw(n)
		}
	}()
	return l
}

// begin names the run whose figures come from now on.
func (l *live) begin(run string) {
	if l != nil {
		l.run = loadgen.OneLine(run)
	}
}

// show hands over the figures so far, in place of those that are not drawn yet.
func (l *live) show(s loadgen.Snapshot) {
	if l != nil {
		l.put(news{run: l.run, shown: &s})
	}
}

// say hands over a line that stays; it ends the run's figures.
func (l *live) say(text string) {
	if l != nil {
		l.put(news{said: []string{loadgen.OneLine(text)}})
	}
}

// put adds to what is not drawn yet: what was said stays in it, so that it grows
// with the number of runs at most.
func (l *live) put(n news) {
	select {
	case old := <-l.in:
		n.said = append(old.said, n.said...)
	default:
	}
	l.in <- n // one goroutine at a time sends: there is room
}

// closeWithin is how long a view may take to end: who has stopped the terminal
// must not keep the results from their files.
const closeWithin = 2 * time.Second

// close ends the view; nothing must be handed over any more. One that hangs in a
// write ends with the program.
func (l *live) close() {
	if l == nil {
		return
	}
	close(l.in)
	select {
	case <-l.done:
	case <-time.After(closeWithin):
	}
}

// moment is a snapshot with the rates since the one before.
type moment struct {
	loadgen.Snapshot
	sums
	sent, good float64 // a second
	now        []int   // index of each workload's present phase
}

// sums is what the phases of a run have come to.
type sums struct {
	at           time.Duration
	offered      int // answered, refused or failed: what is in flight is not counted yet
	ok, late     int
	shed, failed int
}

// look compares a snapshot with the last.
func look(s loadgen.Snapshot, last sums) moment {
	m := moment{Snapshot: s, sums: sums{at: s.Elapsed}}
	for i := range s.Results {
		r := &s.Results[i]
		m.offered, m.ok, m.late = m.offered+r.Offered, m.ok+r.OK, m.late+r.Late
		m.shed, m.failed = m.shed+r.Shed, m.failed+r.Failed
		if n := len(m.now); n > 0 && s.Results[m.now[n-1]].Name == r.Name {
			m.now[n-1] = i
		} else {
			m.now = append(m.now, i)
		}
	}
	if took := (s.Elapsed - last.at).Seconds(); took > 0 {
		m.sent, m.good = float64(m.offered-last.offered)/took, float64(m.ok-last.ok)/took
	}
	return m
}

// goodShare is ok / offered in per cent, as text.
func goodShare(ok, offered int) string {
	if offered == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", 100*float64(ok)/float64(offered))
}

// left is how far a run is and what is to come.
func (m *moment) left() string {
	switch {
	case m.Elapsed == 0:
		return "warming up"
	case m.Elapsed < m.End:
		return clock(m.End-m.Elapsed) + " left"
	case m.InFlight > 0:
		return "draining"
	}
	return "done"
}

// clock is a duration as minutes and seconds.
func clock(d time.Duration) string {
	s := int(d.Round(time.Second).Seconds())
	if s >= 3600 {
		return fmt.Sprintf("%d:%02d:%02d", s/3600, s/60%60, s%60)
	}
	return fmt.Sprintf("%d:%02d", s/60, s%60)
}

// plainView writes a line for each workload now and then.
type plainView struct {
	out  io.Writer
	run  string
	last sums
	next time.Duration
}

func (v *plainView) draw(n news) {
	var b strings.Builder
	for _, text := range n.said {
		b.WriteString(text + "\n")
	}
	if n.run != v.run && n.run != "" {
		v.run, v.last, v.next = n.run, sums{}, 0
		b.WriteString(n.run + " begins\n") // a long window should not be silent until it is over
	}
	if n.shown != nil && n.shown.Elapsed >= max(v.next, plainEvery) {
		v.write(&b, *n.shown)
	}
	_, _ = io.WriteString(v.out, b.String()) // a view that cannot be written must not end the run
}

func (v *plainView) write(b *strings.Builder, s loadgen.Snapshot) {
	m := look(s, v.last)
	v.last, v.next = m.sums, s.Elapsed-s.Elapsed%plainEvery+plainEvery
	if v.run != "" {
		b.WriteString(v.run + ": ")
	}
	fmt.Fprintf(b, "%s of %s, %s: %.1f/s ended, %.1f/s good, %d in flight, %s %% good, %d late, %d shed, %d failed so far\n",
		clock(m.Elapsed), clock(m.End), m.left(), m.sent, m.good, m.InFlight, goodShare(m.ok, m.offered), m.late, m.shed, m.failed)
	for _, i := range m.now {
		r := &m.Results[i]
		more, _ := note(r)
		fmt.Fprintf(b, "  %s, %s: %s %% good, p50 %s ms, p99 %s ms, lag p99 %s ms%s\n", loadgen.OneLine(r.Name), loadgen.OneLine(r.Phase),
			goodShare(r.OK, r.Offered), millis(r.Quantiles), millis99(r.Quantiles), millis99(r.SendLag), more)
	}
}

func (v *plainView) close() {}

// screenView draws one block of lines and draws it again in its place. The
// cursor stands below the block after each write and is never hidden, so that
// whatever ends the program leaves the terminal as it was.
type screenView struct {
	out    io.Writer
	colour bool
	size   func() (columns, lines int)
	run    string
	last   sums
	lines  int // of the block that is drawn
}

func (v *screenView) draw(n news) {
	var b strings.Builder
	b.WriteString(v.back())
	for _, text := range n.said { // as long as it is: it may wrap, since it is not drawn again
		b.WriteString(text + "\n")
	}
	if n.run != v.run {
		v.run, v.last = n.run, sums{}
	}
	var lines []line
	if n.shown != nil {
		lines = v.block(*n.shown)
	}
	for _, l := range lines {
		if v.colour && l.alarm {
			l.text = "\x1b[31m" + l.text + "\x1b[0m"
		}
		b.WriteString(l.text + "\n")
	}
	v.lines = len(lines)
	_, _ = io.WriteString(v.out, b.String())
}

func (v *screenView) block(s loadgen.Snapshot) []line {
	m := look(s, v.last)
	v.last = m.sums
	width, height := v.size()
	if width < 1 || height < 1 { // not known: so say serial lines, and terminals that nobody looks at
		width, height = 80, 24
	}
	width, height = min(width, 80)-1, max(height-1, 1) // a full last column would wrap
	if v.run == "" || height == 1 {
		return frame(&m, width, height)
	}
	return append([]line{{loadgen.Short(v.run, width), false}}, frame(&m, width, height-1)...)
}

// back moves to the block's first line and clears all from there.
func (v *screenView) back() string {
	if v.lines == 0 {
		return "\r"
	}
	return fmt.Sprintf("\r\x1b[%dA\x1b[J", v.lines)
}

func (v *screenView) close() { _, _ = io.WriteString(v.out, v.back()) }

// line is one of a frame; an alarm is shown in red.
type line struct {
	text  string
	alarm bool
}

// frame is the block for a moment, in so many columns and at most so many lines.
func frame(m *moment, width, height int) []line {
	share := 0.0
	if m.End > 0 {
		share = m.Elapsed.Seconds() / m.End.Seconds()
	}
	head := fmt.Sprintf("%s of %s  [%s]  %s", clock(m.Elapsed), clock(m.End), bar(share, 36), m.left())
	total := fmt.Sprintf("%.1f/s ended  %.1f/s good  %d in flight  %d late  %d shed  %d failed", m.sent, m.good, m.InFlight, m.late, m.shed, m.failed)
	out := []line{{head, false}, {total, m.failed > 0}}
	out = append(out, line{fmt.Sprintf("%-20s %9s %8s %10s %10s %9s", "", "ended", "good %", "p50 ms", "p99 ms", "lag p99"), false})
	for n, i := range m.now {
		r := &m.Results[i]
		more, late := note(r)
		if len(out) == height-1 && n < len(m.now)-1 {
			out = append(out, line{fmt.Sprintf("and %d more workloads", len(m.now)-n), false})
			break
		}
		out = append(out, line{fmt.Sprintf("%-20s %9d %8s %10s %10s %9s%s", loadgen.Short(r.Name+", "+r.Phase, 20), r.Offered, goodShare(r.OK, r.Offered),
			millis(r.Quantiles), millis99(r.Quantiles), millis99(r.SendLag), more), late})
	}
	out = out[:min(len(out), height)]
	for i := range out {
		out[i].text = loadgen.Short(out[i].text, width)
	}
	return out
}

// note says of a closed loop that it is one, and warns while the generator
// itself is so late that the run would not count.
func note(r *loadgen.Result) (text string, alarm bool) {
	switch {
	case r.Closed > 0:
		return " closed", false
	case r.SendLag.P99 > r.LagLimit():
		return " BEHIND", true
	}
	return "", false
}

func millis(q loadgen.Quantiles) string   { return loadgen.Cell(q.P50, q.N > 0) }
func millis99(q loadgen.Quantiles) string { return loadgen.Cell(q.P99, q.N > 0) }
