package main

import (
	"cmp"
	"context"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"aloft/gateway"
)

// sampleRatio is the share of requests without a trace of their own that begin
// a recorded one, by OpenTelemetry's environment. A caller's own decision is
// always followed, as the parentbased samplers have it.
func sampleRatio() float64 {
	switch name := os.Getenv("OTEL_TRACES_SAMPLER"); strings.TrimPrefix(name, "parentbased_") {
	case "always_off":
		return 0
	case "traceidratio":
		ratio, err := strconv.ParseFloat(cmp.Or(os.Getenv("OTEL_TRACES_SAMPLER_ARG"), "1"), 64)
		if err != nil || !(ratio >= 0 && ratio <= 1) {
			return 1 // the specification's default for what cannot be read
		}
		return ratio
	}
	return 1
}

// spans records the span of a request once it has ended, with the ids that the
// edge had made when it came: nothing of it lies in the request's way.
type spans struct{ tracer trace.Tracer }

// record writes what a request was, and how its time was spent, by the semantic
// conventions for HTTP servers and for GenAI.
func (s *spans) record(o *gateway.Outcome) {
	if s == nil || !o.Trace.Sampled {
		return
	}
	made := o.Trace // o itself must not come to the heap for all the requests that are not sampled
	ctx := context.WithValue(context.Background(), ids{}, &made)
	if o.Trace.Parent != [8]byte{} {
		state, err := trace.ParseTraceState(o.Trace.State)
		if err != nil {
			state = trace.TraceState{} // the caller's mistake must not cost its trace
		}
		ctx = trace.ContextWithRemoteSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{
			TraceID: o.Trace.ID, SpanID: o.Trace.Parent, TraceFlags: trace.FlagsSampled, TraceState: state, Remote: true}))
	}
	name := operationOf(o.Endpoint)
	attrs := []attribute.KeyValue{
		attribute.String("http.request.method", "POST"), attribute.String("http.route", o.Path), attribute.String("url.path", o.Path),
		attribute.Int("http.response.status_code", o.Status),
		attribute.String("gen_ai.operation.name", name), attribute.String("gen_ai.provider.name", "aloft"),
		attribute.String("gen_ai.request.model", o.Model),
		attribute.Int("gen_ai.usage.input_tokens", o.PromptTokens), attribute.Int("gen_ai.usage.output_tokens", o.CompletionTokens),
		attribute.String("aloft.request.id", o.ID), attribute.String("aloft.class", o.Class.String()),
		attribute.String("aloft.replica", o.Timing.Replica), attribute.Int("aloft.batch.rows", o.Timing.BatchRows),
	}
	if o.Timing.Route != "" {
		attrs = append(attrs, attribute.String("aloft.route", o.Timing.Route))
	}
	ctx, span := s.tracer.Start(ctx, strings.TrimSpace(name+" "+o.Model), trace.WithTimestamp(o.Arrival),
		trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(attrs...))
	if o.Status >= 500 {
		span.SetStatus(codes.Error, o.Reason)
	}
	if o.Status >= 400 {
		span.SetAttributes(attribute.String("error.type", cmp.Or(o.Reason, "error")))
	}
	at := o.Arrival
	for _, part := range []struct {
		name string
		took time.Duration
	}{{"queue", o.Timing.Queue}, {"network", o.Timing.Network}, {"engine", o.Timing.Engine}} {
		if part.took <= 0 {
			continue
		}
		_, child := s.tracer.Start(ctx, part.name, trace.WithTimestamp(at), trace.WithSpanKind(trace.SpanKindInternal))
		at = at.Add(part.took)
		child.End(trace.WithTimestamp(at))
	}
	span.End(trace.WithTimestamp(o.Arrival.Add(o.Total)))
}

// ids is the context's key of the ids that were made before their span.
type ids struct{}

// made implements the SDK's IDGenerator: the edge's ids for a request's span,
// new ones for its parts.
type made struct{}

// NewIDs implements sdk/trace.IDGenerator.
func (m made) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	if t, ok := ctx.Value(ids{}).(*gateway.Trace); ok {
		return t.ID, t.Span
	}
	var t trace.TraceID
	for i := range t {
		t[i] = byte(rand.Uint32())
	}
	return t, m.NewSpanID(ctx, t)
}

// NewSpanID implements sdk/trace.IDGenerator.
func (made) NewSpanID(ctx context.Context, _ trace.TraceID) trace.SpanID {
	if t, ok := ctx.Value(ids{}).(*gateway.Trace); ok && trace.SpanContextFromContext(ctx).SpanID() == t.Parent {
		return t.Span
	}
	var s trace.SpanID
	for i := range s {
		s[i] = byte(rand.Uint32())
	}
	s[0] |= 1 // a span's id is never zero
	return s
}
