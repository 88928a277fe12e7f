package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"aloft/loadgen"
	"aloft/sim/study"
)

// progress shows how far a study is: a line that is drawn again on a terminal, and
// a line at times in a log. nil shows nothing.
type progress struct {
	out    io.Writer
	redraw bool
	width  func() int
	now    func() time.Time
	began  time.Time
	next   time.Time // not before
}

// redrawEvery is how often the line is drawn.
const redrawEvery = 100 * time.Millisecond

func newProgress(mode string, f *os.File, getenv func(string) string) *progress {
	if mode == liveNone {
		return nil
	}
	p := &progress{out: f, redraw: mode == liveAuto && canRedraw(f, getenv), now: time.Now, began: time.Now()}
	p.width = func() int { width, _, _ := term.GetSize(int(f.Fd())); return width }
	if !p.redraw {
		p.next = p.began.Add(plainEvery)
	}
	return p
}

// show is for study.Options.OnProgress.
func (p *progress) show(s study.Progress) {
	if p == nil {
		return
	}
	now := p.now()
	if now.Before(p.next) {
		return
	}
	took := now.Sub(p.began)
	left := ""
	if s.Share > 0.01 { // before that it is guesswork
		left = ", " + clock(time.Duration(float64(took)*(1-s.Share)/s.Share)) + " left"
	}
	runs := fmt.Sprintf("%d of %d runs", s.Done, s.Runs)
	if !p.redraw {
		p.next = now.Add(plainEvery)
		fmt.Fprintf(p.out, "simulated %.0f %%, %s, %s%s: %s\n", 100*s.Share, runs, clock(took), left, loadgen.OneLine(strings.Join(s.Now, "; ")))
		return
	}
	p.next = now.Add(redrawEvery)
	width := p.width()
	if width < 1 {
		width = 80
	}
	line := fmt.Sprintf("[%s] %3.0f %%  %s%s  %s", bar(s.Share, 24), 100*s.Share, runs, left, strings.Join(s.Now, "; "))
	fmt.Fprintf(p.out, "\r%s\x1b[K", loadgen.Short(line, min(width, 100)-1))
}

// close leaves the terminal as it was.
func (p *progress) close() {
	if p != nil && p.redraw {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}
