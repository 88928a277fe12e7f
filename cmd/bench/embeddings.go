package main

import (
	"context"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// ways are the three ways to have texts embedded that are compared.
const (
	on    = "on"    // one text a request, the batcher merges them
	off   = "off"   // one text a request, one engine call each
	ready = "ready" // one client, batches made by the client
)

// key names one cell of the table.
type key struct {
	way     string
	clients int
}

// embedding compares the ways for texts of one length.
type embedding struct {
	lab     *lab
	on, off *child
	engine  *client // of the server with the batcher on; its counters say how rows were merged
	tokens  int
	texts   []string
	bodies  [][]byte
	batches [][]byte
	size    int // rows of a ready-made batch
	formed  []float64
	rates   map[key][]float64 // embeddings/s, one a round
	costs   map[key]*cost
	waits   map[key][]float64 // ms, from sending to the last byte
}

var clientCounts = []int{1, 8, 32}

func embeddings(ctx context.Context, l *lab) (*result, error) {
	of, stop, err := l.encoders(ctx)
	if err != nil {
		return nil, err
	}
	defer stop()
	r := &result{title: "Embeddings: batcher on and off",
		how: "Embeddings/s of `aloft serve` with one replica of the real encoder (`cmd/bench/servers/batcher-on.yaml`, `-off.yaml`). " +
			"Clients are closed loops over loopback on the same machine, one text a request. *Ready-made* is one client that sends whole batches, " +
			"of as many rows as the batcher formed at 32 clients, to the server with the batcher on. Texts are openings of Bible verses " +
			"(`configs/sentences.txt`), cut after the word with which the engine's own usage reports the wanted number of tokens, [CLS] and [SEP] included. " +
			"The ways take turns in every round; rates are the best of the rounds, ratios the median of the rounds' ratios (lowest to highest).",
		head: []string{"tokens", "clients", "on, best", "off, best", "on / off", "ready-made, best", "on / ready-made"}}
	for _, tokens := range []int{6, 20} {
		e := of(tokens)
		if err := e.prepare(ctx); err != nil {
			return nil, err
		}
		for round := range l.rounds() {
			if err := e.round(ctx, round); err != nil {
				return nil, err
			}
		}
		e.report(r)
	}
	return r, nil
}

// prepare finds the texts and lets the batcher run at 32 clients, which teaches
// it the engine's times and us the size of its batches.
func (e *embedding) prepare(ctx context.Context) error {
	n := 192
	if e.lab.quick {
		n = 48
	}
	texts, err := textsOf(ctx, e.off.client, e.tokens, n)
	if err != nil {
		return err
	}
	for _, t := range texts {
		e.bodies = append(e.bodies, embedBody(encoder, t))
	}
	var rows float64
	for range 2 { // the first teaches the batcher the engine's times for this length
		if _, rows, err = e.merged(ctx); err != nil {
			return err
		}
	}
	clear(e.costs)
	clear(e.waits)
	e.texts = texts
	e.readyMade(max(1, int(math.Round(rows))))
	return nil
}

// readyMade makes batches of n rows.
func (e *embedding) readyMade(n int) {
	e.size, e.batches = n, nil
	for batch := range slices.Chunk(slices.Concat(e.texts, e.texts), n) {
		if len(batch) == n {
			e.batches = append(e.batches, embedBody(encoder, batch...))
		}
	}
}

// merged is the rate with the batcher on at 32 clients, and how many rows the
// engine calls had that it was made of.
func (e *embedding) merged(ctx context.Context) (rate, rows float64, err error) {
	calls0, rows0, err := e.counters(ctx)
	if err != nil {
		return 0, 0, err
	}
	if rate, err = e.rate(ctx, key{on, 32}); err != nil {
		return 0, 0, err
	}
	calls1, rows1, err := e.counters(ctx)
	return rate, (rows1 - rows0) / (calls1 - calls0), err
}

// counters reads the engine's own count of embedding calls and their rows.
func (e *embedding) counters(ctx context.Context) (calls, rows float64, err error) {
	text, err := e.engine.getText(ctx, "/metrics")
	if err != nil {
		return 0, 0, err
	}
	read := func(name string) (v float64) {
		m := regexp.MustCompile(`(?m)^` + name + `{.*} (\d+)$`).FindSubmatch(text)
		if m == nil {
			err = fmt.Errorf("the engine's metrics have no %s", name)
			return 0
		}
		v, _ = strconv.ParseFloat(string(m[1]), 64) // digits
		return v
	}
	calls, rows = read("aloft_engine_embed_calls_total"), read("aloft_engine_embed_rows_total")
	return calls, rows, err
}

// round measures every cell once. What is compared is measured back to back, and
// every other round goes the other way round.
func (e *embedding) round(ctx context.Context, round int) error {
	var cells []key
	for _, n := range clientCounts {
		cells = append(cells, key{off, n}, key{on, n})
	}
	cells = append(cells, key{ready, 1}) // next to on at 32 clients
	if round%2 == 1 {
		slices.Reverse(cells)
	}
	for _, k := range cells {
		var v, rows float64
		var err error
		if k == (key{on, 32}) {
			v, rows, err = e.merged(ctx)
			e.formed = append(e.formed, rows)
		} else {
			v, err = e.rate(ctx, k)
		}
		if err != nil {
			return fmt.Errorf("batcher %s, %d clients: %w", k.way, k.clients, err)
		}
		e.rates[k] = append(e.rates[k], v)
	}
	last := func(k key) float64 { return e.rates[k][round] }
	e.lab.say("embeddings, %d tokens, round %d of %d: at 32 clients on %.0f/s, off %.0f/s, ready-made %.0f/s", e.tokens, round+1, e.lab.rounds(),
		last(key{on, 32}), last(key{off, 32}), last(key{ready, 1}))
	return nil
}

func (e *embedding) rate(ctx context.Context, k key) (float64, error) {
	server, bodies, rows := e.on, e.bodies, 1
	switch k.way {
	case off:
		server = e.off
	case ready:
		bodies, rows = e.batches, e.size
	}
	var done atomic.Int64
	var waits sync.Mutex
	before := cpuOf(server)
	rate, err := loop{n: k.clients, span: e.lab.span(span), send: func(ctx context.Context, i int, count func(int)) error {
		began := time.Now()
		_, err := server.post(ctx, "/v1/embeddings", bodies[i%len(bodies)], nil)
		if err == nil {
			done.Add(int64(rows))
			count(rows)
			waits.Lock()
			e.waits[k] = append(e.waits[k], ms(time.Since(began)))
			waits.Unlock()
		}
		return err
	}}.rate(ctx)
	if e.costs[k] == nil {
		e.costs[k] = &cost{}
	}
	e.costs[k].add(before, cpuOf(server), int(done.Load()))
	return rate, err
}

func (e *embedding) report(r *result) {
	formed := spreadOf(e.formed)
	r.note("%d-token texts: the batcher formed batches of %s rows at 32 clients; ready-made ones had %d. "+
		"CPU time of one embedding in ms, engine + server + clients: on %v, off %v, ready-made %v.",
		e.tokens, formed.show("%.1f"), e.size, e.costs[key{on, 32}], e.costs[key{off, 32}], e.costs[key{ready, 1}])
	for _, n := range clientCounts {
		a, b := e.rates[key{on, n}], e.rates[key{off, n}]
		overOff := spreadOf(each(a, b, ratio))
		row := []string{fmt.Sprint(e.tokens), fmt.Sprint(n), fmt.Sprintf("%.0f/s", spreadOf(a).max), fmt.Sprintf("%.0f/s", spreadOf(b).max), overOff.show("%.2f"), "", ""}
		name := fmt.Sprintf("%d tokens, %d clients", e.tokens, n)
		r.measured(name+": batcher on, embeddings/s", spreadOf(a).max)
		r.measured(name+": batcher off, embeddings/s", spreadOf(b).max)
		if n == 32 {
			made := e.rates[key{ready, 1}]
			overReady := spreadOf(each(a, made, ratio))
			row[5], row[6] = fmt.Sprintf("%.0f/s", spreadOf(made).max), overReady.show("%.2f")
			r.measured(fmt.Sprintf("%d tokens: one client, ready-made batches of %d, embeddings/s", e.tokens, e.size), spreadOf(made).max)
			// The marks are issue 2's, for short texts, where calls cost the most.
			if e.tokens == 6 {
				r.atLeast(name+": on / off", overOff.median, 1.5)
				r.atLeast(name+": on / ready-made", overReady.median, 0.9)
			}
		}
		r.row(row...)
	}
}

// span is how long one cell of a round is measured: 70 of them stay below two
// minutes, and a cell still holds a hundred engine calls.
const span = time.Second
