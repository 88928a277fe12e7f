package jobs

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// CreateBatch stores a batch of the rows in an uploaded file and begins to
// validate it. *InvalidError for what can be refused at once. A key that the
// tenant has used answers with what it made, as Submit does.
func (m *Manager) CreateBatch(ctx context.Context, s BatchSpec) (Batch, error) {
	if err := s.Validate(); err != nil {
		return Batch{}, err
	}
	terms := s.terms()
	if old, err := m.batchWith(ctx, s.Tenant, terms); old.ID != "" || err != nil {
		return old, err
	}
	f, err := m.File(ctx, s.InputFile)
	switch {
	case errors.Is(err, ErrNotFound) || err == nil && f.Tenant != s.Tenant:
		return Batch{}, invalid("input_file_id", "there is no file %q", s.InputFile)
	case err != nil:
		return Batch{}, err
	case f.Purpose != PurposeBatch:
		return Batch{}, invalid("input_file_id", "file %s has purpose %q, want %q", f.ID, f.Purpose, PurposeBatch)
	case f.Bytes > maxBatchBytes:
		return Batch{}, invalid("input_file_id", "file %s has %d bytes, a batch has at most %d", f.ID, f.Bytes, maxBatchBytes)
	}
	now := time.Now()
	window, _ := time.ParseDuration(s.Window) // checked by Validate
	id := newID("batch_", now)
	if err := m.reserveBatch(id, f.ID, maxBatches); err != nil {
		return Batch{}, err
	}
	j, err := m.add(ctx, Job{
		ID: id, Tenant: s.Tenant, Kind: KindBatch, State: Queued, Priority: s.Priority,
		MinWidth: 1, MaxWidth: 1, Terms: terms, Times: Times{Created: now}, Progress: Progress{Unit: "rows"},
		Batch: &Batch{
			ID: id, Tenant: s.Tenant, Key: s.Key, Created: now, InputFile: f.ID, Endpoint: s.Endpoint, Window: s.Window,
			Metadata: s.Metadata, OutputTTL: s.OutputTTL, Status: Validating,
			Stamps: BatchTimes{Expires: now.Add(window)},
		},
	})
	if err != nil {
		m.dropBatch(id)
	}
	if errors.Is(err, ErrKeyTaken) { // by a request at the same moment
		return m.batchWith(ctx, s.Tenant, terms)
	}
	if err != nil {
		return Batch{}, err
	}
	m.serveBatch(id)
	return *j.Batch, nil
}

// terms are how the batch is known again: whichever of its tenant's API keys a
// request came with, it is the same.
func (s BatchSpec) terms() Terms {
	request := s
	request.Key, request.Idempotency = "", ""
	return Terms{Idempotency: s.Idempotency, Asked: digest(request)}
}

// batchWith returns the tenant's batch that was made under the key; none if none was.
func (m *Manager) batchWith(ctx context.Context, tenant string, t Terms) (Batch, error) {
	j, err := m.madeWith(ctx, Job{Tenant: tenant, Terms: t})
	if err != nil || j.Batch == nil {
		return Batch{}, err
	}
	return *j.Batch, nil
}

// Batch returns a batch.
func (m *Manager) Batch(ctx context.Context, id string) (Batch, error) {
	j, err := m.opt.Store.Get(ctx, id)
	if err == nil && j.Batch == nil {
		err = ErrNotFound
	}
	if err != nil {
		return Batch{}, fmt.Errorf("batch %s: %w", id, err)
	}
	return *j.Batch, nil
}

// Batches returns the batches that match, newest first; the kind is set here.
func (m *Manager) Batches(ctx context.Context, f Filter) ([]Batch, error) {
	f.Kind = KindBatch
	list, err := m.opt.Store.List(ctx, f)
	if err != nil {
		return nil, fmt.Errorf("list batches: %w", err)
	}
	out := make([]Batch, 0, len(list))
	for _, j := range list {
		out = append(out, *j.Batch)
	}
	return out, nil
}

// CancelBatch asks a batch to end; finished rows are kept. Asking again while it
// is cancelling is no error, asking when it has ended is ErrFinished.
func (m *Manager) CancelBatch(ctx context.Context, id string) (Batch, error) {
	if _, err := m.Batch(ctx, id); err != nil { // no other kind of job this way
		return Batch{}, err
	}
	j, err := m.Cancel(ctx, id)
	if err != nil {
		return Batch{}, err
	}
	return *j.Batch, nil
}

func cancelBatch(j *Job, now time.Time) error {
	switch {
	case j.Batch.Status == Cancelling:
		return errUnchanged
	case j.Batch.Status.Terminal():
		return fmt.Errorf("cancel batch %s: it is %s: %w", j.ID, j.Batch.Status, ErrFinished)
	}
	j.Batch.enter(Cancelling, now)
	j.Cancelling = now
	return nil
}
