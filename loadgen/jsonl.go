package loadgen

import (
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"
)

// Line is one request in Options.Lines: the times in milliseconds from the start
// of the run (its intended start among them), absent where there was none.
type Line struct {
	Workload   string      `json:"workload"`
	Phase      string      `json:"phase"`
	Tenant     string      `json:"tenant,omitempty"`
	Outcome    Outcome     `json:"outcome"`
	Intended   float64     `json:"intended_ms"`
	Sent       *float64    `json:"sent_ms,omitempty"`
	Connect    float64     `json:"connect_took_ms,omitempty"` // of the time after sent: a new connection, TLS included
	FirstByte  float64     `json:"first_byte_ms,omitempty"`
	Role       float64     `json:"role_ms,omitempty"`
	FirstToken float64     `json:"first_token_ms,omitempty"`
	Visible    float64     `json:"visible_ms,omitempty"`
	LastToken  float64     `json:"last_token_ms,omitempty"`
	End        float64     `json:"end_ms"`
	Lateness   float64     `json:"worst_token_late_ms,omitempty"`
	Tokens     *LineTokens `json:"tokens,omitempty"`
	Marks      []string    `json:"marks,omitempty"` // warm_up, waited, unfinished, retry_after, abandoned
	Retries    int         `json:"retries,omitempty"`
	Problem    string      `json:"problem,omitempty"`
}

// LineTokens are the tokens of a request.
type LineTokens struct {
	Input      int  `json:"input_planned,omitempty"`
	Prompt     int  `json:"prompt,omitempty"`
	Completion int  `json:"completion,omitempty"`
	Chunks     int  `json:"chunks,omitempty"`
	Estimated  bool `json:"estimated,omitempty"` // no usage: completion is the number of chunks
}

// line is what Lines says of a request.
func (s *sample) line(w *Workload, phase string) Line {
	out := Line{
		Workload: w.Name, Phase: phase, Outcome: s.outcome, Intended: ms(s.intended), Connect: ms(s.connect), FirstByte: ms(s.byte), Role: ms(s.role),
		FirstToken: ms(s.first), Visible: ms(s.visible), LastToken: ms(s.last), End: ms(s.end), Lateness: ms(s.worst),
		Retries: s.retries, Problem: s.problem,
	}
	if s.tenant < len(w.Tenants) {
		out.Tenant = w.Tenants[s.tenant].Name
	}
	if s.wasSent {
		sent := ms(s.sent)
		out.Sent = &sent
	}
	if s.tokens != (tokens{}) {
		out.Tokens = &LineTokens{s.input, s.prompt, s.completion, s.chunks, s.estimated}
	}
	for _, m := range []struct {
		is   bool
		name string
	}{{s.warm, "warm_up"}, {s.waited, "waited"}, {s.unfinished, "unfinished"}, {s.retryAfter, "retry_after"}, {s.abandoned, "abandoned"}} {
		if m.is {
			out.Marks = append(out.Marks, m.name)
		}
	}
	return out
}

const (
	blockSize  = 64 << 10 // lines are written in blocks of so many bytes
	mostBlocks = 64       // that wait for the writer: 4 MiB
	// lastWrite is how long the end of a run waits for a writer that hangs.
	lastWrite = 5 * time.Second
)

// lines writes what the collector gives it from a goroutine of its own, so that
// a slow disk holds up neither the collector nor, behind it, the pacing. A nil
// one drops everything.
type lines struct {
	out     io.Writer
	block   []byte
	inBlock int64
	blocks  chan block
	done    chan struct{}
	lost    int64

	mu      sync.Mutex // of what the goroutine found
	written int64
	failed  int64 // not written since the writer had failed
	err     error
}

type block struct {
	text  []byte
	lines int64
}

func newLines(out io.Writer) *lines {
	l := &lines{out: out, blocks: make(chan block, mostBlocks), done: make(chan struct{})}
	go l.write()
	return l
}

// write takes blocks until there are no more, and after an error still.
func (l *lines) write() {
	defer close(l.done)
	for b := range l.blocks {
		l.mu.Lock()
		err := l.err
		l.mu.Unlock()
		if err == nil {
			_, err = l.out.Write(b.text)
		}
		l.mu.Lock()
		if l.err = err; err == nil {
			l.written += b.lines
		} else {
			l.failed += b.lines
		}
		l.mu.Unlock()
	}
}

func (l *lines) add(s *sample, w *Workload, phase string) {
	if l == nil {
		return
	}
	text, err := json.Marshal(s.line(w, phase))
	if err != nil {
		panic("BUG: a line of a request is no JSON: " + err.Error())
	}
	l.block = append(append(l.block, text...), '\n')
	if l.inBlock++; len(l.block) >= blockSize {
		l.flush()
	}
}

// flush hands the block over, or loses it when too many wait already.
func (l *lines) flush() {
	if l == nil || l.inBlock == 0 {
		return
	}
	select {
	case l.blocks <- block{l.block, l.inBlock}:
	default:
		l.lost += l.inBlock
	}
	l.block, l.inBlock = nil, 0
}

// close writes what is left. A writer that hangs is waited for only so long; its
// goroutine ends when it does.
func (l *lines) close() {
	if l == nil {
		return
	}
	last := time.NewTimer(lastWrite)
	defer last.Stop()
	if l.inBlock > 0 {
		select {
		case l.blocks <- block{l.block, l.inBlock}:
		case <-last.C:
			last.Reset(0)
			l.lost += l.inBlock
		}
		l.block, l.inBlock = nil, 0
	}
	close(l.blocks)
	select {
	case <-l.done:
	case <-last.C:
		l.mu.Lock()
		l.err = fmt.Errorf("the writer hung for %v at the end", lastWrite)
		l.mu.Unlock()
	}
}

// result is how many lines were written and how many were lost, for want of room
// or since the writer failed, and how it did.
func (l *lines) result() (written, lost int64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.written, l.lost + l.failed, l.err
}
