package main

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"aloft/arbiter"
	"aloft/backends/openai"
	"aloft/gateway"
	"aloft/gateway/variants"
	"aloft/jobs"
	"aloft/pool"
)

// variantDesk is the server as gateway.Variants.
type variantDesk struct{ *server }

func conflict(format string, args ...any) error {
	return &openai.Error{Status: 409, Type: "invalid_request_error", Code: "conflict", Message: fmt.Sprintf(format, args...)}
}

func invalidRule(r variants.Rule) error {
	if err := r.Validate(); err != nil {
		return &jobs.InvalidError{Param: "rule", Reason: err.Error()}
	}
	return nil
}

// asInvalid makes what a start would say of a configuration an answer to who
// asked for the variant.
func asInvalid(err error) error {
	var invalid *jobs.InvalidError
	var told *openai.Error
	if errors.As(err, &invalid) || errors.As(err, &told) {
		return err
	}
	return &jobs.InvalidError{Param: "variant", Reason: err.Error()}
}

// Variants implements gateway.Variants.
func (s variantDesk) Variants() []gateway.VariantObject {
	vs := s.way.variants
	vs.mu.Lock()
	defer vs.mu.Unlock()
	out := []gateway.VariantObject{}
	ready := s.readyReplicas()
	for _, v := range vs.all {
		out = append(out, s.variantObject(v, ready))
	}
	return out
}

// comparedFor is the window of a comparison.
const comparedFor = 10 * time.Minute

func (s *server) variantObject(v *kept, ready map[string]int) gateway.VariantObject {
	o := gateway.VariantObject{ID: v.id(), Object: "variant", VariantSpec: v.VariantSpec, State: v.State, Why: v.Why,
		Ready: ready[v.id()], BaseReady: ready[v.Model], Comparison: s.compare(v, time.Now()), Verdict: v.verdict,
		Gain: gateway.VariantGain{Before: v.Before, After: v.After}, Created: v.Created.Unix(), Changed: v.Changed.Unix()}
	if v.aside != "" {
		o.State, o.Why = gateway.VariantAside, v.aside
	}
	if o.Verdict.Action == "" {
		o.Verdict = variants.Judge(v.Rule, o.Comparison)
	}
	return o
}

func (s *server) compare(v *kept, now time.Time) variants.Comparison {
	c := s.way.variants.book.Compare(v.Model, v.Name, now, comparedFor)
	c.Quality = v.Quality
	return c
}

// readyReplicas counts the serving replicas that run what their model is now.
func (s *server) readyReplicas() map[string]int {
	out := map[string]int{}
	for _, r := range s.serving.pool.Replicas() {
		if r.State == pool.Ready && r.Job == "" && !r.Old {
			out[r.Model]++
		}
	}
	return out
}

// AddVariant implements gateway.Variants.
func (s variantDesk) AddVariant(spec gateway.VariantSpec) (gateway.VariantObject, error) {
	vs := s.way.variants
	vs.mu.Lock()
	defer vs.mu.Unlock()
	now := time.Now()
	c := s.current.Load()
	v := &kept{VariantSpec: spec, State: gateway.VariantCanary, Created: now, Changed: now}
	var err error
	if v.Job != "" {
		err = s.fromJob(&v.VariantSpec)
	}
	if err == nil {
		err = vs.admit(c, v)
	}
	if err == nil {
		err = invalidRule(spec.Rule)
	}
	if err == nil {
		base := &c.Models[slices.IndexFunc(c.Models, func(m ModelConfig) bool { return m.Name == v.Model })]
		var m ModelConfig
		if m, err = v.config(base); err == nil {
			err = s.checkVariant(c, &m)
		}
		m.Name, m.Replicas, m.Pin = base.Name, base.Replicas, base.Pin
		if err == nil && reflect.DeepEqual(m, *base) {
			err = &jobs.InvalidError{Param: "gguf", Reason: "the variant is what the model is: nothing is otherwise"}
		}
	}
	if err != nil {
		return gateway.VariantObject{}, asInvalid(err)
	}
	v.Before = vs.holding(v.Model)
	before := slices.Clone(vs.all)
	vs.all = append(vs.all, v)
	vs.book.Begin(v.Model, v.Name, now)
	if err := s.settleVariants(); err != nil {
		vs.all = before
		vs.book.End(v.Model, v.Name)
		return gateway.VariantObject{}, err
	}
	s.noteVariant(v, arbiter.Added, fmt.Sprintf("variant %s of %s was added with a share of %.3g", v.Name, v.Model, v.Share))
	return s.variantObject(v, s.readyReplicas()), nil
}

