package jobs

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"gocloud.dev/blob"
)

// Options is what a Manager works with. Zero numbers take the default named.
type Options struct {
	Store     Store
	Files     FileStore
	Blobs     *blob.Bucket // the bytes of files; the caller closes it after Close
	Caller    Caller
	Executor  Executor
	Templates []Template
	Schedules []Schedule
	Sessions  Sessions

	DataDir string // checkpoints, logs and the output of unfinished batches live below it
	Self    string // path of the aloft binary, for "{aloft}" in templates

	Grace        time.Duration // checkpoint signal to kill where a job names none; 10 s
	MaxOpen      int           // unfinished jobs, more are refused; 10,000
	MaxFileBytes int64         // of one uploaded file; 512 MiB
	Retry        Retry         // of batch rows
	JobRetry     Retry         // pauses before a failed job's retries: 10 s, doubled up to 10 min
	KeepFor      time.Duration // finished jobs that say nothing are kept so long; 7 days
	// KeepCheckpoints is how many of a job's checkpoints stay on the disk, the
	// newest, of those in its checkpoint folder; 3.
	KeepCheckpoints int

	// BatchConcurrency says how many rows may be under way for a model now, over
	// all its batches; 0 = none at present. It is asked often and under a lock:
	// it must be quick and must not call the Manager. nil = 8.
	BatchConcurrency func(model string) int
	// Serves says whether a model can be asked for by this name; nil = none can.
	Serves func(model string) bool
	// OnChange is told of each stored change of a state or batch status. Calls
	// may overtake each other: it is a hint to look, and must not block.
	OnChange func(Job)
}

// maxBatches bounds unfinished batches, more are refused.
const maxBatches = 256

// DefaultKeepFor is how long what nobody says otherwise about is kept.
const DefaultKeepFor = 7 * 24 * time.Hour

// Retry bounds how a row is tried again. Lack of capacity (429, 503) is waited
// out until the window ends; other passing faults have Attempts tries.
type Retry struct {
	First    time.Duration // first pause, doubled each time; 200 ms
	Most     time.Duration // longest pause; 30 s
	Attempts int           // tries of a row that fails for another reason; 5
}

// Validate checks what must be there and that no bound is negative.
func (o Options) Validate() error {
	switch {
	case o.Store == nil || o.Files == nil || o.Blobs == nil:
		return errors.New("jobs: store, files and blobs are required")
	case o.Caller == nil || o.Executor == nil:
		return errors.New("jobs: caller and executor are required")
	case o.DataDir == "":
		return errors.New("jobs: no data folder given")
	case o.Grace < 0, o.MaxOpen < 0, o.MaxFileBytes < 0,
		o.KeepFor < 0, o.KeepCheckpoints < 0, o.JobRetry.First < 0, o.JobRetry.Most < 0, o.Retry.First < 0, o.Retry.Most < 0, o.Retry.Attempts < 0:
		return errors.New("jobs: a bound is negative")
	}
	if err := errors.Join(o.Sessions.Validate(), validTemplates(o.Templates)); err != nil {
		return err
	}
	return validSchedules(o.Schedules, byName(o.Templates))
}

func validTemplates(list []Template) error {
	names, trained := map[string]bool{}, map[string]string{}
	for _, t := range list {
		if err := t.Validate(); err != nil {
			return err
		}
		if names[t.Name] {
			return fmt.Errorf("job template %q is there twice", t.Name)
		}
		names[t.Name] = true
		for _, model := range t.FineTunes {
			if trained[model] != "" {
				return fmt.Errorf("job template %q: model %q is fine-tuned by template %q already", t.Name, model, trained[model])
			}
			trained[model] = t.Name
		}
	}
	return nil
}

func (o Options) withDefaults() Options {
	setDefault(&o.Grace, 10*time.Second)
	setDefault(&o.MaxOpen, 10_000)
	setDefault(&o.MaxFileBytes, 512<<20)
	setDefault(&o.Retry.First, 200*time.Millisecond)
	setDefault(&o.Retry.Most, 30*time.Second)
	setDefault(&o.Retry.Attempts, 5)
	setDefault(&o.JobRetry.First, 10*time.Second)
	setDefault(&o.JobRetry.Most, 10*time.Minute)
	setDefault(&o.KeepFor, DefaultKeepFor)
	setDefault(&o.KeepCheckpoints, 3)
	o.Sessions = o.Sessions.withDefaults()
	if o.BatchConcurrency == nil {
		o.BatchConcurrency = func(string) int { return 8 }
	}
	if o.Serves == nil {
		o.Serves = func(string) bool { return false }
	}
	if o.OnChange == nil {
		o.OnChange = func(Job) {}
	}
	return o
}

func setDefault[T comparable](v *T, d T) { *v = cmp.Or(*v, d) }

// NewManager returns a manager that does nothing until Open. log nil = silent.
func NewManager(o Options, log *slog.Logger) (*Manager, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	for _, dir := range []string{"checkpoints", "outputs", "logs", "batches"} {
		if err := os.MkdirAll(filepath.Join(o.DataDir, dir), 0o700); err != nil {
			return nil, fmt.Errorf("jobs: data folder: %w", err)
		}
	}
	return newManager(o.withDefaults(), log), nil
}
