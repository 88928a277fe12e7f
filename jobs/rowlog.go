package jobs

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

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
//
// Rows are added by whoever called them, commits are made by one goroutine. What
// waits for a commit is bounded: a slow disk slows the rows down.
type rowLog struct {
	files   [2]*os.File // output, errors
	size    [2]int64    // committed bytes of them; belongs to the committer
	spare   [2][]byte   // the committer's, for the next lines
	wake    chan struct{}
	blocked sync.Cond // until lines are taken, or the log has failed

	mu     sync.Mutex
	lines  [2][]byte // not yet written
	rows   int       // in them
	at     RowLog    // with the rows in them
	counts Counts
	usage  Usage
	failed bool
}

// errLost is a batch whose local files no longer hold what was committed.
var errLost = errors.New("committed output is gone from the data folder")

func openRowLog(dir string, b *Batch) (*rowLog, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	l := &rowLog{at: b.Log, counts: b.Counts, usage: b.Usage, size: [2]int64{b.Log.Output, b.Log.Errors}, wake: make(chan struct{}, 1)}
	l.blocked.L = &l.mu
	l.at.Done = make([]byte, (b.Counts.Total+7)/8)
	copy(l.at.Done, b.Log.Done)
	for i, committed := range l.size {
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
	if l.size == [2]int64{} { // the names of both, before anything in them counts
		if err := Sync(dir, filepath.Dir(filepath.Dir(dir))); err != nil {
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

// done reports whether the row is in the log, committed or not.
func (l *rowLog) done(row int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.at.has(row)
}

func (l RowLog) has(row int) bool { return l.Done[row/8]&(1<<(row%8)) != 0 }

// maxLines bounds the lines that wait for a commit, in bytes; the last one may
// be longer.
const maxLines = 2 * commitBytes

// add takes a row, as soon as there is room. One that comes to a log that has
// failed is dropped: it runs again.
func (l *rowLog) add(o outcomeRow) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.buffered() >= maxLines && !l.failed {
		l.blocked.Wait()
	}
	if l.failed {
		return
	}
	if l.at.has(o.row) {
		panic(fmt.Sprintf("BUG: row %d of a batch ended twice", o.row))
	}
	l.at.Done[o.row/8] |= 1 << (o.row % 8)
	l.rows++
	if o.ok() {
		l.lines[0] = appendRow(l.lines[0], o)
		l.counts.Completed++
		l.usage.add(o.result)
	} else {
		l.lines[1] = appendRow(l.lines[1], o)
		l.counts.Failed++
	}
	if l.buffered() >= commitBytes {
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
}

func (l *rowLog) buffered() int { return len(l.lines[0]) + len(l.lines[1]) }

// fail lets nobody wait for a commit that does not come.
func (l *rowLog) fail() {
	l.mu.Lock()
	l.failed = true
	l.mu.Unlock()
	l.blocked.Broadcast()
}

// commit makes everything added so far permanent; store puts the offsets into
// the batch's record. After an error the log must be opened anew.
func (l *rowLog) commit(store func(RowLog, Counts, Usage) error) error {
	l.mu.Lock()
	if l.rows == 0 {
		l.mu.Unlock()
		return nil
	}
	lines, at, counts, usage := l.lines, l.at.clone(), l.counts, l.usage
	l.lines, l.rows = l.spare, 0
	l.mu.Unlock()
	l.blocked.Broadcast()
	for i := range lines {
		if len(lines[i]) > 0 {
			if _, err := l.files[i].WriteAt(lines[i], l.size[i]); err != nil {
				return err
			}
			if err := l.files[i].Sync(); err != nil {
				return err
			}
			l.size[i] += int64(len(lines[i]))
		}
		if l.spare[i] = lines[i][:0]; cap(lines[i]) > 2*maxLines {
			l.spare[i] = nil // one long row
		}
	}
	at.Output, at.Errors = l.size[0], l.size[1]
	return store(at, counts, usage)
}

// clone copies the log's state: the bits keep changing under their owner.
func (l RowLog) clone() RowLog {
	l.Done = bytes.Clone(l.Done)
	return l
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
