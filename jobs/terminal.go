package jobs

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/creack/pty"
)

const (
	// termKept is how much of a session's output is kept for whoever attaches,
	// and how far an attached reader may be behind before the program waits.
	termKept = 256 << 10
	// slowReader is how long the program waits for an attached reader that takes
	// nothing; then it is detached.
	slowReader = 30 * time.Second
	// slowProgram is how long input waits for a program that reads none.
	slowProgram = 2 * time.Second
	// drainTerminal is how long output may still arrive after the end: only a
	// descendant that hid from us can hold the terminal open.
	drainTerminal = time.Second
	maxCells      = 1000 // rows, and columns
)

// Terminal is our end of a session's pseudo-terminal: it keeps the newest output
// and hands it to one reader at a time.
type Terminal struct {
	master *os.File
	input  sync.Mutex // one piece after the other

	mu     sync.Mutex
	buf    []byte // output from start on
	start  int64
	last   time.Time // when bytes last went through, or somebody said he is there
	ended  bool
	reader *View         // nil = nobody is attached
	room   chan struct{} // 1: the reader took something, or left
}

// newTerminal returns a terminal and the program's end of it.
func newTerminal() (*Terminal, *os.File, error) {
	master, slave, err := pty.Open()
	if err != nil {
		return nil, nil, fmt.Errorf("pseudo-terminal: %w", err)
	}
	t := &Terminal{master: master, room: make(chan struct{}, 1), last: time.Now()}
	if err := t.Resize(24, 80); err != nil {
		master.Close()
		slave.Close()
		return nil, nil, err
	}
	return t, slave, nil
}

// close ends a terminal that no program got.
func (t *Terminal) close() {
	if t != nil {
		t.master.Close()
	}
}

// Resize tells the program how large the window is.
func (t *Terminal) Resize(rows, cols int) error {
	if rows < 1 || rows > maxCells || cols < 1 || cols > maxCells {
		return invalid("rows", "%d by %d, want 1 to %d each", rows, cols, maxCells)
	}
	if err := pty.Setsize(t.master, &pty.Winsize{Rows: uint16(rows), Cols: uint16(cols)}); err != nil {
		return fmt.Errorf("size of terminal: %w", err)
	}
	return nil
}

// Write is the user's input. It returns how much the program's terminal took
// within slowProgram: the rest may be given again.
func (t *Terminal) Write(b []byte) (int, error) {
	t.input.Lock()
	defer t.input.Unlock()
	t.touch()
	if err := t.master.SetWriteDeadline(time.Now().Add(slowProgram)); err != nil {
		return 0, fmt.Errorf("session has ended: %w", ErrFinished)
	}
	n, err := t.master.Write(b)
	switch {
	case err == nil || errors.Is(err, os.ErrDeadlineExceeded):
		return n, nil
	default:
		return n, fmt.Errorf("session has ended: %w", ErrFinished)
	}
}

func (t *Terminal) touch() {
	t.mu.Lock()
	t.last = time.Now()
	t.mu.Unlock()
}

// Active is when bytes last went through, or a heartbeat came.
func (t *Terminal) Active() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last
}

// Notice shows words of ours among the output. That is no activity.
func (t *Terminal) Notice(words string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.add([]byte("\r\n[aloft: " + words + "]\r\n"))
}

// add appends output and drops what is too old. The lock is held.
func (t *Terminal) add(b []byte) {
	t.buf = append(t.buf, b...)
	if over := len(t.buf) - termKept; over > termKept {
		t.buf = append(t.buf[:0], t.buf[over:]...)
		t.start += int64(over)
	}
	if t.reader != nil {
		wake(t.reader.wake)
	}
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // it will look anyway
	}
}

// pump takes the program's output until nobody can write any, and copies it to
// log. ended is closed when the program is gone.
func (t *Terminal) pump(ended <-chan struct{}, log func([]byte)) {
	var closing sync.WaitGroup
	over := make(chan struct{})
	closing.Go(func() {
		select {
		case <-ended:
			_ = t.master.SetReadDeadline(time.Now().Add(drainTerminal))
		case <-over:
		}
	})
	buf := make([]byte, 32<<10)
	for {
		n, err := t.master.Read(buf)
		if n > 0 {
			log(buf[:n])
			t.await(ended)
			t.mu.Lock()
			t.last = time.Now()
			t.add(buf[:n])
			t.mu.Unlock()
		}
		if err != nil { // EIO: the last writer has closed it
			break
		}
	}
	close(over)
	closing.Wait()
	t.mu.Lock()
	t.ended = true
	if t.reader != nil {
		wake(t.reader.wake)
	}
	t.mu.Unlock()
	t.master.Close()
}

// await returns when the reader is not too far behind: the program waits, as for
// any terminal that is slow. A reader that takes nothing is detached.
func (t *Terminal) await(ended <-chan struct{}) {
	timer := time.NewTimer(slowReader)
	defer timer.Stop()
	for {
		t.mu.Lock()
		v := t.reader
		behind := v != nil && t.start+int64(len(t.buf))-v.at > termKept
		t.mu.Unlock()
		if !behind {
			return
		}
		select {
		case <-t.room:
		case <-ended:
			return
		case <-timer.C:
			t.detach(v, errSlowReader)
			return
		}
	}
}

var (
	errSlowReader = errors.New("detached: it read nothing")
	errTakenOver  = errors.New("detached: the session was attached elsewhere")
)

// Attach makes the caller the one who reads the output, from what is kept of it
// on. Whoever read it before is detached.
func (t *Terminal) Attach() *View {
	t.mu.Lock()
	defer t.mu.Unlock()
	if old := t.reader; old != nil {
		old.err = errTakenOver
		wake(old.wake)
	}
	v := &View{t: t, at: max(t.start, t.start+int64(len(t.buf))-termKept), wake: make(chan struct{}, 1)}
	t.reader, t.last = v, time.Now()
	return v
}

func (t *Terminal) detach(v *View, why error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.reader == v {
		t.reader = nil
		v.err = why
		wake(v.wake)
		wake(t.room)
	}
}

// View reads a terminal's output.
type View struct {
	t    *Terminal
	wake chan struct{}
	at   int64
	err  error // why it was detached; under t.mu
}

// Next returns a copy of the output that there is now; over: nothing comes after
// it, since the program has ended or the view was detached.
func (v *View) Next() (piece []byte, over bool) {
	t := v.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if v.err != nil {
		return fmt.Appendf(nil, "\r\n[aloft: %v]\r\n", v.err), true
	}
	from := max(v.at, t.start) - t.start
	piece = append(piece, t.buf[from:]...)
	v.at = t.start + int64(len(t.buf))
	wake(t.room)
	return piece, t.ended
}

// Wake has something in it when there is more to read.
func (v *View) Wake() <-chan struct{} { return v.wake }

// Close detaches it; the program goes on.
func (v *View) Close() error {
	v.t.detach(v, os.ErrClosed)
	return nil
}
