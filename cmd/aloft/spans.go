package main

import (
	"cmp"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
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
type spans struct {
	to   sdk.SpanProcessor
	from *resource.Resource
}

// worthSpan is the length from which a part of a request has a span of its own.
// A shorter one is seen in no picture of a trace, and its span would cost as much
// as the request's: its length is an attribute there anyway.
const worthSpan = time.Millisecond

// record writes what a request was, and how its time was spent, by the semantic
// conventions for HTTP servers and for GenAI.
//
// The spans are made whole, as a span that has ended looks to an exporter. The
// SDK's tracer would make a living span first, with locks, and copy it.
func (s *spans) record(o *gateway.Outcome) {
	if s == nil || !o.Trace.Sampled {
		return
	}
	conf := trace.SpanContextConfig{TraceID: o.Trace.ID, SpanID: o.Trace.Span, TraceFlags: trace.FlagsSampled}
	var parent trace.SpanContext
	if o.Trace.Parent != [8]byte{} {
		conf.TraceState, _ = trace.ParseTraceState(o.Trace.State) // the caller's mistake must not cost its trace
		above := conf
		above.SpanID, above.Remote = o.Trace.Parent, true
		parent = trace.NewSpanContext(above)
	}
	server := trace.NewSpanContext(conf)
	at := o.Arrival
	for _, part := range []struct {
		name string
		took time.Duration
	}{{"queue", o.Timing.Queue}, {"network", o.Timing.Network}, {"engine", o.Timing.Engine}} {
		end := at.Add(max(0, part.took))
		if part.took >= worthSpan {
			conf.SpanID = newSpanID()
			s.end(tracetest.SpanStub{Name: part.name, SpanContext: trace.NewSpanContext(conf), Parent: server,
				SpanKind: trace.SpanKindInternal, StartTime: at, EndTime: end})
		}
		at = end
	}
	status := sdk.Status{}
	if o.Status >= 500 {
		status = sdk.Status{Code: codes.Error, Description: o.Reason}
	}
	s.end(tracetest.SpanStub{Name: strings.TrimSpace(operationOf(o.Endpoint) + " " + o.Model), SpanContext: server, Parent: parent,
		SpanKind: trace.SpanKindServer, StartTime: o.Arrival, EndTime: o.Arrival.Add(o.Total), Attributes: attributesOf(o), Status: status})
}

func (s *spans) end(span tracetest.SpanStub) {
	span.Resource, span.InstrumentationScope.Name = s.from, scope
	s.to.OnEnd(span.Snapshot())
}

// attributesOf are what the span of a request tells of it; times are in seconds.
func attributesOf(o *gateway.Outcome) []attribute.KeyValue {
	attrs := append(make([]attribute.KeyValue, 0, 18), // room for those below, too
		attribute.String("http.request.method", "POST"), attribute.String("http.route", o.Path), attribute.String("url.path", o.Path),
		attribute.Int("http.response.status_code", o.Status),
		attribute.String("gen_ai.operation.name", operationOf(o.Endpoint)), attribute.String("gen_ai.provider.name", "aloft"),
		attribute.String("gen_ai.request.model", o.Model),
		attribute.Int("gen_ai.usage.input_tokens", o.PromptTokens), attribute.Int("gen_ai.usage.output_tokens", o.CompletionTokens),
		attribute.String("aloft.request.id", o.ID), attribute.String("aloft.class", o.Class.String()),
		attribute.String("aloft.replica", o.Timing.Replica), attribute.Int("aloft.batch.rows", o.Timing.BatchRows),
		attribute.Float64("aloft.queue.duration", o.Timing.Queue.Seconds()),
		attribute.Float64("aloft.network.duration", o.Timing.Network.Seconds()),
		attribute.Float64("aloft.engine.duration", o.Timing.Engine.Seconds()))
	if o.Timing.Route != "" {
		attrs = append(attrs, attribute.String("aloft.route", o.Timing.Route))
	}
	if o.Status >= 400 {
		attrs = append(attrs, attribute.String("error.type", cmp.Or(o.Reason, "error")))
	}
	return attrs
}

// newSpanID makes the id of a part's span: random, and never zero.
func newSpanID() (id trace.SpanID) {
	binary.BigEndian.PutUint64(id[:], rand.Uint64()|1)
	return id
}
