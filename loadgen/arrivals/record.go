package arrivals

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
)

// Record is one request that came: when, of what kind and how large. It has no
// field for text, so that a recording can be kept and handed on.
type Record struct {
	Offset       time.Duration `json:"offset_ns"` // since the recording began
	Endpoint     string        `json:"endpoint"`  // chat, completions, embeddings
	Model        string        `json:"model,omitempty"`
	Tenant       string        `json:"tenant,omitempty"`
	Class        string        `json:"class,omitempty"` // interactive, standard, offline
	InputTokens  int           `json:"input_tokens"`
	OutputTokens int           `json:"output_tokens"`
	// SharedTokens is how much of the input, from its begin, an earlier request
	// began with too. It does not say which one: a recording's texts are drawn
	// without it, and only a trace with blocks has them sent again.
	SharedTokens int `json:"shared_tokens,omitempty"`

	text uint32 // number of its text, of a trace that says which requests begin alike; 0 = it does not
}

// maxLine bounds a line of a recording, in bytes; ours have some 150.
const maxLine = 64 << 10

// maxOffset is the longest recording; sums with longer offsets could overflow.
const maxOffset = 10 * 366 * 24 * time.Hour

func (r Record) check() error {
	if r.Offset < 0 || r.InputTokens < 0 || r.OutputTokens < 0 || r.SharedTokens < 0 {
		return fmt.Errorf("offset %v, %d input, %d output and %d shared tokens: none may be negative",
			r.Offset, r.InputTokens, r.OutputTokens, r.SharedTokens)
	}
	if max(r.InputTokens, r.OutputTokens, r.SharedTokens) > maxSize {
		return fmt.Errorf("%d input, %d output and %d shared tokens: at most %d are meant",
			r.InputTokens, r.OutputTokens, r.SharedTokens, maxSize)
	}
	if r.Offset > maxOffset {
		return fmt.Errorf("offset %v, at most %v is meant", r.Offset, maxOffset)
	}
	if r.Endpoint == "" {
		return errors.New("no endpoint")
	}
	return nil
}

// Writer writes records as JSON lines. It buffers: call Flush at the end. It is
// for one goroutine at a time.
type Writer struct {
	buf *bufio.Writer
	enc *json.Encoder
}

// NewWriter returns a Writer onto w.
func NewWriter(w io.Writer) *Writer {
	buf := bufio.NewWriter(w)
	return &Writer{buf: buf, enc: json.NewEncoder(buf)}
}

// Write appends one record.
func (w *Writer) Write(r Record) error {
	if err := r.check(); err != nil {
		return fmt.Errorf("arrivals: write record: %w", err)
	}
	return w.enc.Encode(r)
}

// Flush hands what is buffered to the underlying writer.
func (w *Writer) Flush() error { return w.buf.Flush() }

// ErrCut says that a recording's last line is not whole: who wrote it was killed.
// All records before it are good.
var ErrCut = errors.New("the last line is cut off")

// Read reads a recording and sorts it by time (a server writes a record when
// the request ends, so a recording is not sorted). limit bounds the number of
// records; 0 means MaxPlan. On an error it returns what came before it, so that
// a recording cut off by a crash is still of use: its error is an ErrCut.
func Read(r io.Reader, limit int) ([]Record, error) {
	if limit <= 0 || limit > MaxPlan {
		limit = MaxPlan
	}
	lines := bufio.NewScanner(unmarked(r))
	lines.Buffer(make([]byte, 0, 4<<10), maxLine)
	var records []Record
	var err error
	ends := false // the last line with a newline
	lines.Split(func(data []byte, atEOF bool) (int, []byte, error) {
		advance, line, err := bufio.ScanLines(data, atEOF)
		ends = advance > 0 && data[advance-1] == '\n'
		return advance, line, err
	})
	for n := 1; err == nil && lines.Scan(); n++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		if len(records) == limit {
			err = fmt.Errorf("arrivals: line %d: more than %d records", n, limit)
			break
		}
		var rec Record
		if err = json.Unmarshal(line, &rec); err == nil {
			err = rec.check()
		} else if !ends && len(records) > 0 {
			err = fmt.Errorf("%w: %w", ErrCut, err)
		}
		if err != nil {
			err = fmt.Errorf("arrivals: line %d: %w", n, err)
			break
		}
		records = append(records, rec)
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		err = fmt.Errorf("arrivals: a line is longer than %d bytes: this is no recording, which has one request a line", maxLine)
	} else if err == nil && lines.Err() != nil {
		err = fmt.Errorf("arrivals: read recording: %w", lines.Err())
	}
	sortByTime(records)
	return records, err
}

func sortByTime(records []Record) {
	slices.SortStableFunc(records, func(a, b Record) int { return cmp.Compare(a.Offset, b.Offset) })
}
