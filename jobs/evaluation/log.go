package evaluation

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// rowLog keeps the rows that are done, so that an evaluation that is preempted,
// or killed at any byte, goes on with the others: one JSON object a line after a
// head that says of which evaluation they are.
type rowLog struct {
	f    *os.File // nil: nothing is kept
	path string
}

// logHead must be equal for rows to be of use.
type logHead struct {
	Version   int
	Set       string // SHA-256
	Subjects  []string
	MaxTokens int
}

// openLog returns the log in a folder, "" = none, and the rows that it holds. A
// log of another evaluation is begun anew; a last line that is not whole is cut.
func openLog(dir string, head logHead) (*rowLog, []outcome, error) {
	if dir == "" {
		return &rowLog{}, nil, nil
	}
	first, err := json.Marshal(head)
	if err != nil {
		return nil, nil, err
	}
	l := &rowLog{path: filepath.Join(dir, "rows.jsonl")}
	if l.f, err = os.OpenFile(l.path, os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return nil, nil, fmt.Errorf("evaluation: %w", err)
	}
	done, whole, err := readLog(l.f, first)
	if err == nil {
		err = l.f.Truncate(whole)
	}
	if err == nil {
		_, err = l.f.Seek(whole, io.SeekStart)
	}
	if err == nil && whole == 0 {
		_, err = l.f.Write(append(first, '\n'))
	}
	if err != nil {
		l.f.Close()
		return nil, nil, fmt.Errorf("evaluation: %w", err)
	}
	return l, done, nil
}

// readLog returns the rows and where the last whole line ends; 0 if the head is
// another.
func readLog(r io.Reader, head []byte) (done []outcome, whole int64, err error) {
	in := bufio.NewReader(r)
	for {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return done, whole, nil
		}
		if err != nil {
			return nil, 0, err
		}
		if whole == 0 {
			if !bytes.Equal(bytes.TrimSuffix(line, []byte{'\n'}), head) {
				return nil, 0, nil
			}
		} else {
			var o outcome
			if json.Unmarshal(line, &o) != nil { // a crash of the machine may leave anything
				return done, whole, nil
			}
			done = append(done, o)
		}
		whole += int64(len(line))
	}
}

// add appends a row.
func (l *rowLog) add(o outcome) error {
	if l.f == nil {
		return nil
	}
	line, err := json.Marshal(o)
	if err != nil {
		return err
	}
	if _, err = l.f.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("evaluation: row not kept: %w", err)
	}
	return nil
}

// sync makes what was added survive the machine.
func (l *rowLog) sync() error {
	if l.f == nil {
		return nil
	}
	return l.f.Sync()
}

func (l *rowLog) close() error {
	if l.f == nil {
		return nil
	}
	return l.f.Close()
}
