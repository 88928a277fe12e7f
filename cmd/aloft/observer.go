package main

import (
	"cmp"
	"context"
	"errors"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"aloft/backends"
	"aloft/gateway"
)

// observer hears of every request: it books knee work, counts by the GenAI
// conventions, and records spans. It implements gateway.Observer.
type observer struct {
	serving  *serving
	spans    *spans // nil: none
	duration metric.Float64Histogram
	first    metric.Float64Histogram
	token    metric.Float64Histogram
	tokens   metric.Int64Histogram
	refused  metric.Int64Counter

	mu   sync.RWMutex
	sets map[label]labelled
}

// label is what requests are told apart by: models of the configuration, and
// words from closed lists. Never a tenant, a key or an id.
type label struct {
	model    string
	endpoint backends.Endpoint
	class    backends.Class
	route    string
	reason   string // of a failure
}

// labelled are a label's attributes, made once: they are the costly part.
type labelled struct{ all, input, output []metric.RecordOption }

// buckets of the GenAI conventions: they double from 10 ms.
var durationBuckets = []float64{0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92}
var perTokenBuckets = []float64{0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5}
var tokenBuckets = []float64{1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864}

func newObserver(s *serving, meter metric.Meter, sp *spans) (*observer, error) {
	o := &observer{serving: s, spans: sp, sets: map[label]labelled{}}
	var errs []error
	seconds := func(name, what string, bounds []float64) metric.Float64Histogram {
		h, err := meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(what), metric.WithExplicitBucketBoundaries(bounds...))
		errs = append(errs, err)
		return h
	}
	o.duration = seconds("gen_ai.server.request.duration", "Time from arrival to the last byte", durationBuckets)
	o.first = seconds("gen_ai.server.time_to_first_token", "Time from arrival to the first content", durationBuckets)
	o.token = seconds("gen_ai.server.time_per_output_token", "Time of each token after the first, of streams", perTokenBuckets)
	var err error
	o.tokens, err = meter.Int64Histogram("gen_ai.client.token.usage", metric.WithUnit("{token}"),
		metric.WithDescription("Tokens of a request"), metric.WithExplicitBucketBoundaries(tokenBuckets...))
	errs = append(errs, err)
	o.refused, err = meter.Int64Counter("aloft.requests.refused", metric.WithUnit("{request}"),
		metric.WithDescription("Requests refused before a model was found"))
	return o, errors.Join(append(errs, err)...)
}

// operationOf is gen_ai.operation.name, by the conventions' own words where
// they have one.
func operationOf(e backends.Endpoint) string {
	switch e {
	case backends.Responses, backends.Messages:
		return "chat"
	case backends.Completions:
		return "text_completion"
	}
	return string(e)
}

// Observe implements gateway.Observer.
func (o *observer) Observe(r gateway.Outcome) {
	o.spans.record(&r)
	ctx := context.Background()
	m := o.serving.model(r.Model)
	if m == nil { // no label for what a client made up
		o.refused.Add(ctx, 1, metric.WithAttributes(attribute.Int("http.response.status_code", r.Status)))
		return
	}
	by := label{model: m.Name, endpoint: r.Endpoint, class: r.Class, route: r.Timing.Route}
	if r.Status >= 400 {
		by.reason = cmp.Or(r.Reason, "error")
	}
	set := o.set(by)
	o.duration.Record(ctx, r.Total.Seconds(), set.all...)
	if r.FirstToken > 0 {
		o.first.Record(ctx, r.FirstToken.Seconds(), set.all...)
	}
	if r.Stream && r.CompletionTokens > 1 && r.FirstToken > 0 {
		o.token.Record(ctx, (r.Total-r.FirstToken).Seconds()/float64(r.CompletionTokens-1), set.all...)
	}
	if r.PromptTokens > 0 {
		o.tokens.Record(ctx, int64(r.PromptTokens), set.input...)
	}
	if r.CompletionTokens > 0 {
		o.tokens.Record(ctx, int64(r.CompletionTokens), set.output...)
	}
	switch {
	case r.Timing.Route == backends.RouteOverflow:
		m.charge(&r)
	case r.Timing.Route == "" && !o.serving.isLent(r.Timing.Replica): // a borrowed slice is booked as a whole
		m.book(&r)
	}
}

// set finds a label's attributes.
func (o *observer) set(by label) labelled {
	o.mu.RLock()
	s, ok := o.sets[by]
	o.mu.RUnlock()
	if ok {
		return s
	}
	attrs := []attribute.KeyValue{attribute.String("gen_ai.operation.name", operationOf(by.endpoint)),
		attribute.String("gen_ai.provider.name", "aloft"), attribute.String("gen_ai.request.model", by.model),
		attribute.String("aloft.class", by.class.String())}
	if by.route != "" {
		attrs = append(attrs, attribute.String("aloft.route", by.route))
	}
	if by.reason != "" {
		attrs = append(attrs, attribute.String("error.type", by.reason))
	}
	with := func(more ...attribute.KeyValue) []metric.RecordOption {
		return []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(append(more, attrs...)...))}
	}
	s = labelled{with(), with(attribute.String("gen_ai.token.type", "input")), with(attribute.String("gen_ai.token.type", "output"))}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sets[by] = s
	return s
}
