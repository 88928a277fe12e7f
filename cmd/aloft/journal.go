package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"aloft/arbiter"
)

// journal is the file of decisions, one JSON object a line. It is turned over
// once it is large, so it takes at most twice maxJournal.
type journal struct {
	mu   sync.Mutex
	path string
	file *os.File
	size int64
	past []arbiter.Record // what earlier servers wrote last
}

const (
	maxJournal = 32 << 20
	maxTail    = 4 << 20 // that a restart reads: some 10,000 decisions
)

// openJournal opens the file to go on with.
func openJournal(path string) (*journal, error) {
	tail, err := readTail(path, maxTail)
	if err != nil {
		return nil, fmt.Errorf("read journal: %w", err)
	}
	torn := len(tail) > 0 && tail[len(tail)-1] != '\n' // the last server was killed in the middle of a line
	if older, err := readTail(path+".1", maxTail-len(tail)); err == nil {
		tail = append(older, tail...)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	st, err := f.Stat()
	if err == nil && torn {
		_, err = f.WriteString("\n")
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("open journal: %w", err)
	}
	return &journal{path: path, file: f, size: st.Size(), past: arbiter.ParseJournal(tail)}, nil
}

// readTail reads at most so many bytes from the end of a file; a missing one is
// empty.
func readTail(path string, limit int) ([]byte, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if over := st.Size() - int64(limit); over > 0 {
		if _, err := f.Seek(over, io.SeekStart); err != nil {
			return nil, err
		}
	}
	return io.ReadAll(io.LimitReader(f, int64(limit)))
}

// Write implements io.Writer.
func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.size+int64(len(b)) > maxJournal {
		if err := j.turnOver(); err != nil {
			return 0, err
		}
	}
	n, err := j.file.Write(b)
	j.size += int64(n)
	return n, err
}

func (j *journal) turnOver() error {
	if err := os.Rename(j.path, j.path+".1"); err != nil {
		return err
	}
	f, err := os.OpenFile(j.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	j.file.Close()
	j.file, j.size = f, 0
	return nil
}

// Close closes the file.
func (j *journal) Close() error { return j.file.Close() }
