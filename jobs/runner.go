package jobs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"aloft/backends"
)

// Why a batch's rows stop before their end.
var (
	errCancelled = errors.New("batch was cancelled")
	errExpired   = errors.New("completion window is over")
)

const (
	commitEvery = 250 * time.Millisecond // longest time an answered row is not yet permanent
	commitBytes = 1 << 20                // output that is worth a commit at once
)

// batchRun is an unfinished batch in this process.
type batchRun struct {
	input   string // file id
	cancel  context.CancelCauseFunc
	trouble string // what keeps it from going on, "" = nothing; see Job.Error
}

// reserveBatch makes room for a batch; serveBatch or dropBatch must follow.
func (m *Manager) reserveBatch(id, input string, most int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return ErrClosed
	case len(m.batches) >= most:
		return fmt.Errorf("%d unfinished batches: %w", most, backends.ErrOverloaded)
	}
	m.batches[id] = &batchRun{input: input, cancel: func(error) {}}
	m.work.Add(1) // until dropBatch
	return nil
}

func (m *Manager) dropBatch(id string) {
	m.mu.Lock()
	delete(m.batches, id)
	m.mu.Unlock()
	m.work.Done()
}

// serveBatch carries the batch to a final status in the background.
func (m *Manager) serveBatch(id string) {
	ctx, cancel := context.WithCancelCause(m.base)
	m.mu.Lock()
	m.batches[id].cancel = cancel
	m.mu.Unlock()
	go func() {
		defer m.dropBatch(id)
		defer cancel(nil)
		// What fails here is the store, the disk or the bucket. Everything goes
		// on from what is committed, so the answer is to wait and try again.
		for try := 0; m.base.Err() == nil; try++ {
			err := m.stepBatch(ctx, id)
			if err == nil || errors.Is(err, ErrNotFound) || m.base.Err() != nil {
				return // ended, its record deleted, or closing
			}
			m.suffers(id, "interrupted, tried again until its window is over; what is committed is kept: "+err.Error())
			select {
			case <-time.After(pause(m.opt.Retry, try, 0)):
			case <-m.base.Done():
			}
		}
	}()
}

// stepBatch takes the batch from status to status; nil = it has ended or we are
// closing. ctx ends when the batch is cancelled, m.base when we close.
func (m *Manager) stepBatch(ctx context.Context, id string) error {
	for m.base.Err() == nil {
		j, err := m.opt.Store.Get(m.base, id)
		if err != nil {
			return err
		}
		switch b := j.Batch; b.Status {
		case Validating:
			err = m.validateBatch(ctx, b)
		case InProgress:
			err = m.runRows(ctx, b)
		case Cancelling:
			err = m.endBatch(b, BatchCancelled, "batch_cancelled", errCancelled.Error())
		case Finalizing:
			err = m.endBatch(b, Completed, "", "")
		default:
			os.RemoveAll(m.batchDir(id))
			return nil
		}
		if permanent(err) {
			err = m.failBatch(id, LineError{Code: "input_lost", Message: err.Error()})
		}
		if err != nil {
			return err
		}
		m.suffers(id, "")
	}
	return nil
}

// suffers notes what keeps a batch from going on, for whoever looks at its job,
// or that nothing does any more. It is not stored with the record: most often the
// store or its disk is what fails.
func (m *Manager) suffers(id, trouble string) {
	m.mu.Lock()
	b := m.batches[id]
	same := b == nil || b.trouble == trouble
	if !same {
		b.trouble = trouble
	}
	m.mu.Unlock()
	if same {
		return
	}
	e := Event{Level: LevelWarn, Kind: "interrupted", Message: trouble}
	if trouble == "" {
		e = Event{Kind: "interrupted", Message: "goes on"}
	} else {
		m.log.Warn("batch interrupted", "batch", id, "error", trouble)
	}
	_ = m.AddEvent(context.Background(), id, e) // a disk that is full has no room for it
}

// permanent tells a fault that no waiting cures.
func permanent(err error) bool { return errors.Is(err, errLost) }

// batchStep stores a change of the batch unless its status is no longer from.
func (m *Manager) batchStep(id string, from BatchStatus, change func(*Job, time.Time)) error {
	_, err := m.update(context.Background(), id, func(j *Job) error {
		if j.Batch.Status != from {
			return errUnchanged
		}
		now := time.Now()
		change(j, now)
		if b := j.Batch; b.Status.Terminal() {
			j.step(b.Status.ended(), now)
		}
		return nil
	})
	return err
}

