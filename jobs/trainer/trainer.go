// Package trainer is the demonstration training job: a small character model,
// trained by Adam on real text, that can be interrupted at any step and then
// ends with exactly the weights of an uninterrupted run.
//
// It shows the checkpoint protocol that any framework can join: save when told
// to (the context ends on SIGTERM), exit 75 to be run again, report progress as
// JSON lines. It knows nothing of the rest of aloft.
package trainer

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// genesis is Genesis 1 to 4, King James version (public domain; Debian's
// bible-kjv), one verse a line.
//
//go:embed data/genesis.txt
var genesis []byte

// ErrPreempted means: asked to stop, everything is saved, run me again. A
// program turns it into exit code 75 (jobs.ExitRequeue).
var ErrPreempted = errors.New("preempted after a checkpoint")

// Options says what to train.
type Options struct {
	CheckpointDir      string // "" = no checkpoints: an interrupted run is lost
	Resume             string // checkpoint to go on from, "" = from the start
	Steps              int    // of Adam
	Seed               uint64
	Data               string    // text file, "" = Genesis 1 to 4
	Examples           string    // JSONL file of examples, instead of Data
	Validation         string    // JSONL file of examples whose loss is measured at each checkpoint, "" = none
	Epochs             int       // passes over the text, instead of Steps; 0 = Steps
	Rate               float64   // times the learning rate, 0 = 1
	OutputDir          string    // folder for the final weights, "" = they are only summed
	Progress           io.Writer // JSON lines, nil = none
	StepsPerCheckpoint int       // 0 = only when asked to stop, or as CheckpointEvery says
	// CheckpointEvery is the time between checkpoints; 0 = steps decide.
	CheckpointEvery time.Duration
	Gang            Gang // zero = alone
	// Pace is the least time of a step: a demonstration's machine has other work.
	Pace time.Duration
}

const (
	maxSteps = 100_000_000
	maxData  = 64 << 20 // bytes
	minData  = 1 << 10
	// reportEvery paces progress lines; checkpoints are reported at once.
	reportEvery = 100 * time.Millisecond
)

// Validate checks the bounds.
func (o Options) Validate() error {
	switch {
	case o.Epochs < 0 || o.Epochs > maxSteps || o.Rate < 0:
		return fmt.Errorf("train: epochs %d and rate %g, want none negative", o.Epochs, o.Rate)
	case o.Epochs == 0 && (o.Steps < 1 || o.Steps > maxSteps):
		return fmt.Errorf("train: steps is %d, want 1 to %d", o.Steps, maxSteps)
	case o.StepsPerCheckpoint < 0:
		return fmt.Errorf("train: steps per checkpoint is %d, want 0 or more", o.StepsPerCheckpoint)
	case (o.StepsPerCheckpoint > 0 || o.CheckpointEvery > 0) && o.CheckpointDir == "":
		return errors.New("train: checkpoints are asked for, but no folder is given")
	case o.Pace < 0 || o.CheckpointEvery < 0:
		return fmt.Errorf("train: pace is %v and time between checkpoints %v, want 0 or more", o.Pace, o.CheckpointEvery)
	}
	return o.Gang.validate()
}

// line is one progress line, see jobs.Report.
type line struct {
	Step       int                `json:"step"`
	Total      int                `json:"total"`
	Loss       float64            `json:"loss,omitempty"` // cross entropy of the step's batch, nats per character
	Checkpoint string             `json:"checkpoint,omitempty"`
	Bytes      int64              `json:"checkpoint_bytes,omitempty"`
	Seconds    float64            `json:"checkpoint_seconds,omitempty"` // that saving it took
	Result     string             `json:"result,omitempty"`             // SHA-256 of the final weights
	Metrics    map[string]float64 `json:"metrics,omitempty"`
}

// Run trains to the end, or until ctx ends: then it saves and returns
// ErrPreempted. The last progress line of a whole run carries the SHA-256 of
// its weights, which depends on steps, seed and data alone.
func Run(ctx context.Context, o Options) error {
	if err := o.Validate(); err != nil {
		return err
	}
	text, err := readText(o)
	if err != nil {
		return err
	}
	if o.Epochs > 0 {
		o.Steps = stepsOf(o.Epochs, text)
	}
	m := newModel(text, o.Seed)
	if o.Rate > 0 {
		m.rate = rate * o.Rate
	}
	if o.Resume != "" {
		if err := m.load(o.Resume); err != nil {
			return fmt.Errorf("train: resume: %w", err)
		}
	}
	if o.Gang.Rank > 0 { // one member speaks and saves for all
		o.Progress, o.Validation, o.OutputDir = nil, "", ""
		o.CheckpointDir, o.CheckpointEvery, o.StepsPerCheckpoint = "", 0, 0
	}
	s := session{o: o, m: m, saved: time.Now()}
	if o.Validation != "" {
		held, err := readExamples(o.Validation)
		if err != nil {
			return err
		}
		s.held = encode(held)
	}
	if o.Progress != nil {
		s.out = json.NewEncoder(o.Progress)
	}
	s.saves = s.earlier()
	if o.Gang.World > 1 {
		s.gang, err = o.Gang.meet(ctx, m)
		switch {
		case err != nil && ctx.Err() != nil:
			return s.preempted(0)
		case err != nil:
			return err
		}
		defer s.gang.close()
	}
	return s.run(ctx)
}

