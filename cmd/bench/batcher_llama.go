package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
)

// A short text and many clients: where merging gains the most.
const (
	realTokens  = 6
	realClients = 32
)

// readySizes are the batches that one client sends; the best of them is what
// merging is held to.
var readySizes = []int{8, 16, 32, 64}

// realEngine compares merging with single calls and with ready-made batches, before
// the real encoder.
func realEngine(ctx context.Context, l *lab, r *result) error {
	e, stop, err := l.encoders(ctx)
	if err != nil {
		return err
	}
	defer stop()
	t := e(realTokens)
	if err := t.prepare(ctx); err != nil {
		return err
	}
	if err := t.bestReady(ctx); err != nil {
		return err
	}
	for round := range l.rounds() {
		cells := []key{{off, realClients}, {on, realClients}, {ready, 1}}
		if round%2 == 1 {
			slices.Reverse(cells)
		}
		for _, k := range cells {
			v, err := t.rate(ctx, k)
			if err != nil {
				return fmt.Errorf("batcher %s: %w", k.way, err)
			}
			t.rates[k] = append(t.rates[k], v)
		}
	}
	merged, single, made := key{on, realClients}, key{off, realClients}, key{ready, 1}
	overSingle, overMade := spreadOf(each(t.rates[merged], t.rates[single], ratio)), spreadOf(each(t.rates[merged], t.rates[made], ratio))
	p99, p99Single := quantile(t.waits[merged], 0.99), quantile(t.waits[single], 0.99)
	l.say("batcher, real encoder: %.2f x no batching, %.2f x ready-made batches of %d, p99 %.1f ms beside %.1f ms", overSingle.median, overMade.median, t.size, p99, p99Single)
	r.note("Before the real encoder on this machine's CPUs (`cmd/bench/servers/batcher-on.yaml`, `-off.yaml`), texts of %d tokens, %d clients in a closed loop: "+
		"merged %s embeddings/s, single calls %s, one client with ready-made batches of %d (the best of %v) %s; p99 of a request %.1f ms merged, %.1f ms single.",
		realTokens, realClients, spreadOf(t.rates[merged]).show("%.0f"), spreadOf(t.rates[single]).show("%.0f"), t.size, readySizes, spreadOf(t.rates[made]).show("%.0f"), p99, p99Single)
	r.atLeastIn("real encoder: embeddings/s, merged / single calls", interval(overSingle), 1.5)
	r.atLeastIn("real encoder: embeddings/s, merged / ready-made batches of the best size", interval(overMade), 0.95)
	r.atMost("real encoder: p99 of a request, merged / single calls", p99/p99Single, 1)
	return nil
}

// bestReady settles on the size of ready-made batches that gives the highest rate.
func (e *embedding) bestReady(ctx context.Context) error {
	best, most := e.size, 0.0
	for _, n := range readySizes {
		e.readyMade(n)
		v, err := e.rate(ctx, key{ready, 1})
		if err != nil {
			return err
		}
		if v > most {
			best, most = n, v
		}
	}
	e.readyMade(best)
	clear(e.costs)
	clear(e.waits)
	return nil
}

// encoders starts the servers with the batcher on and off; the function that it
// returns makes a comparison for texts of a length.
func (l *lab) encoders(ctx context.Context) (of func(tokens int) *embedding, stop func(), err error) {
	var engine *client
	servers := map[string]*child{}
	stop = func() {
		if engine != nil {
			engine.http.CloseIdleConnections()
		}
		for _, c := range servers {
			c.stop()
		}
	}
	for _, way := range []string{on, off} {
		if servers[way], err = l.serve(ctx, "batcher-"+way+".yaml"); err != nil {
			delete(servers, way)
			stop()
			return nil, nil, err
		}
	}
	base, err := announced(filepath.Join(servers[on].dir, "logs", encoder+"-1.log"))
	if err != nil {
		stop()
		return nil, nil, fmt.Errorf("find the engine: %w", err)
	}
	engine = newClient(base)
	return func(tokens int) *embedding {
		return &embedding{lab: l, on: servers[on], off: servers[off], engine: engine, tokens: tokens,
			rates: map[key][]float64{}, costs: map[key]*cost{}, waits: map[key][]float64{}}
	}, stop, nil
}
