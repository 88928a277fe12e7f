package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"
)

// route is one request that is sent both ways.
type route struct {
	model, path string
	body        []byte
	gap         time.Duration // between two requests
}

func overhead(ctx context.Context, l *lab) (*result, error) {
	server, err := l.serve(ctx, "overhead.yaml")
	if err != nil {
		return nil, err
	}
	defer server.stop()
	text := sentences()[0]
	routes := []route{
		{"embed", "/v1/embeddings", embedBody("embed", text), 8 * time.Millisecond},
		// The timed engine needs 6 ms for a token.
		{"chat", "/v1/chat/completions", mustJSON(map[string]any{"model": "chat", "max_tokens": 1,
			"messages": []map[string]string{{"role": "user", "content": text}}}), 16 * time.Millisecond},
	}
	r := &result{title: "Gateway: added latency",
		how: "One unary request sent straight to the engine's process and through `aloft serve` (gateway, batcher, relay) to the very same process, in turns, " +
			"open loop at a fixed low rate (a request every 8 ms for embeddings, every 16 ms for chat), from sending to the last byte. " +
			"The engine is the timed one with alpha and beta 0 (`cmd/bench/servers/overhead.yaml`); a chat token takes it 6 ms. " +
			"Milliseconds; medians of the rounds' quantiles (lowest to highest), added = difference within a round.",
		head: []string{"request", "quantile", "engine", "through aloft", "added"}}
	for _, rt := range routes {
		base, err := announced(filepath.Join(server.dir, "logs", rt.model+"-1.log"))
		if err != nil {
			return nil, fmt.Errorf("find the engine of %s: %w", rt.model, err)
		}
		straight := newClient(base)
		defer straight.http.CloseIdleConnections()
		if err := rt.compare(ctx, l, [2]*client{straight, server.client}, r); err != nil {
			return nil, fmt.Errorf("%s: %w", rt.model, err)
		}
	}
	return r, nil
}

// compare measures one route in rounds and reports both quantiles.
func (rt route) compare(ctx context.Context, l *lab, ways [2]*client, r *result) error {
	pairs := 300
	if l.quick {
		pairs = 40
	}
	if _, _, err := rt.alternate(ctx, ways, 20); err != nil { // warms both ways
		return err
	}
	qs := []float64{0.5, 0.99}
	got := map[float64]*[2][]float64{0.5: {}, 0.99: {}}
	var late []float64
	for round := range l.rounds() {
		took, lag, err := rt.alternate(ctx, ways, pairs)
		if err != nil {
			return err
		}
		late = append(late, lag...)
		for _, q := range qs {
			for w := range ways {
				got[q][w] = append(got[q][w], quantile(took[w], q))
			}
		}
		l.say("overhead, %s, round %d of %d: p50 %.2f ms straight, %.2f ms through", rt.model, round+1, l.rounds(), got[0.5][0][round], got[0.5][1][round])
	}
	for _, q := range qs {
		straight, through := got[q][0], got[q][1]
		added := spreadOf(each(through, straight, difference))
		name := fmt.Sprintf("p%.0f", 100*q)
		r.row(rt.path, name, spreadOf(straight).show("%.2f"), spreadOf(through).show("%.2f"), added.show("%.2f"))
		r.measured(fmt.Sprintf("%s: added %s, ms", rt.path, name), added.median)
	}
	r.note("%s: %d requests each way a round; the generator sent them %.2f ms late at p50 and %.2f ms at p99.", rt.path, pairs, quantile(late, 0.5), quantile(late, 0.99))
	return nil
}

// alternate sends pairs of requests, one each way, every gap on the clock and
// whether or not earlier ones were answered. It returns the latencies of both
// ways and how late requests were sent, in ms.
func (rt route) alternate(ctx context.Context, ways [2]*client, pairs int) (took [2][]float64, late []float64, err error) {
	var mu sync.Mutex
	var all sync.WaitGroup
	var errs []error
	start := time.Now()
	for i := range 2 * pairs {
		due := start.Add(time.Duration(i) * rt.gap)
		if !pause(ctx, time.Until(due)) {
			errs = append(errs, context.Cause(ctx))
			break
		}
		all.Go(func() {
			began := time.Now()
			_, e := ways[i%2].post(ctx, rt.path, rt.body, nil)
			d := time.Since(began)
			mu.Lock()
			defer mu.Unlock()
			took[i%2] = append(took[i%2], ms(d))
			late = append(late, ms(began.Sub(due)))
			errs = append(errs, e)
		})
	}
	all.Wait()
	return took, late, errors.Join(errs...)
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
