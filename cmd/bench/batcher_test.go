package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"aloft/backends"
	"aloft/backends/openai"
	"aloft/loadgen/arrivals"
	"aloft/sim/batching"
)

// timed is an engine that takes as long as the world's law says.
type timed struct{ batching.World }

func (e timed) Do(_ context.Context, c *backends.Call) (*backends.Reply, error) {
	var body struct{ Input [][]int }
	if err := json.Unmarshal(c.Body, &body); err != nil {
		return nil, err
	}
	tokens, rows := 0, make([][]byte, len(body.Input))
	for i, ids := range body.Input {
		tokens += len(ids)
		rows[i] = []byte("[0.5]")
	}
	time.Sleep(e.Law.Batch(tokens))
	text, err := openai.AppendEmbeddings(nil, rows, openai.EmbeddingsReply{Model: "timed", PromptTokens: tokens})
	return &backends.Reply{Status: 200, Body: io.NopCloser(bytes.NewReader(text))}, err
}

// What drives the arms in real time serves what the simulator says, where the
// machine takes no time: the two differ by nothing else.
func TestDrivenAgreesWithSimulated(t *testing.T) {
	w := onHTTP(true)
	source, err := batching.NewSource(batching.Traffic{Name: poissonTail, Kind: arrivals.Poisson, Lengths: batching.HeavyTail()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := source.Draw(1.2*w.Knee(source.Mean), 5*time.Second, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, arm := range []string{batching.FixedArm, batching.CorkArm, batching.LateArm, batching.Ours} {
		synctest.Test(t, func(t *testing.T) {
			f := &timedFleet{world: w, fleet: w.Fleet()}
			for i := range f.fleet {
				f.fleet[i].Backend = timed{w}
			}
			book := newLedger(w, plan.Requests)
			if err := f.drive(t.Context(), arm, batching.Fixed{}, book); err != nil {
				t.Fatal(err)
			}
			virtual := batching.Simulate(w, batching.New(arm, w, batching.Fixed{}), plan.Requests)
			if got, want := book.attainment(), virtual.Attainment(); got < want-0.01 || got > want+0.01 {
				t.Errorf("%s: driven %.4f in time, simulated %.4f", arm, got, want)
			}
			if late := book.lag(1); late != 0 {
				t.Errorf("%s: sent %v late", arm, late)
			}
		})
	}
}

// A driven rule ends, with the error, when an engine fails or the run is over.
func TestDrivenEnds(t *testing.T) {
	w := onHTTP(true)
	reqs := []batching.Request{{At: 0, Tokens: 3}, {At: time.Second, Tokens: 3}, {At: time.Hour, Tokens: 3}}
	for name, c := range map[string]struct {
		engine backends.Backend
		err    error
	}{
		"failed engine": {failing{}, backends.ErrConnect},
		"run is over":   {timed{w}, context.DeadlineExceeded},
	} {
		for _, arm := range []string{batching.FixedArm, batching.Ours} {
			if arm == batching.Ours && c.err != context.DeadlineExceeded {
				continue // the batcher answers who asked: that is a refusal
			}
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				f := &timedFleet{world: w, fleet: w.Fleet()}
				for i := range f.fleet {
					f.fleet[i].Backend = c.engine
				}
				if err := f.drive(ctx, arm, batching.Fixed{}, newLedger(w, reqs)); err != c.err {
					t.Errorf("%s, %s: %v, want %v", name, arm, err, c.err)
				}
			})
		}
	}
}

type failing struct{}

func (failing) Do(context.Context, *backends.Call) (*backends.Reply, error) {
	return nil, backends.ErrConnect
}

// The core's cost is measured with what is said to wait, and the marks hold with
// room: this counts allocations and bytes, no time.
func TestCoreCost(t *testing.T) {
	var r result
	coreCost(&lab{quick: true}, &r)
	for _, m := range r.marks {
		if !m.OK && !strings.Contains(m.Name, "CPU time") {
			t.Errorf("%s is %v, want %s", m.Name, m.Value, m.Mark)
		}
	}
}
