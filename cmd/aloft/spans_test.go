package main

import (
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"aloft/backends"
	"aloft/gateway"
)

// A request's span has the ids that its engine was told, its parent is the
// caller's span, and its parts follow each other inside it, those that are long
// enough to be seen.
func TestSpans(t *testing.T) {
	arrival := time.Unix(1700000000, 0)
	out := gateway.Outcome{ID: "r1", Model: "m", Endpoint: backends.Chat, Path: "/v1/chat/completions", Status: 200,
		PromptTokens: 7, CompletionTokens: 2, Arrival: arrival, Total: 100 * time.Millisecond,
		Timing: backends.Timing{Queue: 10 * time.Millisecond, Network: time.Millisecond, Engine: 60 * time.Millisecond, Replica: "r0"},
		Trace:  gateway.Trace{ID: [16]byte{1}, Parent: [8]byte{2}, Span: [8]byte{3}, Sampled: true, State: "v=1"}}
	root := out
	root.Trace.Parent, root.Trace.State = [8]byte{}, ""
	root.Status, root.Reason = 502, "engine_bad_reply"
	dropped := out
	dropped.Trace.Sampled = false

	seen := tracetest.NewSpanRecorder()
	s := &spans{seen, resource.NewSchemaless(attribute.String("service.name", "aloft"))}
	s.record(&out)
	s.record(&dropped)
	s.record(&root)
	short := out
	short.Trace.State = "not a state"
	short.Timing.Queue, short.Timing.Network = 999*time.Microsecond, 0
	s.record(&short)
	all := seen.Ended()
	if len(all) != 10 {
		t.Fatalf("%d spans, want 2 with 3 parts each and one with 1", len(all))
	}
	if e, r := all[8], all[9]; e.Name() != "engine" || !e.StartTime().Equal(arrival.Add(999*time.Microsecond)) || r.Name() != "chat m" || r.SpanContext().TraceState().Len() != 0 {
		t.Errorf("with one long part: %q from %v, %q", e.Name(), e.StartTime(), r.Name())
	}
	for i, want := range []struct {
		name     string
		from, to time.Duration
	}{{"queue", 0, 10}, {"network", 10, 11}, {"engine", 11, 71}, {"chat m", 0, 100}} {
		got := all[i]
		if got.Name() != want.name || !got.StartTime().Equal(arrival.Add(want.from*time.Millisecond)) || !got.EndTime().Equal(arrival.Add(want.to*time.Millisecond)) {
			t.Errorf("span %q from %v to %v, want %+v", got.Name(), got.StartTime(), got.EndTime(), want)
		}
	}
	server := all[3]
	if c, p := server.SpanContext(), server.Parent(); c.TraceID() != out.Trace.ID || c.SpanID() != out.Trace.Span || p.SpanID() != out.Trace.Parent || !p.IsRemote() || c.TraceState().String() != "v=1" {
		t.Errorf("span %v under %v", c, p)
	}
	for _, part := range all[:3] {
		if part.Parent().SpanID() != out.Trace.Span || part.SpanContext().SpanID() == out.Trace.Span {
			t.Errorf("part %q is %v under %v", part.Name(), part.SpanContext().SpanID(), part.Parent().SpanID())
		}
	}
	got := map[string]string{}
	for _, kv := range all[7].Attributes() {
		got[string(kv.Key)] = kv.Value.String()
	}
	for key, want := range map[string]string{"http.route": "/v1/chat/completions", "http.response.status_code": "502", "error.type": "engine_bad_reply",
		"gen_ai.operation.name": "chat", "gen_ai.request.model": "m", "gen_ai.usage.input_tokens": "7",
		"aloft.queue.duration": "0.01", "aloft.network.duration": "0.001", "aloft.engine.duration": "0.06"} {
		if got[key] != want {
			t.Errorf("%s is %q, want %q", key, got[key], want)
		}
	}
	if st := all[7].Status(); st.Code != codes.Error || st.Description != "engine_bad_reply" || server.Status().Code != codes.Unset {
		t.Errorf("status %+v of a failure, %+v else", st, server.Status())
	}
	for _, span := range all {
		if span.InstrumentationScope().Name != "aloft" || span.Resource().String() != "service.name=aloft" || !span.SpanContext().IsSampled() || !span.SpanContext().IsValid() {
			t.Errorf("span %q of %v in %v: %v", span.Name(), span.Resource(), span.InstrumentationScope(), span.SpanContext())
		}
	}
	if all[7].SpanContext().SpanID() != root.Trace.Span || all[7].Parent().IsValid() || all[7].SpanContext().TraceID() != root.Trace.ID {
		t.Errorf("root span %v under %v", all[7].SpanContext(), all[7].Parent())
	}
}

func TestSampleRatio(t *testing.T) {
	for _, tt := range []struct {
		name, arg string
		want      float64
	}{{"", "", 1}, {"always_on", "", 1}, {"parentbased_always_off", "", 0}, {"traceidratio", "0.25", 0.25},
		{"parentbased_traceidratio", "0.5", 0.5}, {"traceidratio", "7", 1}, {"traceidratio", "x", 1}} {
		t.Setenv("OTEL_TRACES_SAMPLER", tt.name)
		t.Setenv("OTEL_TRACES_SAMPLER_ARG", tt.arg)
		if got := sampleRatio(); got != tt.want {
			t.Errorf("%s %s: %v, want %v", tt.name, tt.arg, got, tt.want)
		}
	}
}
