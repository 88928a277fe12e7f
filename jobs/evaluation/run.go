package evaluation

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"aloft/loadgen"
)

// ErrPreempted means: asked to stop, the rows so far are kept, run me again. A
// program turns it into exit code 75 (jobs.ExitRequeue).
var ErrPreempted = errors.New("preempted; the rows so far are kept")

// Options say what to evaluate. Zero numbers take the default named.
type Options struct {
	Set     Set
	Model   Subject
	Against *Subject // nil = nothing is compared

	Dir         string         // where done rows are kept; "" = an interrupted run is lost
	K           int            // of recall and nDCG; 5
	Concurrency int            // requests at a time; 1: latency is then that of an idle server
	Timeout     time.Duration  // of a request; 1 min
	MaxTokens   int            // of an answer where a row says nothing; 32
	Report      func(Progress) // called from Run's goroutine; nil = nobody listens
}

// Progress is how far a run is.
type Progress struct {
	Done, Total int    // requests
	Checkpoint  string // what a later run goes on from; "" = no new one
	Failed      int
}

const (
	reportEvery     = time.Second
	checkpointEvery = 5 * time.Second
)

// Validate checks the options; zero values stand for their defaults.
func (o Options) Validate() error {
	switch {
	case len(o.Set.Rows) == 0:
		return errors.New("evaluation: no rows given")
	case o.K < 0 || o.Concurrency < 0 || o.Concurrency > 64 || o.Timeout < 0 || o.MaxTokens < 0:
		return errors.New("evaluation: want k, concurrency (at most 64), timeout and max tokens of 0 or more")
	}
	for _, s := range o.subjects() {
		if s.Model == "" || s.URL == "" {
			return fmt.Errorf("evaluation: want a model and its server, got %q at %q", s.Model, s.URL)
		}
	}
	return nil
}

func (o Options) withDefaults() Options {
	for _, d := range []struct {
		v   *int
		def int
	}{{&o.K, 5}, {&o.Concurrency, 1}, {&o.MaxTokens, 32}} {
		if *d.v == 0 {
			*d.v = d.def
		}
	}
	if o.Timeout == 0 {
		o.Timeout = time.Minute
	}
	if o.Report == nil {
		o.Report = func(Progress) {}
	}
	return o
}

func (o Options) subjects() []Subject {
	if o.Against == nil {
		return []Subject{o.Model}
	}
	return []Subject{o.Model, *o.Against}
}

// Run asks every row that has no answer yet and returns the result over all. When
// ctx ends first it returns ErrPreempted, or why if nothing is kept.
func Run(ctx context.Context, o Options) (Result, error) {
	if err := o.Validate(); err != nil {
		return Result{}, err
	}
	o = o.withDefaults()
	head := logHead{Version: Version, Set: o.Set.SHA256, MaxTokens: o.MaxTokens}
	for _, s := range o.subjects() {
		head.Subjects = append(head.Subjects, fmt.Sprintf("%s %d", s.Name, s.Bytes))
	}
	log, kept, err := openLog(o.Dir, head)
	if err != nil {
		return Result{}, err
	}
	defer log.close()
	r := &runner{o: o, log: log, rows: make([][]*outcome, len(head.Subjects))}
	for side := range r.rows {
		r.rows[side] = make([]*outcome, len(o.Set.Rows))
	}
	for _, k := range kept {
		r.take(k)
	}
	if err := r.run(ctx); err != nil {
		return Result{}, err
	}
	return r.o.result(r.rows, time.Now())
}

// runner is one run. Its fields belong to Run's goroutine.
type runner struct {
	o            Options
	log          *rowLog
	rows         [][]*outcome // by side and row; nil = to be asked
	done, failed int
	said, saved  time.Time
}

func (r *runner) take(o outcome) {
	if o.Side < len(r.rows) && o.Row < len(r.rows[o.Side]) && r.rows[o.Side][o.Row] == nil {
		r.rows[o.Side][o.Row] = &o
		r.done++
		if o.Error != "" {
			r.failed++
		}
	}
}

// task is a row to be asked of a side.
type task struct{ side, row int }

func (r *runner) run(parent context.Context) error {
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	todo, answers := make(chan task), make(chan outcome)
	failures := make(chan error, r.o.Concurrency)
	var all sync.WaitGroup
	for range r.o.Concurrency {
		all.Go(func() {
			if err := r.o.work(ctx, todo, answers); err != nil {
				failures <- err
				cancel()
			}
		})
	}
	left := r.left()
	all.Go(func() {
		defer close(todo)
		for _, t := range left {
			select {
			case todo <- t:
			case <-ctx.Done():
				return
			}
		}
	})
	go func() { all.Wait(); close(answers) }()
	var err error
	r.saved = time.Now()
	for a := range answers {
		if err == nil {
			r.take(a)
			if err = r.log.add(a); err == nil {
				err = r.say()
			}
			if err != nil {
				cancel()
			}
		}
	}
	if err == nil {
		err = r.checkpoint()
	}
	select {
	case bad := <-failures:
		err = errors.Join(err, bad)
	default:
	}
	switch {
	case err != nil:
		return err
	case r.done == len(r.rows)*len(r.o.Set.Rows):
		return nil
	case r.log.f == nil:
		return context.Cause(parent)
	}
	return ErrPreempted
}

// left lists what is to be asked, row by row: two models are asked side by side,
// so that both meet the same load.
func (r *runner) left() (todo []task) {
	for row := range r.o.Set.Rows {
		for side := range r.rows {
			if r.rows[side][row] == nil {
				todo = append(todo, task{side, row})
			}
		}
	}
	return todo
}

// work asks what it is given until there is no more.
func (o Options) work(ctx context.Context, todo <-chan task, answers chan<- outcome) error {
	var askers []*asker
	for _, s := range o.subjects() {
		a, err := loadgen.NewAsker(s.URL, s.Key, s.Roots)
		if err != nil {
			return fmt.Errorf("evaluation: %w", err)
		}
		defer a.Close()
		askers = append(askers, &asker{a, s, o})
	}
	for t := range todo {
		out, err := askers[t.side].ask(ctx, o.Set.Rows[t.row])
		if err != nil {
			return nil // ctx has ended, which Run knows
		}
		out.Side, out.Row = t.side, t.row
		answers <- out // Run takes all until this channel is closed
	}
	return nil
}

func (r *runner) say() error {
	now := time.Now()
	if now.Sub(r.saved) >= checkpointEvery {
		return r.checkpoint()
	}
	if now.Sub(r.said) >= reportEvery {
		r.said = now
		r.o.Report(r.progress(""))
	}
	return nil
}

func (r *runner) checkpoint() error {
	if err := r.log.sync(); err != nil {
		return fmt.Errorf("evaluation: rows not kept: %w", err)
	}
	r.saved, r.said = time.Now(), time.Now()
	r.o.Report(r.progress(r.log.path))
	return nil
}

func (r *runner) progress(checkpoint string) Progress {
	return Progress{Done: r.done, Total: len(r.rows) * len(r.o.Set.Rows), Checkpoint: checkpoint, Failed: r.failed}
}
