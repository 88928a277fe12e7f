package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"time"

	"aloft/backends/openai"
	"aloft/jobs"
)

// maxTail is how many lines can be asked for from the end, and tailBytes how far
// back they are looked for.
const (
	maxTail   = 100_000
	tailBytes = 8 << 20
)

// offsetHeader says how many bytes of the log came before the answer: who was cut
// off goes on with offset, that and what it has got since.
const offsetHeader = "X-Aloft-Log-Offset"

// jobLogs answers with what the job's program wrote, as plain text: all that is
// kept, or the last lines, or from an offset into all that was ever written on;
// and with follow also what it writes until the job ends.
func (s *Server) jobLogs(x *exchange) {
	j, err := s.ownJob(x)
	q := x.c.QueryArgs()
	follow, w := false, logWish{}
	if err == nil {
		follow, err = flag("follow", q.Peek("follow"))
	}
	if text := q.Peek("tail"); err == nil && len(text) > 0 {
		if w.tail, err = pageLimit(text, 0, maxTail); err != nil {
			err = invalid("tail", openai.CodeValue, "tail is %.40q, want 1 to %d lines", text, maxTail)
		}
	}
	if text := q.Peek("offset"); err == nil && len(text) > 0 {
		if w.offset, err = strconv.ParseInt(string(text), 10, 64); err != nil || w.offset < 0 || w.tail > 0 {
			err = invalid("offset", openai.CodeValue, "offset is %.40q, want bytes, and no tail beside it", text)
		}
	}
	var l *jobLog
	if err == nil {
		l, err = openLog(s.deps.Jobs.LogPath(j.ID), w)
	}
	if err != nil {
		s.fail(x, err)
		return
	}
	x.c.Response.Header.Set(offsetHeader, strconv.FormatInt(l.began, 10))
	l.done = func() (bool, error) {
		if !follow {
			return true, nil
		}
		return s.jobEnded(j.ID)
	}
	s.follow(x, "text/plain; charset=utf-8", l, nil)
}

// jobEnded reports whether nothing more comes of a job; one that was deleted has ended.
func (s *Server) jobEnded(id string) (bool, error) {
	j, err := s.deps.Jobs.Get(s.base, id)
	if errors.Is(err, jobs.ErrNotFound) {
		return true, nil
	}
	return j.State.Terminal(), err
}

// flag reads a query's true or false.
func flag(name string, text []byte) (bool, error) {
	switch string(text) {
	case "", "false", "0":
		return false, nil
	case "true", "1":
		return true, nil
	}
	return false, invalid(name, openai.CodeValue, "%s is %.40q, want true or false", name, text)
}

// jobLog reads a log file that grows and is rotated: its writer renames it and
// begins another under the same name.
type jobLog struct {
	path  string
	done  func() (bool, error) // asked when all is read: nothing more comes
	began int64                // bytes of the log before the first that is read
	rest  []*os.File           // open and not read to the end, the oldest first; the last one grows
	last  bool                 // done has said so: what came meanwhile is read once more
	look  time.Time            // when done was asked
	buf   []byte
}

// doneEvery is how often done is asked: it reads the store.
const doneEvery = 2 * followPoll

// logWish is where in a log to begin: zero = with what is kept.
type logWish struct {
	tail   int   // so many lines before the end
	offset int64 // after so many bytes of all that was ever written
}

// openLog opens the log at path where it is wished.
func openLog(path string, w logWish) (*jobLog, error) {
	l := &jobLog{path: path, buf: make([]byte, 32<<10)}
	err := l.open()
	switch {
	case err != nil:
	case w.tail > 0:
		err = l.skip(w.tail)
	case w.offset > l.began:
		err = l.seek(w.offset)
	}
	if err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("read log: %w", err)
	}
	return l, nil
}

// open opens what is kept. It begins again when the log is turned over meanwhile,
// which a fast writer may do a few times.
func (l *jobLog) open() error {
	for range 8 {
		_ = l.Close()
		l.began = 0
		for _, name := range []string{l.path + jobs.LogOlder, l.path} {
			f, err := os.Open(name)
			if errors.Is(err, fs.ErrNotExist) {
				continue // nothing was written, or rotated, yet
			}
			if err != nil {
				return err
			}
			l.rest = append(l.rest, f)
		}
		l.began = jobs.LogStart(l.path)
		same, err := l.current()
		if err != nil || same {
			return err
		}
	}
	return nil
}

// current reports whether the log's newest file is the last one open, and takes
// what the older one holds off where the reading begins.
func (l *jobLog) current() (bool, error) {
	if len(l.rest) == 0 {
		return true, nil
	}
	now, err := os.Stat(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // being turned over
	}
	is, err2 := l.rest[len(l.rest)-1].Stat()
	if err = errors.Join(err, err2); err != nil || !os.SameFile(now, is) {
		return false, err
	}
	if len(l.rest) == 2 {
		older, err := l.rest[0].Stat()
		if err != nil {
			return false, err
		}
		l.began -= older.Size()
	}
	return true, nil
}

