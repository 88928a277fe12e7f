package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// Manager takes jobs in, starts and preempts them when told to, and runs batch
// files. The store's record is the truth: every change is a compare and swap, so
// the manager holds only what is alive in this process.
type Manager struct {
	opt Options
	log *slog.Logger

	base context.Context // ends when Close begins
	stop context.CancelCauseFunc
	work sync.WaitGroup // every goroutine of ours

	entering sync.Mutex // new sessions, one at a time: a tenant's are counted

	mu        sync.Mutex
	templates map[string]Template // replaced whole, never changed
	closed    bool
	open      int // unfinished jobs
	runs      map[string]*run
	ran       time.Duration // of all runs that have ended
	stops     int           // of them, how many were preempted
	batches   map[string]*batchRun
	gates     map[string]*gate
	checks    chan struct{} // a place for each reading of examples
	agenda    agenda
	schedules []Schedule // replaced whole

	standings map[string]ScheduleState // the clock's own; nil = not read yet
}

func newManager(o Options, log *slog.Logger) *Manager {
	m := &Manager{
		opt: o, log: log,
		runs: map[string]*run{}, batches: map[string]*batchRun{}, gates: map[string]*gate{},
		checks: make(chan struct{}, maxChecks),
		agenda: newAgenda(),
	}
	m.templates, m.schedules = byName(o.Templates), o.Schedules
	m.base, m.stop = context.WithCancelCause(context.Background())
	return m
}

// Open recovers what an earlier life left: leftover processes are ended, jobs
// that ran are queued again and resume from their last checkpoint, asked-for
// cancellations are carried out, batches go on where their output was committed.
func (m *Manager) Open(ctx context.Context) error {
	if err := m.opt.Executor.Reap(ctx); err != nil {
		return fmt.Errorf("jobs: end leftover processes: %w", err)
	}
	left, err := m.opt.Store.List(ctx, Filter{States: Unfinished()})
	if err != nil {
		return fmt.Errorf("jobs: list unfinished jobs: %w", err)
	}
	m.mu.Lock()
	m.open += len(left)
	m.mu.Unlock()
	m.dropUnfinished(ctx) // before batches write files
	if err := m.recoverJobs(ctx, left); err != nil {
		return err
	}
	live := map[string]bool{}
	for _, j := range slices.Backward(left) { // oldest first
		if j.FineTune != nil && !j.FineTune.Checked {
			m.checkExamples(j.ID)
		}
		if j.Kind == KindBatch {
			live[j.ID] = true
			if err := m.reserveBatch(j.ID, j.Batch.InputFile, math.MaxInt); err != nil {
				return err
			}
			m.serveBatch(j.ID)
		}
	}
	if err := m.openAgenda(ctx, left); err != nil {
		return err
	}
	m.sweepBatchDirs(live)
	m.work.Go(m.clock)
	m.work.Go(m.expireFiles)
	return nil
}

// Close stops: batches commit what they have, running jobs are preempted, with
// their grace or what ctx leaves of it, and queued again. It returns when
// nothing of ours runs any more, or with ctx's error.
func (m *Manager) Close(ctx context.Context) error {
	m.mu.Lock()
	m.closed = true
	ids := slices.Collect(maps.Keys(m.runs))
	m.mu.Unlock()
	m.stop(ErrClosed)

	var stopping sync.WaitGroup
	for _, id := range ids {
		stopping.Go(func() {
			if err := m.Preempt(ctx, id, 0); err != nil {
				m.log.Warn("job not preempted", "job", id, "error", err)
			}
		})
	}
	done := make(chan struct{})
	go func() {
		stopping.Wait()
		m.work.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("jobs: close: %w", context.Cause(ctx))
	}
}

// graceWithin shortens grace to nine tenths of what ctx leaves: the rest is for
// the kill and the record.
func graceWithin(ctx context.Context, grace time.Duration) time.Duration {
	if end, ok := ctx.Deadline(); ok {
		grace = min(grace, max(time.Until(end)*9/10, time.Millisecond))
	}
	return grace
}

// MaxGrace bounds how long a lent slice can be kept from serving.
const MaxGrace = 10 * time.Minute

const maxPriority = 100

func byName(list []Template) map[string]Template {
	out := make(map[string]Template, len(list))
	for _, t := range list {
		out[t.Name] = t
	}
	return out
}

// SetTemplates replaces the templates of jobs that come from now on; those that
// are here keep what they were filled in with. After an error nothing has changed.
func (m *Manager) SetTemplates(list []Template) error {
	if err := validTemplates(list); err != nil {
		return err
	}
	m.mu.Lock()
	m.templates = byName(list)
	m.mu.Unlock()
	return nil
}

func (m *Manager) template(name string) (Template, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t, ok := m.templates[name]
	return t, ok
}

