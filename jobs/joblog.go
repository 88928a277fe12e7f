package jobs

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"unicode"
)

// Beside a log at PATH lie what was written before it, and which of the two files
// begins where in all that was ever written.
const (
	LogOlder = ".1"
	logTurn  = ".at"
)

// cappedLog is a log file that is turned over once: the newest lines are kept, in
// two files of at most half of what is allowed each.
type cappedLog struct {
	path string
	most int64 // bytes of one file

	mu   sync.Mutex
	f    *os.File
	from int64 // bytes that were written before the file
	size int64
	last []byte // the newest bytes of this run, at most maxLast
}

// maxLast bounds what is kept of a program's last words: a line that a person reads.
const maxLast = 300

func openLog(path string, most int64) (*cappedLog, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("job log: %w", err)
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("job log: %w", err)
	}
	return &cappedLog{path: path, most: max(1, most), f: f, from: LogStart(path), size: st.Size()}, nil
}

// LogStart is how many bytes were written before the log at path begins, those
// of its older file and those that are gone. A file is known by its inode: the
// note is written before the file is turned over, and holds before and after.
func LogStart(path string) int64 {
	var inode uint64
	var from int64
	text, noted := os.ReadFile(path + logTurn)
	if noted == nil {
		_, noted = fmt.Sscan(string(text), &inode, &from)
	}
	older, err := os.Stat(path + LogOlder)
	if err == nil && (noted != nil || inodeOf(older) == inode) {
		return from + older.Size()
	}
	return from
}

func inodeOf(st os.FileInfo) uint64 {
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		return sys.Ino
	}
	return 0
}

// turn begins a new file; where that fails the old one grows.
func (c *cappedLog) turn() {
	st, err := c.f.Stat()
	if err == nil {
		note := c.path + logTurn
		if err = os.WriteFile(note+".tmp", fmt.Appendln(nil, inodeOf(st), c.from), 0o600); err == nil {
			err = os.Rename(note+".tmp", note)
		}
	}
	if err == nil {
		err = os.Rename(c.path, c.path+LogOlder)
	}
	if err != nil {
		return
	}
	if f, err := os.OpenFile(c.path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600); err == nil {
		c.f.Close()
		c.f, c.from, c.size = f, c.from+c.size, 0
	}
}

// Write never fails: a full disk must cost log lines, not the job.
func (c *cappedLog) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(b)
	c.last = append(c.last, b[max(0, n-maxLast):]...)
	c.last = append(c.last[:0], c.last[max(0, len(c.last)-maxLast):]...)
	if int64(n) > c.most {
		b = b[int64(n)-c.most:]
	}
	if c.size+int64(len(b)) > c.most && c.size > 0 {
		c.turn()
	}
	wrote, _ := c.f.Write(b)
	c.size += int64(wrote)
	return n, nil
}

// lastLine is the last line of this run that says anything, without what a
// terminal would act on.
func (c *cappedLog) lastLine() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	lines := strings.FieldsFunc(strings.ToValidUTF8(string(c.last), ""), func(r rune) bool { return r == '\n' || r == '\r' })
	for _, l := range slices.Backward(lines) {
		l = strings.Map(func(r rune) rune {
			if !unicode.IsPrint(r) {
				return -1
			}
			return r
		}, l)
		if l = strings.TrimSpace(l); l != "" {
			return l
		}
	}
	return ""
}

// Close closes the file.
func (c *cappedLog) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.f.Close()
}