// ChangeVariant implements gateway.Variants.
func (s variantDesk) ChangeVariant(id string, change gateway.VariantChange) (gateway.VariantObject, error) {
	vs := s.way.variants
	vs.mu.Lock()
	defer vs.mu.Unlock()
	v, err := vs.find(id)
	if err != nil {
		return gateway.VariantObject{}, err
	}
	switch change.State {
	case gateway.VariantPromoting:
		err = s.promote(v, arbiter.ByHand, "")
	case gateway.VariantRollsBack:
		err = s.rollBack(v)
	default:
		err = s.alter(v, change)
	}
	if err != nil {
		return gateway.VariantObject{}, err
	}
	return s.variantObject(v, s.readyReplicas()), nil
}

// DropVariant implements gateway.Variants.
func (s variantDesk) DropVariant(id string) error {
	vs := s.way.variants
	vs.mu.Lock()
	defer vs.mu.Unlock()
	v, err := vs.find(id)
	if err != nil {
		return err
	}
	if v.State != gateway.VariantCanary && v.aside == "" {
		return conflict("%s is %s: roll it back before it is dropped", id, v.State)
	}
	return s.drop(v, arbiter.ByHand, "")
}

// alter changes what a canary is given and judged by.
func (s *server) alter(v *kept, change gateway.VariantChange) error {
	vs, was := s.way.variants, *v
	if change.Share != nil || change.Shadow != nil {
		if v.State != gateway.VariantCanary {
			return conflict("%s is %s: only a canary has a share", v.id(), v.State)
		}
		if change.Share != nil {
			v.Share = *change.Share
		}
		if change.Shadow != nil {
			v.Shadow = *change.Shadow
		}
		if err := vs.shares(v, v.Share, v.Shadow); err != nil {
			*v = was
			return err
		}
	}
	if change.Rule != nil {
		if err := invalidRule(*change.Rule); err != nil {
			*v = was
			return err
		}
		v.Rule = *change.Rule
	}
	if change.Quality != nil {
		v.Quality = change.Quality
	}
	if e := change.Evaluation; e != nil {
		q, err := s.evaluated(v, *e)
		if err != nil {
			*v = was
			return err
		}
		v.Quality = &q
	}
	v.verdict = variants.Verdict{}
	if err := s.settleVariants(); err != nil {
		*v = was
		return err
	}
	if v.Share != was.Share {
		s.noteVariant(v, arbiter.ByHand, fmt.Sprintf("variant %s of %s has a share of %.3g, before %.3g", v.Name, v.Model, v.Share, was.Share))
	}
	return nil
}

// settleVariants keeps what was changed, then serves by it. mu is held.
func (s *server) settleVariants() error {
	if err := s.way.variants.save(); err != nil {
		return err
	}
	return s.serveBy(s.current.Load())
}

// noteVariant writes into the decision log. mu is held.
func (s *server) noteVariant(v *kept, why arbiter.Reason, text string) {
	s.arbiter.Note(arbiter.Record{Time: time.Now(), Move: arbiter.Move{Action: arbiter.Variant, Model: v.Model, Reason: why}, Note: text})
}