// add stores a new job within the bound on unfinished ones.
func (m *Manager) add(ctx context.Context, j Job) (Job, error) {
	if err := m.reserve(); err != nil {
		return Job{}, err
	}
	_, words := stateWords(Job{}, j)
	e := Event{At: j.Created, Level: LevelInfo, Kind: "state", Message: "submitted, " + words, Data: map[string]string{"to": string(j.State)}}
	if err := m.opt.Store.Put(ctx, &j, e); err != nil {
		m.unreserve()
		return Job{}, fmt.Errorf("store job %s: %w", j.ID, err)
	}
	if j.FineTune != nil {
		m.checkExamples(j.ID)
	}
	m.note(j, time.Now(), true)
	m.log.Info("job queued", "job", j.ID, "kind", j.Kind)
	m.opt.OnChange(j)
	return j, nil
}

// Get returns the job, with the progress of this moment if it runs.
func (m *Manager) Get(ctx context.Context, id string) (Job, error) {
	j, err := m.opt.Store.Get(ctx, id)
	if err != nil {
		return Job{}, fmt.Errorf("job %s: %w", id, err)
	}
	m.freshen(&j)
	return j, nil
}

// List returns the jobs that match, newest first.
func (m *Manager) List(ctx context.Context, f Filter) ([]Job, error) {
	list, err := m.opt.Store.List(ctx, f)
	if err != nil {
		return nil, fmt.Errorf("list jobs: %w", err)
	}
	for i := range list {
		m.freshen(&list[i])
	}
	return list, nil
}

func (m *Manager) freshen(j *Job) {
	m.mu.Lock()
	r := m.runs[j.ID]
	if b := m.batches[j.ID]; b != nil && b.trouble != "" {
		j.Error = b.trouble
	}
	m.mu.Unlock()
	if r != nil {
		r.freshen(j)
		m.freshenSession(j, r)
	}
}

// LogPath is where the output of the job's processes is kept.
func (m *Manager) LogPath(id string) string {
	return filepath.Join(m.opt.DataDir, "logs", filepath.Base(id)+".log")
}

// OutputDir is where the job's programs leave their artefacts.
func (m *Manager) OutputDir(id string) string {
	return filepath.Join(m.opt.DataDir, "outputs", filepath.Base(id))
}

// checkpointDir is where the job's programs save.
func (m *Manager) checkpointDir(j Job) string {
	if j.SavesIn != "" {
		return j.SavesIn
	}
	return filepath.Join(m.opt.DataDir, "checkpoints", filepath.Base(j.ID))
}

// clears reports whether old checkpoints of the job are ours to remove.
func (j Job) clears() bool { return j.SavesIn == "" || j.ClearSaves }

// errUnchanged is returned by a change that has nothing to change.
var errUnchanged = errors.New("unchanged")

// maxConflicts bounds the tries of a compare and swap: each lost one means that
// somebody else's was stored, and a job has only a handful of writers.
const maxConflicts = 64

// update applies change to the stored job, again when it changed meanwhile.
func (m *Manager) update(ctx context.Context, id string, change func(*Job) error) (Job, error) {
	for range maxConflicts {
		j, err := m.opt.Store.Get(ctx, id)
		if err != nil {
			return Job{}, fmt.Errorf("job %s: %w", id, err)
		}
		old, now := j, time.Now()
		if j.Batch != nil { // change works on the one that j points to
			b := *j.Batch
			old.Batch = &b
		}
		if err := change(&j); errors.Is(err, errUnchanged) {
			return j, nil
		} else if err != nil {
			return j, err
		}
		if j.State.Terminal() && !old.State.Terminal() {
			j.KeptUntil = now.Add(cmp.Or(j.KeepFor, m.opt.KeepFor))
		}
		err = m.opt.Store.Put(ctx, &j, changeEvents(old, j, now)...)
		if errors.Is(err, ErrConflict) {
			continue
		}
		if err != nil {
			return Job{}, fmt.Errorf("store job %s: %w", id, err)
		}
		if j.State != old.State || batchStatus(j) != batchStatus(old) {
			m.changed(j, old.State)
		}
		return j, nil
	}
	return Job{}, fmt.Errorf("job %s: %w", id, ErrConflict)
}

func (m *Manager) changed(j Job, from State) {
	if j.State.Terminal() && !from.Terminal() {
		m.unreserve()
	}
	if j.FineTune != nil && !j.FineTune.Checked && from.Terminal() && !j.State.Terminal() { // tried again
		m.checkExamples(j.ID)
	}
	m.note(j, time.Now(), true)
	m.log.Info("job changed", "job", j.ID, "kind", j.Kind, "from", from, "to", j.State, "status", batchStatus(j), "error", j.Error)
	m.opt.OnChange(j)
}

func batchStatus(j Job) BatchStatus {
	if j.Batch == nil {
		return ""
	}
	return j.Batch.Status
}

// sweepBatchDirs removes the local output of batches that have ended: their
// files were published before the record said so.
func (m *Manager) sweepBatchDirs(live map[string]bool) {
	entries, err := os.ReadDir(filepath.Join(m.opt.DataDir, "batches"))
	if err != nil {
		m.log.Warn("batch folders not swept", "error", err)
		return
	}
	for _, e := range entries {
		if !live[e.Name()] {
			os.RemoveAll(m.batchDir(e.Name()))
		}
	}
}

func (m *Manager) batchDir(id string) string {
	return filepath.Join(m.opt.DataDir, "batches", id)
}
