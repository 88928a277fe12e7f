package variants

import (
	"context"
	"errors"

	"aloft/backends"
	"aloft/backends/openai"
)

// Splitter is a Submitter that sends each request to its side. A variant that has
// no ready replica, or fails before the first byte, costs no request: the model
// itself is asked, once.
type Splitter struct {
	Next Submitter
	// Of is how a model's requests are divided now; nil = they are not.
	Of func(model string) *Split
	// Ready reports whether a replica of what serves a side is ready.
	Ready  func(model string) bool
	Book   *Book
	Shadow *Shadow // nil = answers are not compared
}

// turns is how often a request is sent anew because its model was divided
// otherwise while it was on its way: promoted, rolled back, dropped.
const turns = 3

// Submit implements Submitter.
func (s *Splitter) Submit(ctx context.Context, r *backends.Request) (*backends.Reply, error) {
	for turn := 1; ; turn++ {
		split := s.Of(r.Model)
		reply, err := s.submit(ctx, r, split)
		gone := errors.Is(err, backends.ErrUnknownModel) || errors.Is(err, backends.ErrDraining)
		if !gone || turn == turns || s.Of(r.Model) == split {
			return reply, err
		}
	}
}

func (s *Splitter) submit(ctx context.Context, r *backends.Request, split *Split) (*backends.Reply, error) {
	if split == nil {
		return s.Next.Submit(ctx, r)
	}
	by := split.By
	if side := split.side(r); side != nil {
		by = Fallback
		if s.Ready(side.Model) {
			reply, err := s.ask(ctx, r, side.Model, side.Name)
			if !faulty(ctx, reply, err) {
				s.Shadow.see(r, reply, split, side)
				return reply, err
			}
			if reply != nil {
				reply.Body.Close()
			}
			s.Book.Failed(r.Model, side.Name)
		}
		s.Book.FellBack(r.Model, side.Name)
	}
	reply, err := s.ask(ctx, r, split.Model, by)
	switch {
	case by == Fallback:
	case err != nil && faulty(ctx, reply, err):
		s.Book.Failed(r.Model, by)
	case err == nil:
		s.Shadow.see(r, reply, split, nil)
	}
	return reply, err
}

// side is who is to serve a request. Rows of batches and whatever else may wait
// stay with the model, so that one file has one model's answers; so do adapters,
// which are trained for it.
func (s *Split) side(r *backends.Request) *Share {
	if r.Class == backends.Offline || r.Place.Adapter != "" {
		return nil
	}
	return s.Pick(r.Place.Split)
}

// ask sends a request to what serves a side, and notes on the answer who it was.
func (s *Splitter) ask(ctx context.Context, r *backends.Request, model, by string) (*backends.Reply, error) {
	if model != r.Model {
		other := *r
		other.Model = model
		r = &other
	}
	reply, err := s.Next.Submit(ctx, r)
	if err == nil {
		reply.Timing.Variant = by
	}
	return reply, err
}

// faulty reports whether an answer is the fault of who gave it, so that another
// might do better. What the client did is nobody else's fault.
func faulty(ctx context.Context, reply *backends.Reply, err error) bool {
	if err == nil {
		return reply.Status >= 500
	}
	var told *openai.Error
	if errors.As(err, &told) {
		return told.Status >= 500
	}
	return ctx.Err() == nil && !errors.Is(err, backends.ErrClientGone) && !errors.Is(err, backends.ErrTooLong)
}
