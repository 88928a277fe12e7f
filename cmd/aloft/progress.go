package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/term"

	"aloft/loadgen"
)

// progress shows how far something is: a bar that is drawn again on a terminal,
// and a line at times in a pipe, a file or a terminal that cannot go back. nil
// shows nothing.
type progress struct {
	out    io.Writer
	redraw bool
	width  func() int
	now    func() time.Time
	began  time.Time
	next   time.Time // not before
}

// reached is how far it is.
type reached struct {
	share  float64 // 0 to 1
	beside string  // of the bar
	line   string  // instead of it
}

// redrawEvery is how often the bar is drawn.
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

// draw asks what to show, given the time since the beginning, if it is time to.
func (p *progress) draw(what func(took time.Duration) reached) {
	if p == nil {
		return
	}
	now := p.now()
	if now.Before(p.next) {
		return
	}
	s := what(now.Sub(p.began))
	if !p.redraw {
		p.next = now.Add(plainEvery)
		fmt.Fprintln(p.out, s.line)
		return
	}
	p.next = now.Add(redrawEvery)
	width := p.width()
	if width < 1 {
		width = 80
	}
	line := fmt.Sprintf("[%s] %3.0f %%  %s", bar(s.share, 24), 100*s.share, s.beside)
	fmt.Fprintf(p.out, "\r%s\x1b[K", loadgen.Short(line, min(width, 100)-1))
}

// close leaves the terminal as it was.
func (p *progress) close() {
	if p != nil && p.redraw {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}
