package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"aloft/arbiter"
	"aloft/gateway"
	"aloft/gateway/variants"
	"aloft/jobs"
	"aloft/jobs/evaluation"
	"aloft/pool"
)

const (
	// variantsEvery is between looks at variants that are judged or on their way.
	variantsEvery = time.Second
	// handOver is how long a promotion waits for a replica before the other side
	// gives a slice up for it: longer than small engines take to start.
	handOver = 15 * time.Second
)

// stepVariants judges canaries by their rules and moves on what is under way.
func (s *server) stepVariants(now time.Time) {
	vs := s.way.variants
	vs.mu.Lock()
	defer vs.mu.Unlock()
	s.sampleGain(now)
	ready := s.readyReplicas()
	for _, v := range append([]*kept(nil), vs.all...) { // one may be dropped
		if v.aside != "" {
			continue
		}
		var err error
		switch v.State {
		case gateway.VariantCanary:
			err = s.judge(v, now)
		case gateway.VariantPromoting:
			err = s.goOn(v, now, passage{from: v.Model, to: v.id(), done: gateway.VariantPromoted}, ready)
		case gateway.VariantRollsBack:
			err = s.goOn(v, now, passage{from: v.id(), to: v.Model, done: gateway.VariantCanary}, ready)
		}
		if err != nil {
			s.log.Error("variant not moved on", "variant", v.id(), "state", v.State, "error", err)
		}
	}
}

// judge does what the rule of a canary calls for.
func (s *server) judge(v *kept, now time.Time) error {
	if v.Rule == (variants.Rule{}) {
		return nil
	}
	v.verdict = variants.Judge(v.Rule, s.compare(v, now))
	switch v.verdict.Action {
	case variants.Promote:
		for _, o := range s.way.variants.of(v.Model) {
			if o.State != gateway.VariantCanary {
				return nil // its turn comes when that one has come to its end
			}
		}
		return s.promote(v, arbiter.ByRule, v.verdict.String())
	case variants.Drop:
		return s.drop(v, arbiter.ByRule, v.verdict.String())
	}
	return nil
}

// passage is one side taking the place of the other.
type passage struct {
	from, to string
	done     gateway.VariantState
}

// goOn ends a passage once who takes over has the replicas that are wanted.
// Where the node is full, who leaves gives up one replica after the other for
// them; the last one only when nothing is asked of it any more. A passage that
// gets no replica at all is given up where nothing has changed yet.
func (s *server) goOn(v *kept, now time.Time, p passage, ready map[string]int) error {
	switch patience := now.Sub(v.Changed); {
	case ready[p.to] >= v.Wanted:
		return s.arrive(v, now, p)
	case patience > 2*s.conf.Pool.StartTimeout && ready[p.to] == 0 && p.done == gateway.VariantPromoted:
		return s.giveUp(v, now)
	case patience < time.Duration(v.Given+1)*handOver || s.coming(p.to):
		return nil
	case ready[p.to] > 0 && ready[p.to] >= v.Wanted-1 && ready[p.from] <= 1: // the last slice is the one that is left
		return s.arrive(v, now, p)
	case ready[p.from] > 1:
		return s.give(v, p)
	case ready[p.to] == 0:
		return nil // nothing may be given up for one that may never come
	}
	v.Wanted, v.Given = max(1, v.Wanted-1), v.Given+1
	return s.settleVariants()
}

// coming reports whether a replica of a model is on its way.
func (s *server) coming(model string) bool {
	return slices.ContainsFunc(s.serving.pool.Replicas(), func(r pool.Replica) bool {
		return r.Model == model && r.Job == "" && (r.State == pool.Loading || r.State == pool.Warming || r.State == pool.Waking)
	})
}

// give frees the slice of one replica of who leaves.
func (s *server) give(v *kept, p passage) error {
	v.Given++
	if err := s.settleVariants(); err != nil { // the arbiter must not start it again
		return err
	}
	newest := ""
	var since time.Time
	for _, r := range s.serving.pool.Replicas() {
		if r.Model == p.from && r.State == pool.Ready && r.Job == "" && !r.Since.Before(since) {
			newest, since = r.ID, r.Since
		}
	}
	if newest == "" {
		return nil
	}
	err := s.serving.pool.Stop(newest)
	s.arbiter.Kick()
	return err
}

