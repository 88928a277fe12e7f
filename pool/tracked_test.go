package pool

import (
	"context"
	"io"
	"testing"

	"aloft/backends"
)

// events is a body that hands out events and knows its length.
type events struct{ io.ReadCloser }

func (events) Len() int { return 3 }

func (events) NextEvent() ([]byte, bool, error) { return []byte("x"), true, nil }

func (events) Close() error { return nil }

type answering struct{ body io.ReadCloser }

func (a answering) Do(context.Context, *backends.Call) (*backends.Reply, error) {
	return &backends.Reply{Status: 200, Body: a.body}, nil
}

// What an engine's body offers besides Read is kept, and its end is counted.
func TestTrackedKeepsWhatABodyOffers(t *testing.T) {
	for _, tc := range []struct {
		body   io.ReadCloser
		events bool
		size   int
	}{{events{}, true, 3}, {io.NopCloser(nil), false, -1}} {
		tr := track(answering{tc.body}, func() {})
		reply, err := tr.Do(t.Context(), &backends.Call{})
		if err != nil {
			t.Fatal(err)
		}
		r, ok := reply.Body.(backends.EventReader)
		if n := reply.Body.(backends.Sized).Len(); ok != tc.events || n != tc.size {
			t.Errorf("%T: events %v, size %d; want %v, %d", tc.body, ok, n, tc.events, tc.size)
		}
		if ok {
			if e, more, err := r.NextEvent(); string(e) != "x" || !more || err != nil {
				t.Errorf("%s %v %v", e, more, err)
			}
		}
		if n := tr.outstanding(); n != 1 {
			t.Errorf("%d outstanding, want 1", n)
		}
		reply.Body.Close()
		if n := tr.outstanding(); n != 0 {
			t.Errorf("%d outstanding after the end", n)
		}
	}
}
