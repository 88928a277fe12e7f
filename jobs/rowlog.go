package jobs

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/tidwall/gjson"

	"aloft/backends/openai"
)

// outcomeRow is what became of one row.
type outcomeRow struct {
	row      int
	id       string // batch_req_...
	customID []byte // raw JSON string
	result   Result // Status 0 = there was no reply
	code     string // why there was none: "batch_expired", "row_failed", ...
	message  string
}

func (o outcomeRow) ok() bool { return o.result.Status >= 200 && o.result.Status < 300 }

// rowLog appends rows to a batch's two local files. Nothing counts before
// commit: the files are synced first, then the offsets are stored; bytes beyond
// the stored offsets are cut off when it is opened. So a row is in the files
// exactly once, wherever the process died.
type rowLog struct {
	files   [2]*os.File // output, errors
	pending [2][]byte   // lines not yet written
	at      RowLog      // as it will be after the next commit
	counts  Counts
	usage   Usage
	rows    int // since the last commit
}

// errLost is a batch whose local files no longer hold what was committed.
var errLost = errors.New("committed output is gone from the data folder")

func openRowLog(dir string, b *Batch) (*rowLog, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	l := &rowLog{at: b.Log, counts: b.Counts, usage: b.Usage}
	l.at.Done = make([]byte, (b.Counts.Total+7)/8)
	copy(l.at.Done, b.Log.Done)
	for i, committed := range []int64{b.Log.Output, b.Log.Errors} {
		f, err := os.OpenFile(filepath.Join(dir, rowFiles[i]), os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			l.close()
			return nil, err
		}
		l.files[i] = f
		st, err := f.Stat()
		if err == nil && st.Size() < committed {
			err = fmt.Errorf("%s has %d of %d bytes: %w", f.Name(), st.Size(), committed, errLost)
		}
		if err == nil {
			err = f.Truncate(committed)
		}
		if err != nil {
			l.close()
			return nil, err
		}
	}
	return l, nil
}

var rowFiles = [2]string{"output.jsonl", "errors.jsonl"}

func (l *rowLog) close() {
	for _, f := range l.files {
		if f != nil {
			f.Close()
		}
	}
}

func (l *rowLog) done(row int) bool { return l.at.Done[row/8]&(1<<(row%8)) != 0 }

func (l *rowLog) buffered() int { return len(l.pending[0]) + len(l.pending[1]) }

func (l *rowLog) add(o outcomeRow) {
	if l.done(o.row) {
		panic(fmt.Sprintf("BUG: row %d of a batch ended twice", o.row))
	}
	l.at.Done[o.row/8] |= 1 << (o.row % 8)
	l.rows++
	if o.ok() {
		l.pending[0] = appendRow(l.pending[0], o)
		l.counts.Completed++
		l.usage.add(o.result)
		return
	}
	l.pending[1] = appendRow(l.pending[1], o)
	l.counts.Failed++
}

// commit makes everything added so far permanent; store puts the offsets into
// the batch's record. After an error the log must be opened anew.
func (l *rowLog) commit(store func(RowLog, Counts, Usage) error) error {
	if l.rows == 0 {
		return nil
	}
	for i, at := range []*int64{&l.at.Output, &l.at.Errors} {
		if len(l.pending[i]) == 0 {
			continue
		}
		if _, err := l.files[i].WriteAt(l.pending[i], *at); err != nil {
			return err
		}
		if err := l.files[i].Sync(); err != nil {
			return err
		}
		*at += int64(len(l.pending[i]))
		l.pending[i] = l.pending[i][:0]
	}
	l.rows = 0
	return store(l.at, l.counts, l.usage)
}

// add takes a reply's usage, by the names that any of the endpoints gives it.
func (u *Usage) add(r Result) {
	got, _ := openai.ScanUsage(r.Body)
	total := cmp.Or(r.Tokens, got.Total)
	u.Prompt += int64(got.Prompt)
	u.Completion += int64(got.Completion)
	u.Total += int64(max(total, got.Prompt+got.Completion))
}

// appendRow renders one line of an output or error file, as OpenAI's batch guide shows it.
func appendRow(dst []byte, o outcomeRow) []byte {
	dst = append(dst, `{"id":`...)
	dst = appendString(dst, o.id)
	dst = append(dst, `,"custom_id":`...)
	dst = append(dst, o.customID...)
	if o.result.Status == 0 {
		dst = append(dst, `,"response":null,"error":{"code":`...)
		dst = appendString(dst, o.code)
		dst = append(dst, `,"message":`...)
		dst = appendString(dst, o.message)
		return append(dst, "}}\n"...)
	}
	dst = fmt.Appendf(dst, `,"response":{"status_code":%d,"request_id":`, o.result.Status)
	dst = appendString(dst, o.result.RequestID)
	dst = append(dst, `,"body":`...)
	dst = appendBody(dst, o.result.Body)
	return append(dst, "},\"error\":null}\n"...)
}

// appendBody appends a reply as one line of JSON: a proxy's HTML page becomes a string.
func appendBody(dst, body []byte) []byte {
	if bytes.IndexByte(body, '\n') < 0 && gjson.ValidBytes(body) {
		return append(dst, bytes.TrimSpace(body)...)
	}
	buf := bytes.NewBuffer(dst)
	if json.Compact(buf, body) == nil { // on an error it leaves buf as it was
		return buf.Bytes()
	}
	return appendString(dst, string(body))
}

func appendString(dst []byte, s string) []byte {
	b, _ := json.Marshal(s) // a string always marshals
	return append(dst, b...)
}
