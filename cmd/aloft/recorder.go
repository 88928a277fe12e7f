package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"aloft/gateway"
	"aloft/loadgen/arrivals"
)

const (
	// recordQueue is how many rows may wait for the disk; more are lost, and
	// counted, rather than hold requests up.
	recordQueue = 8192
	// recordMost is the largest recording, in rows: a day at 50 requests/s, some
	// 700 MB.
	recordMost = arrivals.MaxPlan
	// recordFlush is how much of a recording a crash can cost.
	recordFlush = time.Second
	// recordName is a recording's name but for its end: when it began, UTC.
	recordName = "20060102T150405.000"
	// recordMark is the file whose being there says that a restart records on.
	recordMark = "on"
)

// recorder writes recordings into a folder: arrivals.Record as JSON lines, a
// file each time it is switched on. It implements gateway.Recorder.
type recorder struct {
	dir  string
	log  *slog.Logger
	most int64

	mu    sync.Mutex // of switching, and of state
	state gateway.Recording
	take  atomic.Pointer[recording] // nil = off
}

// recording is one file that is being written, by one goroutine.
type recording struct {
	since      time.Time
	rows       chan arrivals.Record
	stop       chan struct{}
	done       chan struct{}
	written    atomic.Int64
	lost       atomic.Int64
	full       atomic.Bool
	err        error // valid once done is closed
	file       *os.File
	name, path string
}

// newRecorder goes on recording if the last run did.
func newRecorder(dir string, log *slog.Logger) (*recorder, error) {
	r := &recorder{dir: dir, log: log, most: recordMost}
	if _, err := os.Stat(filepath.Join(dir, recordMark)); err == nil {
		if _, err := r.Record(true); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// observe takes note of a request to a model that has ended. It never waits. A
// nil recorder takes none.
func (r *recorder) observe(o *gateway.Outcome) {
	if r == nil {
		return
	}
	t := r.take.Load()
	if t == nil {
		return
	}
	row := arrivals.Record{Offset: max(0, o.Arrival.Sub(t.since)), Endpoint: string(o.Endpoint), Model: o.Model, Tenant: o.Tenant,
		Class: o.Class.String(), InputTokens: o.PromptTokens, OutputTokens: o.CompletionTokens}
	select {
	case t.rows <- row:
	default:
		t.lost.Add(1)
	}
}

// Recording implements gateway.Recorder.
func (r *recorder) Recording() gateway.Recording {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now()
}

func (r *recorder) now() gateway.Recording {
	if t := r.take.Load(); t != nil {
		r.state = gateway.Recording{On: !t.full.Load(), File: t.name, Since: t.since, Rows: t.written.Load(), Lost: t.lost.Load(), Full: t.full.Load()}
	}
	return r.state
}

// Record implements gateway.Recorder.
func (r *recorder) Record(on bool) (gateway.Recording, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.take.Load()
	if t != nil && (!on || t.full.Load()) {
		if err := r.end(t); err != nil {
			return r.state, err
		}
		t = nil
	}
	mark := filepath.Join(r.dir, recordMark)
	if !on {
		if err := os.Remove(mark); err != nil && !errors.Is(err, os.ErrNotExist) {
			return r.state, fmt.Errorf("stop recording: %w", err)
		}
		return r.state, nil
	}
	if t != nil {
		return r.now(), nil
	}
	t, err := r.begin()
	if err != nil {
		return r.state, fmt.Errorf("start recording: %w", err)
	}
	r.take.Store(t)
	if err := os.WriteFile(mark, nil, 0o600); err != nil {
		return r.now(), fmt.Errorf("recording runs, but a restart will not go on with it: %w", err)
	}
	return r.now(), nil
}

func (r *recorder) begin() (*recording, error) {
	now := time.Now()
	name := now.UTC().Format(recordName) + ".jsonl"
	f, err := os.OpenFile(filepath.Join(r.dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	t := &recording{since: now, file: f, name: filepath.Join(filepath.Base(r.dir), name), path: f.Name(),
		rows: make(chan arrivals.Record, recordQueue), stop: make(chan struct{}), done: make(chan struct{})}
	go func() { // until end
		defer close(t.done)
		t.err = t.write(r.most)
		if t.err != nil {
			r.log.Error("recording broke off", "file", t.path, "error", t.err)
		}
	}()
	return t, nil
}

// end waits until what was taken is on disk.
func (r *recorder) end(t *recording) error {
	r.take.Store(nil)
	close(t.stop)
	<-t.done
	full := t.full.Load() && t.err == nil
	r.state = gateway.Recording{File: t.name, Since: t.since, Rows: t.written.Load(), Lost: t.lost.Load(), Full: full}
	return t.err
}

// close ends what runs; the mark stays, so that the next start records on.
func (r *recorder) close(context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t := r.take.Load(); t != nil {
		return r.end(t)
	}
	return nil
}

// write puts rows into the file until stop, its largest size, or an error; what
// comes after the latter two is lost, and counted.
func (t *recording) write(most int64) (err error) {
	defer func() {
		if err != nil {
			t.full.Store(true)
		}
		err = errors.Join(err, t.file.Close())
	}()
	out := arrivals.NewWriter(t.file)
	tick := time.NewTicker(recordFlush)
	defer tick.Stop()
	put := func(row arrivals.Record) error {
		if t.written.Load() == most {
			t.full.Store(true)
			t.lost.Add(1)
			return nil
		}
		t.written.Add(1)
		return out.Write(row)
	}
	for {
		select {
		case row := <-t.rows:
			if err := put(row); err != nil {
				return err
			}
		case <-tick.C:
			if err := out.Flush(); err != nil {
				return err
			}
		case <-t.stop:
			for len(t.rows) > 0 {
				if err := put(<-t.rows); err != nil {
					return err
				}
			}
			return out.Flush()
		}
	}
}