func (m *Manager) failBatch(id string, faults ...LineError) error {
	_, err := m.update(context.Background(), id, func(j *Job) error {
		b := j.Batch
		if b.Status.Terminal() {
			return errUnchanged
		}
		now := time.Now()
		b.Errors = faults
		if b.Status == Cancelling {
			b.enter(BatchCancelled, now)
		} else {
			b.enter(BatchFailed, now)
		}
		j.step(b.Status.ended(), now)
		j.Error = faults[0].Message
		return nil
	})
	return err
}

func (m *Manager) validateBatch(ctx context.Context, b *Batch) error {
	in, err := m.openInput(ctx, b)
	if err != nil {
		return unlessEnded(ctx, err)
	}
	defer in.Close()
	v, err := validate(ctx, in, b.Endpoint)
	if err != nil {
		return unlessEnded(ctx, err)
	}
	if len(v.Errors) > 0 {
		return m.failBatch(b.ID, v.Errors...)
	}
	return m.batchStep(b.ID, Validating, func(j *Job, now time.Time) {
		j.Model, j.Batch.Model = v.Model, v.Model
		j.Batch.Counts.Total = v.Rows
		j.Progress.Total = int64(v.Rows)
		j.Batch.enter(InProgress, now)
	})
}

// unlessEnded drops an error that is only the echo of ctx's end.
func unlessEnded(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (m *Manager) openInput(ctx context.Context, b *Batch) (io.ReadCloser, error) {
	in, err := m.openBlob(ctx, b.InputFile)
	if errors.Is(err, ErrNotFound) {
		return nil, fmt.Errorf("%w: %w", err, errLost)
	}
	return in, err
}

// runRows sends every row that is not done and commits the replies.
func (m *Manager) runRows(ctx context.Context, b *Batch) error {
	log, err := openRowLog(m.batchDir(b.ID), b)
	if err != nil {
		return fmt.Errorf("batch %s: %w", b.ID, err)
	}
	defer log.close()
	run, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	run, stop := context.WithDeadlineCause(run, b.Stamps.Expires, errExpired)
	defer stop()

	sent, written := make(chan struct{}), make(chan error, 1)
	go func() {
		err := m.writeRows(b.ID, log, sent)
		if err != nil {
			log.fail()
			cancel(err)
		}
		written <- err
	}()
	err = m.sendRows(run, b, log)
	close(sent)
	if werr := <-written; werr != nil {
		return fmt.Errorf("batch %s: store rows: %w", b.ID, werr)
	}
	switch {
	case err == nil:
		return m.batchStep(b.ID, InProgress, func(j *Job, now time.Time) { j.Batch.enter(Finalizing, now) })
	case errors.Is(context.Cause(run), errExpired):
		fresh, err := m.Batch(context.Background(), b.ID)
		if err != nil || fresh.Status != InProgress {
			return err
		}
		log.close()
		return m.endBatch(&fresh, BatchExpired, "batch_expired", "The row did not run before the completion window was over.")
	}
	return unlessEnded(ctx, err)
}

// sendRows reads the input again and has each row that is not done called, as
// many at a time as the model's gate lets through. It returns when no call is
// under way any more.
func (m *Manager) sendRows(ctx context.Context, b *Batch, log *rowLog) error {
	in, err := m.openInput(ctx, b)
	if err != nil {
		return err
	}
	defer in.Close()
	var calls sync.WaitGroup
	defer calls.Wait()
	gate := m.gate(b.Model)
	endpoint, _ := endpointOf(b.Endpoint)
	return eachRow(in, b, func(row int, line batchLine) error {
		if log.done(row) {
			return nil
		}
		r := Row{Endpoint: endpoint, Tenant: b.Tenant, Key: b.Key, Body: line.Body, ID: rowID(b.ID, row)}
		if err := gate.enter(ctx, len(line.Body)); err != nil {
			return err
		}
		id := bytes.Clone(line.CustomID) // the line's bytes are the reader's
		r.Body = bytes.Clone(r.Body)
		calls.Go(func() {
			defer gate.leave(len(r.Body))
			if o, ended := m.callRow(ctx, r); ended {
				o.row, o.id, o.customID = row, r.ID, id
				log.add(o)
			}
		})
		return nil
	})
}

// eachRow calls do for each row of a validated file, in order.
func eachRow(in io.Reader, b *Batch, do func(row int, line batchLine) error) error {
	lines := newLineReader(in, maxLineBytes)
	for row := range b.Counts.Total {
		text, err := lines.next()
		if err == io.EOF {
			return fmt.Errorf("input file %s has fewer rows than when it was validated: %w", b.InputFile, errLost)
		}
		if err != nil {
			return fmt.Errorf("read input file %s: %w", b.InputFile, err)
		}
		line, fault := parseLine(text, b.Endpoint)
		if fault != nil {
			return fmt.Errorf("input file %s, line %d changed: %s: %w", b.InputFile, lines.line, fault.Message, errLost)
		}
		if err := do(row, line); err != nil {
			return err
		}
	}
	return nil
}

// rowID is the same at every attempt, so that logs show a row's whole story.
func rowID(batch string, row int) string {
	return fmt.Sprintf("batch_req_%s_%05d", strings.TrimPrefix(batch, "batch_"), row)
}

// gate returns the model's gate.
func (m *Manager) gate(model string) *gate {
	m.mu.Lock()
	defer m.mu.Unlock()
	g := m.gates[model]
	if g == nil {
		g = &gate{limit: func() int { return m.opt.BatchConcurrency(model) }}
		m.gates[model] = g
	}
	return g
}

// writeRows commits what has been added, often, and the rest once all is sent.
func (m *Manager) writeRows(id string, log *rowLog, sent <-chan struct{}) error {
	tick := time.NewTicker(commitEvery)
	defer tick.Stop()
	for {
		select {
		case <-sent:
			return log.commit(m.storeRows(id))
		case <-log.wake:
		case <-tick.C:
		}
		if err := log.commit(m.storeRows(id)); err != nil {
			return err
		}
	}
}

func (m *Manager) storeRows(id string) func(RowLog, Counts, Usage) error {
	return func(at RowLog, c Counts, u Usage) error {
		_, err := m.update(context.Background(), id, func(j *Job) error {
			if done := int64(c.Completed + c.Failed); done > j.Progress.Done {
				j.Progress.Rate = float64(done) / time.Since(j.Batch.Stamps.InProgress).Seconds()
				j.Progress.Done = done
			}
			j.Batch.Log, j.Batch.Counts, j.Batch.Usage = at, c, u
			return nil
		})
		if err == nil {
			m.suffers(id, "")
		}
		return err
	}
}

// endBatch gives every row without a reply an error line with code, publishes
// the two files and stores the final status. It can be repeated from any point.
func (m *Manager) endBatch(b *Batch, to BatchStatus, code, message string) error {
	dir := m.batchDir(b.ID)
	log, err := openRowLog(dir, b)
	if err != nil {
		return fmt.Errorf("batch %s: %w", b.ID, err)
	}
	defer log.close()
	if code != "" && b.Counts.Completed+b.Counts.Failed < b.Counts.Total {
		if err := m.fillRows(b, log, code, message); err != nil {
			return err
		}
	}
	now := time.Now()
	names := [2]string{}
	for i, size := range log.size {
		if size == 0 {
			continue
		}
		kind := [2]string{"output", "error"}[i]
		f := File{
			ID:   "file-" + strings.TrimPrefix(b.ID, "batch_") + kind[:3],
			Name: b.ID + "_" + kind + ".jsonl", Purpose: PurposeBatchOutput, Tenant: b.Tenant, Created: now, Bytes: size,
		}
		if b.OutputTTL > 0 {
			f.Expires = now.Add(b.OutputTTL)
		}
		if err := m.publish(m.base, f, filepath.Join(dir, rowFiles[i])); err != nil {
			return err
		}
		names[i] = f.ID
	}
	return m.batchStep(b.ID, b.Status, func(j *Job, now time.Time) {
		j.Batch.OutputFile, j.Batch.ErrorFile = names[0], names[1]
		j.Batch.Log.Done = nil
		j.Batch.enter(to, now)
	})
}

func (m *Manager) fillRows(b *Batch, log *rowLog, code, message string) error {
	in, err := m.openInput(m.base, b)
	if err != nil {
		return err
	}
	defer in.Close()
	err = eachRow(in, b, func(row int, line batchLine) error {
		if log.done(row) {
			return nil
		}
		log.add(outcomeRow{
			row: row, id: rowID(b.ID, row), customID: line.CustomID, code: code, message: message,
		})
		if log.buffered() < commitBytes {
			return m.base.Err()
		}
		return log.commit(m.storeRows(b.ID))
	})
	if err != nil {
		return err
	}
	return log.commit(m.storeRows(b.ID))
}