// arrive ends a passage: from now on the other side serves.
func (s *server) arrive(v *kept, now time.Time, p passage) error {
	was := *v
	took := now.Sub(v.Changed)
	v.State, v.Wanted, v.Given, v.Changed = p.done, 0, 0, now
	if p.done == gateway.VariantCanary {
		v.Share, v.After = 0, nil
	} else {
		v.After = &gateway.VariantHolding{Since: now}
	}
	if err := s.settleVariants(); err != nil {
		*v = was
		return err
	}
	if p.done == gateway.VariantCanary {
		s.way.variants.book.Begin(v.Model, v.Name, now)
	}
	s.noteVariant(v, arbiter.InPlace, fmt.Sprintf("%s serves what %s is asked, after %v; %s is drained", p.to, v.Model, took.Round(time.Millisecond), p.from))
	return nil
}

// giveUp leaves things as they were before a promotion.
func (s *server) giveUp(v *kept, now time.Time) error {
	v.State, v.Wanted, v.Given, v.Changed, v.Rule.Promote = gateway.VariantCanary, 0, 0, now, nil
	v.Why = fmt.Sprintf("not promoted: no replica of it was ready within %v", s.conf.Pool.StartTimeout)
	if err := s.settleVariants(); err != nil {
		return err
	}
	s.noteVariant(v, arbiter.GaveUp, fmt.Sprintf("variant %s of %s %s", v.Name, v.Model, v.Why))
	return nil
}

// evaluated reads the quality of both sides from the result of a job.
func (s *server) evaluated(v *kept, e gateway.VariantEvaluation) (variants.Quality, error) {
	result, err := s.evaluationOf(e.Job)
	if err == nil {
		var q variants.Quality
		if q, err = qualityOf(result, v.Model, e.Measure); err == nil {
			return q, nil
		}
	}
	if errors.Is(err, jobs.ErrNotFound) {
		return variants.Quality{}, err
	}
	return variants.Quality{}, &jobs.InvalidError{Param: "evaluation", Reason: fmt.Sprintf("job %s: %v", e.Job, err)}
}

// fromJob fills in what the job of a variant has made.
func (s *server) fromJob(spec *gateway.VariantSpec) error {
	j, err := s.jobs.Get(context.Background(), spec.Job)
	if errors.Is(err, jobs.ErrNotFound) {
		return err
	}
	if err == nil {
		err = artefact(j, spec)
	}
	if err != nil {
		return &jobs.InvalidError{Param: "job", Reason: fmt.Sprintf("job %s: %v", spec.Job, err)}
	}
	return nil
}

// artefact makes a variant of what a quantize job reports: its file, and its type
// as a name where none is given.
func artefact(j jobs.Job, spec *gateway.VariantSpec) error {
	var q quantized
	switch err := json.Unmarshal(j.Result, &q); {
	case spec.GGUF != "" || len(spec.Command) > 0:
		return errors.New("its file is what the variant runs: want no other beside it")
	case j.State != jobs.Succeeded:
		return fmt.Errorf("it is %s, want one that has succeeded", j.State)
	case err != nil || q.Kind != "quantization" || !filepath.IsAbs(q.File):
		return errors.New("its result names no file of a quantization")
	}
	if st, err := os.Stat(q.File); err != nil || st.Size() != q.BytesOut {
		return fmt.Errorf("%s is no longer what it wrote", q.File)
	}
	spec.GGUF, spec.Name = q.File, cmp.Or(spec.Name, strings.ToLower(q.Type))
	return nil
}

// qualityOf is what an evaluation says of a model and of what was asked beside it;
// without a measure the first that it has of both.
func qualityOf(r evaluation.Result, model, measure string) (q variants.Quality, err error) {
	if r.Against == nil {
		return q, fmt.Errorf("it has evaluated %s alone, not against another", r.Model.Name)
	}
	mine, other := &r.Model, r.Against
	if mine.Name == model {
		mine, other = other, mine
	}
	for _, m := range qualities {
		a, b := m.of(mine), m.of(other)
		if a != nil && b != nil && cmp.Or(measure, m.name) == m.name {
			return variants.Quality{Measure: m.name, Base: b.Value, Variant: a.Value, Lower: m.lower}, nil
		}
	}
	return q, fmt.Errorf("it has not measured %s of both", cmp.Or(measure, "anything that can be compared"))
}

// qualities are the measures of an evaluation that say how good a model is.
var qualities = []struct {
	name  string
	lower bool // is better
	of    func(*evaluation.Measures) *evaluation.Estimate
}{
	{"exact_match", false, func(m *evaluation.Measures) *evaluation.Estimate { return m.ExactMatch }},
	{"bits_per_byte", true, func(m *evaluation.Measures) *evaluation.Estimate { return m.BitsPerByte }},
	{"perplexity", true, func(m *evaluation.Measures) *evaluation.Estimate { return m.Perplexity }},
	{"recall", false, func(m *evaluation.Measures) *evaluation.Estimate {
		if m.Retrieval == nil {
			return nil
		}
		return &m.Retrieval.Recall
	}},
}
