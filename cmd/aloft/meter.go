package main

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"aloft/backends"
	"aloft/gateway"
)

// meter sums the replica time that a model's requests cost a full replica
// (knee work), by what became of them.
type meter struct {
	mu                 sync.Mutex
	rate               float64 // seconds of a replica that one token of demand costs
	useful, late, rows time.Duration
}

// charge sets the rate of the requests to come.
func (m *meter) charge(rate float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rate = rate
}

func (m *meter) totals() (useful, late, rows time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.useful, m.late, m.rows
}

// observer hears of every request: it books knee work and counts. It implements
// gateway.Observer.
type observer struct {
	serving  *serving
	duration metric.Float64Histogram
	first    metric.Float64Histogram
	tokens   metric.Int64Histogram
	lent     func(replica string) bool
}

// buckets of the GenAI conventions: they double from 10 ms.
var durationBuckets = []float64{0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92}
var tokenBuckets = []float64{1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864}

func newObserver(s *serving, meter metric.Meter) (*observer, error) {
	o := &observer{serving: s, lent: s.isLent}
	var err error
	hist := func(name, unit, what string, bounds []float64) metric.Float64Histogram {
		h, e := meter.Float64Histogram(name, metric.WithUnit(unit), metric.WithDescription(what), metric.WithExplicitBucketBoundaries(bounds...))
		if e != nil {
			err = e
		}
		return h
	}
	o.duration = hist("gen_ai.server.request.duration", "s", "Time from arrival to the last byte", durationBuckets)
	o.first = hist("gen_ai.server.time_to_first_token", "s", "Time from arrival to the first content", durationBuckets)
	tokens, e := meter.Int64Histogram("gen_ai.client.token.usage", metric.WithUnit("{token}"),
		metric.WithDescription("Tokens of a request"), metric.WithExplicitBucketBoundaries(tokenBuckets...))
	if e != nil {
		err = e
	}
	o.tokens = tokens
	return o, err
}

var operation = map[backends.Endpoint]string{backends.Chat: "chat", backends.Completions: "text_completion", backends.Embeddings: "embeddings"}

// Observe implements gateway.Observer.
func (o *observer) Observe(r gateway.Outcome) {
	m := o.serving.model(r.Model)
	if m == nil {
		return // unknown model: no label for what a client made up
	}
	attrs := []attribute.KeyValue{attribute.String("gen_ai.operation.name", operation[r.Endpoint]),
		attribute.String("gen_ai.provider.name", "aloft"), attribute.String("gen_ai.request.model", r.Model),
		attribute.String("aloft.class", r.Class.String())}
	if r.Status >= 400 {
		attrs = append(attrs, attribute.String("error.type", first(r.Reason, "error")))
	}
	ctx, set := context.Background(), metric.WithAttributes(attrs...)
	o.duration.Record(ctx, r.Total.Seconds(), set)
	if r.FirstToken > 0 {
		o.first.Record(ctx, r.FirstToken.Seconds(), set)
	}
	if r.PromptTokens > 0 {
		o.tokens.Record(ctx, int64(r.PromptTokens), set, metric.WithAttributes(attribute.String("gen_ai.token.type", "input")))
	}
	if r.CompletionTokens > 0 {
		o.tokens.Record(ctx, int64(r.CompletionTokens), set, metric.WithAttributes(attribute.String("gen_ai.token.type", "output")))
	}
	if !o.lent(r.Timing.Replica) { // a borrowed slice is booked as a whole
		m.book(r)
	}
}

// book charges the knee work of one request. Merged calls cost their tokens at
// the rate of the knee; a generation costs its share of a full replica's slots.
func (m *served) book(r gateway.Outcome) {
	if r.Status >= 400 && r.Status != 499 {
		return // refused: no replica spent time on it
	}
	m.meter.mu.Lock()
	defer m.meter.mu.Unlock()
	var spent, latency time.Duration
	if m.embeds() {
		spent, latency = time.Duration(float64(r.PromptTokens)*m.meter.rate*float64(time.Second)), r.Total
	} else {
		spent, latency = max(0, r.Total-r.Timing.Queue)/time.Duration(m.Slots), r.FirstToken
	}
	switch {
	case r.Class == backends.Offline:
		m.meter.rows += spent
	case r.Status == 499 || latency > m.Target:
		m.meter.late += spent
	default:
		m.meter.useful += spent
	}
}