// session is one run's bookkeeping.
type session struct {
	o     Options
	m     *model
	out   *json.Encoder
	gang  *ring // nil = alone
	said  time.Time
	saved time.Time // when a checkpoint was last begun, or the run
	held  []byte    // held-out text, nil = none
	saves []string  // the checkpoints that are kept, oldest first
}

func (s *session) run(ctx context.Context) error {
	loss := 0.0
	for s.m.step < s.o.Steps {
		if ctx.Err() != nil && s.gang == nil {
			return s.preempted(loss)
		}
		began := time.Now()
		stop := false
		var err error
		if s.gang == nil {
			loss = s.m.train()
		} else if loss, stop, err = s.gang.step(s.m, ctx.Err() != nil); err != nil {
			return err
		}
		if math.IsNaN(loss) || math.IsInf(loss, 0) {
			return fmt.Errorf("train: loss is %v at step %d", loss, s.m.step)
		}
		if stop && s.m.step < s.o.Steps {
			return s.preempted(loss)
		}
		if err := s.told(loss); err != nil {
			return err
		}
		if s.o.Pace > 0 {
			select {
			case <-time.After(s.o.Pace - time.Since(began)):
			case <-ctx.Done():
			}
		}
	}
	if s.o.OutputDir != "" {
		if err := s.m.write(s.o.OutputDir); err != nil {
			return err
		}
	}
	return s.say(s.measured(line{Step: s.m.step, Loss: loss, Result: s.m.sum()}))
}

// told saves when it is time to, or reports.
func (s *session) told(loss float64) error {
	n, every := s.o.StepsPerCheckpoint, s.o.CheckpointEvery
	switch {
	case n > 0 && s.m.step%n == 0 || every > 0 && time.Since(s.saved) >= every:
		return s.save(loss)
	case time.Since(s.said) >= reportEvery:
		return s.say(line{Step: s.m.step, Loss: loss})
	}
	return nil
}

func (s *session) preempted(loss float64) error {
	if s.o.Gang.Rank > 0 {
		return ErrPreempted // rank 0 saves
	}
	if s.o.CheckpointDir == "" {
		return fmt.Errorf("train: stopped at step %d with no checkpoint folder: %w", s.m.step, context.Canceled)
	}
	if err := s.save(loss); err != nil {
		return err
	}
	return ErrPreempted
}

// keep is how many checkpoints stay: whoever notes our reports may be a few behind.
const keep = 3

func (s *session) save(loss float64) error {
	path := s.checkpoint(s.m.step)
	s.saved = time.Now()
	if err := s.m.save(path); err != nil {
		return fmt.Errorf("train: checkpoint: %w", err)
	}
	l := line{Step: s.m.step, Loss: loss, Checkpoint: path, Seconds: time.Since(s.saved).Seconds()}
	if st, err := os.Stat(path); err == nil {
		l.Bytes = st.Size()
	}
	if len(s.saves) == 0 || s.saves[len(s.saves)-1] != path {
		s.saves = append(s.saves, path)
	}
	if err := s.say(s.measured(l)); err != nil {
		return err
	}
	for len(s.saves) > keep {
		os.Remove(s.saves[0])
		s.saves = s.saves[1:]
	}
	return nil
}

// measured adds to a line what is measured only now and then.
func (s *session) measured(l line) line {
	l.Metrics = map[string]float64{"train_loss": l.Loss, "trained_tokens": float64(s.m.step * batch)}
	if s.held != nil {
		l.Metrics["valid_loss"] = s.m.held(s.held)
	}
	return l
}

func (s *session) checkpoint(step int) string {
	return filepath.Join(s.o.CheckpointDir, fmt.Sprintf("step-%09d.ckpt", step))
}

// earlier lists the checkpoints that runs before this one left, oldest first.
func (s *session) earlier() []string {
	if s.o.CheckpointDir == "" {
		return nil
	}
	found, _ := filepath.Glob(filepath.Join(s.o.CheckpointDir, "step-*.ckpt")) // a bad pattern finds none
	slices.Sort(found)
	i, _ := slices.BinarySearch(found, s.checkpoint(s.m.step+1))
	return found[:i]
}

func (s *session) say(l line) error {
	s.said = time.Now()
	if s.out == nil {
		return nil
	}
	l.Total = s.o.Steps
	if err := s.out.Encode(l); err != nil {
		return fmt.Errorf("train: report progress: %w", err)
	}
	return nil
}

func readText(o Options) ([]byte, error) {
	path := o.Data
	switch {
	case o.Examples != "":
		return readExamples(o.Examples)
	case path == "":
		return genesis, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("train: data: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxData+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("train: data: %w", err)
	case len(text) > maxData || len(text) < minData:
		return nil, fmt.Errorf("train: data %s: want %d to %d bytes", path, minData, maxData)
	}
	return text, nil
}
