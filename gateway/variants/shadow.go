package variants

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"time"

	"aloft/backends"
)

// Bounds of what is compared: it is a sample, beside everything else.
const (
	shadowQueue = 4        // answers that wait to be compared; more are passed over
	shadowBytes = 64 << 10 // of a request, and of its answer
	shadowTime  = time.Minute
)

// Shadow asks the other side what one side was asked, at class offline, and notes
// how alike the answers are. Requests are compared one at a time; nothing of them
// is kept. They are asked in nobody's name: no tenant pays for them.
type Shadow struct {
	Next Submitter
	Book *Book

	queue chan pair
}

// NewShadow returns one that compares nothing until it is run.
func NewShadow(next Submitter, book *Book) *Shadow {
	return &Shadow{Next: next, Book: book, queue: make(chan pair, shadowQueue)}
}

// pair is a request that one side has answered, with what both are called.
type pair struct {
	req            backends.Request
	model, variant string
	other          string // what serves the side that is still to be asked
	mine           string // and the one that has answered
	answer         []byte
}

// see looks at an answer of a variant (nil: of the model) on its way out, and
// queues it when it is whole, if it is one of those to be compared.
func (s *Shadow) see(r *backends.Request, reply *backends.Reply, split *Split, by *Share) {
	if s == nil || r.Stream || !comparable(r.Endpoint) || r.Class == backends.Offline || len(r.Body) > shadowBytes || r.Place.Adapter != "" {
		return
	}
	if reply == nil || reply.Status != 200 || len(split.Shares) == 0 {
		return
	}
	p := pair{req: *r, model: r.Model, mine: split.Model}
	to := by
	if to == nil { // one of the variants in turn
		to = &split.Shares[rand.IntN(len(split.Shares))]
		p.other = to.Model
	} else {
		p.mine, p.other = by.Model, split.Model
	}
	if to.Shadow <= 0 || rand.Float64() >= to.Shadow || len(s.queue) == shadowQueue {
		return
	}
	p.variant = to.Name
	reply.Body = &copied{ReadCloser: reply.Body, whole: func(answer []byte) {
		p.answer = answer
		select {
		case s.queue <- p:
		default: // it is a sample
		}
	}}
}

// copied is a body of which a copy is taken while it is read.
type copied struct {
	io.ReadCloser
	kept  []byte
	over  bool // too large, or handed on
	whole func([]byte)
}

// Read implements io.Reader.
func (c *copied) Read(b []byte) (int, error) {
	n, err := c.ReadCloser.Read(b)
	if c.over {
		return n, err
	}
	c.kept = append(c.kept, b[:n]...)
	switch {
	case len(c.kept) > shadowBytes:
		c.kept, c.over = nil, true
	case errors.Is(err, io.EOF):
		c.over = true
		c.whole(c.kept)
		c.kept = nil
	}
	return n, err
}

// Len implements backends.Sized.
func (c *copied) Len() int {
	if s, ok := c.ReadCloser.(backends.Sized); ok {
		return s.Len()
	}
	return -1
}

// Run compares until ctx ends.
func (s *Shadow) Run(ctx context.Context) {
	for {
		select {
		case p := <-s.queue:
			s.compare(ctx, p)
		case <-ctx.Done():
			return
		}
	}
}

// compare asks the other side, and where chance was in the answer that there is,
// both. What fails is not compared: failures are counted where clients meet them.
func (s *Shadow) compare(ctx context.Context, p pair) {
	ctx, cancel := context.WithTimeout(ctx, shadowTime)
	defer cancel()
	if p.req.Endpoint != backends.Embeddings {
		body, already := greedy(p.req.Body)
		if body == nil {
			return
		}
		p.req.Body = body
		if !already {
			var err error
			if p.answer, err = s.ask(ctx, p.req, p.mine); err != nil {
				return
			}
		}
	}
	other, err := s.ask(ctx, p.req, p.other)
	if err != nil {
		return
	}
	if alike, exact, ok := Agree(&p.req, p.answer, other); ok {
		s.Book.Compared(p.model, p.variant, alike, exact)
	}
}

// ask sends a copy of a request to a model and reads the whole answer.
func (s *Shadow) ask(ctx context.Context, r backends.Request, model string) ([]byte, error) {
	r.ID, r.Model, r.Tenant, r.Class, r.Header = "shadow-"+r.ID, model, "", backends.Offline, nil
	r.Place, r.Arrival, r.Deadline = backends.Placement{}, time.Now(), time.Time{}
	reply, err := s.Next.Submit(ctx, &r)
	if err != nil {
		return nil, err
	}
	defer reply.Body.Close()
	body, err := io.ReadAll(io.LimitReader(reply.Body, shadowBytes+1))
	switch {
	case err != nil:
		return nil, err
	case reply.Status != 200 || len(body) > shadowBytes:
		return nil, backends.ErrBadReply
	}
	return body, nil
}