// promote begins to put a variant in the place of its model: as many replicas as
// the model has ready start first. mu is held.
func (s *server) promote(v *kept, why arbiter.Reason, because string) error {
	vs := s.way.variants
	if v.aside != "" {
		return conflict("%s is aside: %s", v.id(), v.aside)
	}
	if v.State != gateway.VariantCanary {
		return conflict("%s is %s", v.id(), v.State)
	}
	for _, o := range vs.of(v.Model) {
		if o.State != gateway.VariantCanary {
			return conflict("%s is %s: one at a time", o.id(), o.State)
		}
	}
	was := *v
	m := s.serving.model(v.Model)
	if m == nil {
		return conflict("%s is not served", v.Model)
	}
	v.Wanted = min(max(1, s.readyReplicas()[v.Model]), m.Replicas.Max)
	v.Given, v.State, v.Changed, v.Why = 0, gateway.VariantPromoting, time.Now(), ""
	if err := s.settleVariants(); err != nil {
		*v = was
		return err
	}
	text := fmt.Sprintf("variant %s of %s is promoted: %d of its replicas start, then it takes over", v.Name, v.Model, v.Wanted)
	if because != "" {
		text += "; " + because
	}
	s.noteVariant(v, why, text)
	return nil
}

// rollBack puts the model back in its place, or stops a promotion. Who promotes
// the variant again is a person: the numbers that spoke for it were not all.
func (s *server) rollBack(v *kept) error {
	was := *v
	switch {
	case v.aside != "":
		return conflict("%s is aside, so its model serves already: %s", v.id(), v.aside)
	case v.State == gateway.VariantPromoting:
		v.State, v.Wanted, v.Given = gateway.VariantCanary, 0, 0
	case v.State == gateway.VariantPromoted:
		v.State, v.Given = gateway.VariantRollsBack, 0
		v.Wanted = max(1, s.readyReplicas()[v.id()])
	default:
		return conflict("%s is %s: there is nothing to undo", v.id(), v.State)
	}
	v.Changed, v.Why, v.Rule.Promote = time.Now(), "rolled back by hand", nil
	if err := s.settleVariants(); err != nil {
		*v = was
		return err
	}
	s.noteVariant(v, arbiter.ByHand, fmt.Sprintf("%s is to serve again in the place of its variant %s", v.Model, v.Name))
	return nil
}

// drop drains a variant and forgets it. mu is held.
func (s *server) drop(v *kept, why arbiter.Reason, because string) error {
	vs := s.way.variants
	before := slices.Clone(vs.all)
	vs.all = slices.DeleteFunc(vs.all, func(o *kept) bool { return o == v })
	if err := s.settleVariants(); err != nil {
		vs.all = before
		return err
	}
	vs.book.End(v.Model, v.Name)
	text := fmt.Sprintf("variant %s of %s was dropped", v.Name, v.Model)
	if because != "" {
		text += ": " + because
	}
	s.noteVariant(v, why, text)
	return nil
}

// openSplitter divides requests in front of everything that keeps or queues them.
func (s *server) openSplitter(next gateway.Submitter) gateway.Submitter {
	vs := s.way.variants
	vs.shadow = variants.NewShadow(next, vs.book)
	return &variants.Splitter{Next: next, Book: vs.book, Shadow: vs.shadow,
		Of:    func(model string) *variants.Split { return s.serving.set.Load().splits[model] },
		Ready: func(model string) bool { return s.serving.state(model, "") == pool.Ready }}
}

// compareSides notes what a request says of the side that served it.
func (o *observer) compareSides(r *gateway.Outcome) {
	by := r.Timing.Variant
	switch {
	case by == "" || by == variants.Fallback || o.book == nil:
	case r.Status >= 500:
		o.book.Failed(r.Model, by)
	case r.Status < 400 && r.FirstToken > 0 && r.Timing.Route == "":
		o.book.Served(r.Model, by, r.Arrival.Add(r.Total), r.FirstToken)
	}
}

// tendVariants moves variants on, and lets the shadow compare, until ctx ends.
func (s *server) tendVariants(ctx context.Context) {
	done := make(chan struct{})
	go func() { s.way.variants.shadow.Run(ctx); close(done) }()
	defer func() { <-done }()
	tick := time.NewTicker(variantsEvery)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			s.stepVariants(now)
		case <-ctx.Done():
			return
		}
	}
}
