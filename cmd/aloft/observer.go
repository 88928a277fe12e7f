package main

import (
	"cmp"
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"aloft/backends"
	"aloft/gateway"
	"aloft/gateway/variants"
)

// observer hears of every request: it books knee work, counts by the GenAI
// conventions, and records spans. It implements gateway.Observer.
type observer struct {
	serving  *serving
	spans    *spans // nil: none
	measured *measured
	refused  metric.Int64Counter
	recorder *recorder // nil: none
	book     *variants.Book
}

// label is what requests are told apart by: models of the configuration, and
// words from closed lists. Never a tenant, a key or an id.
type label struct {
	model     string
	operation string // endpoints may share one
	class     backends.Class
	route     string
	variant   string // who served it, of a model that has variants
	reason    string // of a failure
}

func (by label) attributes() []attribute.KeyValue {
	attrs := []attribute.KeyValue{attribute.String("gen_ai.operation.name", by.operation),
		attribute.String("gen_ai.provider.name", "aloft"), attribute.String("gen_ai.request.model", by.model),
		attribute.String("aloft.class", by.class.String())}
	if by.route != "" {
		attrs = append(attrs, attribute.String("aloft.route", by.route))
	}
	if by.variant != "" {
		attrs = append(attrs, attribute.String("aloft.variant", by.variant))
	}
	if by.reason != "" {
		attrs = append(attrs, attribute.String("error.type", by.reason))
	}
	return attrs
}

func newObserver(s *serving, t *telemetry) (*observer, error) {
	refused, err := t.meter().Int64Counter("aloft.requests.refused", metric.WithUnit("{request}"),
		metric.WithDescription("Requests refused before a model was found"))
	return &observer{serving: s, spans: t.spans(), measured: t.measured, refused: refused}, err
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
	m := o.serving.served(r.Model, r.Timing.Variant)
	if m == nil { // no label for what a client made up
		o.refused.Add(context.Background(), 1, metric.WithAttributes(attribute.Int("http.response.status_code", r.Status)))
		return
	}
	o.measured.count(r.Model, &r)
	o.compareSides(&r)
	o.recorder.observe(&r)
	switch {
	case r.Timing.Route == backends.RouteOverflow:
		m.charge(&r)
	case r.Timing.Route == "" && !o.serving.isLent(r.Timing.Replica): // a borrowed slice is booked as a whole
		m.book(&r)
	}
}

// count adds a request to the histograms of its label.
func (m *measured) count(model string, r *gateway.Outcome) {
	by := label{model: model, operation: operationOf(r.Endpoint), class: r.Class, route: r.Timing.Route, variant: r.Timing.Variant}
	if r.Status >= 400 {
		by.reason = cmp.Or(r.Reason, "error")
	}
	set := m.set(by)
	set.mu.Lock()
	defer set.mu.Unlock()
	set.add(duration, r.Total.Seconds())
	if r.FirstToken > 0 {
		set.add(firstToken, r.FirstToken.Seconds())
	}
	if r.Stream && r.CompletionTokens > 1 && r.FirstToken > 0 {
		set.add(perToken, (r.Total-r.FirstToken).Seconds()/float64(r.CompletionTokens-1))
	}
	if r.PromptTokens > 0 {
		set.add(inputTokens, float64(r.PromptTokens))
	}
	if r.CompletionTokens > 0 {
		set.add(outputTokens, float64(r.CompletionTokens))
	}
}
