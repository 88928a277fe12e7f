// Package variants divides the requests of a served model between the model
// itself and variants of it (a quantized one, a smaller one), compares what they
// answer and how fast, and judges by a rule whether a variant should take over.
//
// What is decided is decided by pure functions: Split.Pick says who serves a
// request, Agree how alike two answers are, Judge what the numbers call for.
// Splitter and Shadow act on that; they stand in front of caches and queues, so
// that nothing below them mixes up two models' answers.
package variants

import (
	"context"

	"aloft/backends"
)

// What a request of a divided model may be said to have been served by, besides
// the name of a variant.
const (
	Base     = "base"     // the model itself
	Fallback = "fallback" // the model itself, in place of a variant that could not
)

// Submitter is what a request goes to next: gateway.Submitter, which this package
// may not import.
type Submitter interface {
	Submit(ctx context.Context, req *backends.Request) (*backends.Reply, error)
}

// Split is how a model's requests are divided. It is never changed.
type Split struct {
	Model  string // what serves the model itself: it, or the variant that was promoted
	By     string // and what answers say of that: Base, or the variant's name
	Shares []Share
}

// Share is a variant's part.
type Share struct {
	Name   string  // of the variant
	Model  string  // what serves it
	Share  float64 // of the requests, 0 to 1; all together at most 1
	Shadow float64 // of the whole answers, asked of the other side too
}

// Pick is who serves the requests of a key: the same one as long as the shares
// are the same, since a session that changed sides would meet a cold cache and
// another style. nil = the model itself.
func (s *Split) Pick(key uint64) *Share {
	at := float64(key>>11) / (1 << 53) // from 0 up to 1
	for i := range s.Shares {
		if at < s.Shares[i].Share {
			return &s.Shares[i]
		}
		at -= s.Shares[i].Share
	}
	return nil
}