// seek goes to an offset into all that was ever written, or to the end.
func (l *jobLog) seek(offset int64) error {
	for len(l.rest) > 0 {
		st, err := l.rest[0].Stat()
		if err != nil {
			return err
		}
		if offset < l.began+st.Size() || len(l.rest) == 1 {
			at := min(offset-l.began, st.Size())
			l.began += at
			_, err = l.rest[0].Seek(at, io.SeekStart)
			return err
		}
		l.began += st.Size()
		_ = l.rest[0].Close()
		l.rest = l.rest[1:]
	}
	return nil
}

// skip goes to so many lines before the end.
func (l *jobLog) skip(lines int) error {
	left := tailBytes
	for i := len(l.rest) - 1; i >= 0; i-- {
		at, found, err := back(l.rest[i], lines, left)
		if err != nil {
			return err
		}
		end, err := l.rest[i].Seek(0, io.SeekEnd)
		if err == nil {
			_, err = l.rest[i].Seek(at, io.SeekStart)
		}
		if err != nil {
			return err
		}
		lines, left = lines-found, left-int(end-at)
		if lines <= 0 || left <= 0 || at > 0 {
			for _, f := range l.rest[:i] {
				if st, err := f.Stat(); err == nil {
					l.began += st.Size()
				}
				_ = f.Close()
			}
			l.rest, l.began = l.rest[i:], l.began+at
			return nil
		}
	}
	return nil
}

// back finds where the last lines of a file begin, at most so many bytes before
// its end, and how many there are. A line may lack its end.
func back(f *os.File, lines, most int) (at int64, found int, err error) {
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, 0, err
	}
	block := make([]byte, 32<<10)
	for at = end; at > 0; {
		n := min(int64(len(block)), at)
		if _, err := f.ReadAt(block[:n], at-n); err != nil {
			return 0, 0, err
		}
		for text := block[:n]; ; {
			i := bytes.LastIndexByte(text, '\n')
			if i < 0 {
				break
			}
			if begin := at - n + int64(i) + 1; begin < end { // the newline at the very end begins no line
				if found++; found == lines {
					return begin, found, nil
				}
			}
			text = text[:i]
		}
		if at -= n; end-at >= int64(most) {
			return at, lines, nil // far enough: in the middle of a line
		}
	}
	if end > 0 {
		found++ // the first line follows no newline
	}
	return 0, found, nil
}

// next implements source.
func (l *jobLog) next() ([]byte, bool, error) {
	for {
		for len(l.rest) > 0 {
			n, err := l.rest[0].Read(l.buf)
			if n > 0 {
				return l.buf[:n], false, nil
			}
			if err != io.EOF {
				return nil, false, fmt.Errorf("read log: %w", err)
			}
			if len(l.rest) == 1 {
				break
			}
			_ = l.rest[0].Close()
			l.rest = l.rest[1:]
		}
		if more, err := l.turn(); err != nil || more {
			if err != nil {
				return nil, false, err
			}
			continue
		}
		if l.last {
			return nil, true, nil
		}
		if now := time.Now(); now.Sub(l.look) >= doneEvery {
			l.look = now
			over, err := l.done()
			if err != nil {
				return nil, false, err
			}
			if l.last = over; over {
				continue
			}
		}
		return nil, false, nil
	}
}

// turn goes over to the file that has taken the log's place, and reports whether
// there is something else to read. What is rotated away between two looks is
// still open; what was rotated away twice is found under its older name.
func (l *jobLog) turn() (bool, error) {
	now, err := os.Open(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("open log: %w", err)
	}
	if len(l.rest) == 0 {
		l.rest = append(l.rest, now)
		return true, nil
	}
	old := l.rest[0]
	was, err := old.Stat()
	is, err2 := now.Stat()
	if err = errors.Join(err, err2); err != nil {
		_ = now.Close()
		return false, fmt.Errorf("read log: %w", err)
	}
	if os.SameFile(was, is) {
		_ = now.Close()
		at, err := old.Seek(0, io.SeekCurrent)
		if err == nil && is.Size() < at { // cut where it lies
			_, err = old.Seek(0, io.SeekStart)
			return true, err
		}
		return false, err
	}
	between, err := os.Open(l.path + jobs.LogOlder)
	if err == nil {
		if before, err := between.Stat(); err == nil && !os.SameFile(before, was) {
			l.rest = append(l.rest, between)
		} else {
			_ = between.Close()
		}
	}
	l.rest = append(l.rest, now) // what the old one still got is read first
	return true, nil
}

// Close implements source.
func (l *jobLog) Close() error {
	var errs []error
	for _, f := range l.rest {
		errs = append(errs, f.Close())
	}
	l.rest = nil
	return errors.Join(errs...)
}
