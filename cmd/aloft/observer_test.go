package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	prom "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"golang.org/x/sys/unix"

	"aloft/backends"
	"aloft/gateway"
)

func exampleOutcome() gateway.Outcome {
	return gateway.Outcome{ID: "req_1", Model: "m", Endpoint: backends.Chat, Path: "/v1/chat/completions", Status: 200,
		PromptTokens: 70, CompletionTokens: 20, Arrival: time.Unix(1700000000, 0), FirstToken: 40 * time.Millisecond, Total: 100 * time.Millisecond,
		Timing: backends.Timing{Queue: 100 * time.Microsecond, Network: 20 * time.Microsecond, Engine: 60 * time.Millisecond, Replica: "r0", BatchRows: 1},
		Trace:  gateway.Trace{ID: [16]byte{1}, Span: [8]byte{3}}}
}

// bySDK records what measured does by the SDK's own histograms.
func bySDK(t *testing.T, meter metric.Meter) func(model string, r *gateway.Outcome) {
	seconds := func(name, what string, bounds []float64) metric.Float64Histogram {
		h, err := meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(what), metric.WithExplicitBucketBoundaries(bounds...))
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	total := seconds("gen_ai.server.request.duration", "Time from arrival to the last byte", durationBuckets)
	first := seconds("gen_ai.server.time_to_first_token", "Time from arrival to the first content", durationBuckets)
	token := seconds("gen_ai.server.time_per_output_token", "Time of each token after the first, of streams", perTokenBuckets)
	tokens, err := meter.Int64Histogram("gen_ai.client.token.usage", metric.WithUnit("{token}"),
		metric.WithDescription("Tokens of a request"), metric.WithExplicitBucketBoundaries(tokenBuckets...))
	if err != nil {
		t.Fatal(err)
	}
	return func(model string, r *gateway.Outcome) {
		attrs := []attribute.KeyValue{attribute.String("gen_ai.operation.name", operationOf(r.Endpoint)), attribute.String("gen_ai.provider.name", "aloft"),
			attribute.String("gen_ai.request.model", model), attribute.String("aloft.class", r.Class.String())}
		if r.Timing.Route != "" {
			attrs = append(attrs, attribute.String("aloft.route", r.Timing.Route))
		}
		if r.Status == 502 {
			attrs = append(attrs, attribute.String("error.type", "error"))
		} else if r.Status >= 400 {
			attrs = append(attrs, attribute.String("error.type", r.Reason))
		}
		all := metric.WithAttributes(attrs...)
		total.Record(t.Context(), r.Total.Seconds(), all)
		if r.FirstToken > 0 {
			first.Record(t.Context(), r.FirstToken.Seconds(), all)
			if r.Stream && r.CompletionTokens > 1 {
				token.Record(t.Context(), (r.Total-r.FirstToken).Seconds()/float64(r.CompletionTokens-1), all)
			}
		}
		if r.PromptTokens > 0 {
			tokens.Record(t.Context(), int64(r.PromptTokens), all, metric.WithAttributes(attribute.String("gen_ai.token.type", "input")))
		}
		if r.CompletionTokens > 0 {
			tokens.Record(t.Context(), int64(r.CompletionTokens), all, metric.WithAttributes(attribute.String("gen_ai.token.type", "output")))
		}
	}
}

// readers are what newTelemetry reads with, and one that wants differences.
type readers struct {
	page         http.Handler
	whole, delta *sdk.ManualReader
	meter        metric.Meter
}

func newReaders(t *testing.T, m *measured) readers {
	registry := prom.NewRegistry()
	forPage, whole, delta := []prometheus.Option{prometheus.WithRegisterer(registry), prometheus.WithoutScopeInfo()}, []sdk.ManualReaderOption{},
		[]sdk.ManualReaderOption{sdk.WithTemporalitySelector(func(sdk.InstrumentKind) metricdata.Temporality { return metricdata.DeltaTemporality })}
	if m != nil {
		forPage = append(forPage, prometheus.WithProducer(m.producer(metricdata.CumulativeTemporality)))
		whole = append(whole, sdk.WithProducer(m.producer(metricdata.CumulativeTemporality)))
		delta = append(delta, sdk.WithProducer(m.producer(metricdata.DeltaTemporality)))
	}
	page, err := prometheus.New(forPage...)
	if err != nil {
		t.Fatal(err)
	}
	r := readers{promhttp.HandlerFor(registry, promhttp.HandlerOpts{}), sdk.NewManualReader(whole...), sdk.NewManualReader(delta...), nil}
	r.meter = sdk.NewMeterProvider(sdk.WithReader(page), sdk.WithReader(r.whole), sdk.WithReader(r.delta)).Meter(scope)
	return r
}

// read returns all that the readers are told, but times.
func (r readers) read(t *testing.T) []string {
	w := httptest.NewRecorder()
	r.page.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	out := strings.Split(w.Body.String(), "\n")
	for _, reader := range []*sdk.ManualReader{r.whole, r.delta} {
		var all metricdata.ResourceMetrics
		if err := reader.Collect(t.Context(), &all); err != nil {
			t.Fatal(err)
		}
		for _, s := range all.ScopeMetrics {
			for _, m := range s.Metrics {
				head := fmt.Sprint(s.Scope.Name, " ", m.Name, " ", m.Unit, " ", m.Description)
				switch h := m.Data.(type) {
				case metricdata.Histogram[float64]:
					out = append(out, points(head, h)...)
				case metricdata.Histogram[int64]:
					out = append(out, points(head, h)...)
				}
			}
		}
	}
	slices.Sort(out)
	return out
}

func points[N int64 | float64](head string, h metricdata.Histogram[N]) (out []string) {
	for _, p := range h.DataPoints {
		line := fmt.Sprintln(head, h.Temporality, p.Attributes.Encoded(attribute.DefaultEncoder()), p.Bounds, p.BucketCounts, p.Count, float64(p.Sum), !p.StartTime.IsZero(), p.Time.After(p.StartTime))
		if least, ok := p.Min.Value(); ok && h.Temporality == metricdata.CumulativeTemporality { // of a difference they are optional
			most, _ := p.Max.Value()
			line += fmt.Sprintln(float64(least), float64(most))
		}
		out = append(out, line)
	}
	return out
}

// Every series has the names, attributes, buckets and values that the SDK's own
// histograms would have, for a reader that wants sums and one that wants
// differences, also when they ask again.
func TestMeasuredAsSDK(t *testing.T) {
	const unit = time.Second / 512 // a power of two in whole nanoseconds: sums are exact in whatever order
	m := newMeasured(time.Now())
	ours, theirs := newReaders(t, m), newReaders(t, nil)
	want := bySDK(t, theirs.meter)
	for round := range 3 {
		for i := range 200 {
			r := gateway.Outcome{Endpoint: []backends.Endpoint{backends.Chat, backends.Completions, backends.Embeddings, backends.Messages}[i%4],
				Class: backends.Class(i % 3), Stream: i%2 == 0, Status: []int{200, 200, 200, 429, 502}[i%5], PromptTokens: i * i * (i % 7), CompletionTokens: i%3 + i%2,
				FirstToken: time.Duration(i%6*i) * unit, Total: time.Duration(i*i) * 4 * unit}
			if r.Status == 429 {
				r.Reason = "queue_full"
			}
			if i%11 == 0 {
				r.Timing.Route = backends.RouteCache
			}
			model := []string{"a", "b"}[i/100]
			if round == 1 && i >= 100 { // one model rests, and is not told of again as a difference
				continue
			}
			m.count(model, &r)
			want(model, &r)
		}
		got, want := ours.read(t), theirs.read(t)
		for _, line := range got {
			if !slices.Contains(want, line) {
				t.Errorf("round %d: %s is not of the SDK", round, line)
			}
		}
		if len(got) != len(want) {
			t.Errorf("round %d: %d series, want %d", round, len(got), len(want))
		}
		if text := strings.Join(got, "\n"); len(got) < 500 || !strings.Contains(text, "gen_ai_server_time_per_output_token_seconds_bucket") || !strings.Contains(text, "gen_ai.token.type=input") {
			t.Fatalf("%d lines: nothing was compared", len(got))
		}
	}
}

// Nothing is lost or told twice while requests end and a reader asks.
func TestMeasuredTogether(t *testing.T) {
	m := newMeasured(time.Now())
	told := m.producer(metricdata.DeltaTemporality)
	var wait sync.WaitGroup
	var n uint64
	add := func() {
		all, _ := told.Produce(t.Context())
		for _, metrics := range all[0].Metrics {
			for _, p := range metrics.Data.(metricdata.Histogram[float64]).DataPoints {
				n += p.Count
			}
		}
	}
	for w := range 4 {
		wait.Go(func() {
			for i := range 1000 {
				m.count([]string{"a", "b", "c", "d"}[(w+i)%4], &gateway.Outcome{Status: 200, Total: time.Second})
			}
		})
	}
	add()
	wait.Wait()
	add()
	if n != 4000 {
		t.Errorf("%d requests were told of, want 4000", n)
	}
}

// raced: the race detector allocates, too.
var raced bool

func TestObserveAllocatesNothing(t *testing.T) {
	if raced {
		t.Skip("allocations are not counted under the race detector")
	}
	s := &serving{}
	s.set.Store(newModelSet(&served{ModelConfig: ModelConfig{Name: "m", Slots: 4}, meter: &meter{}}))
	o := &observer{serving: s, measured: newMeasured(time.Now())}
	r := exampleOutcome()
	if n := testing.AllocsPerRun(100, func() { o.Observe(r) }); n != 0 {
		t.Errorf("%v allocations a request, want none", n)
	}
}

// BenchmarkObserve also says how much CPU the process took, export and collector
// included: what is exported costs most on other goroutines.
func BenchmarkObserve(b *testing.B) {
	for _, sampled := range []bool{false, true} {
		b.Run(fmt.Sprintf("sampled=%v", sampled), func(b *testing.B) {
			collector := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			defer collector.Close()
			b.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
			b.Setenv("OTEL_BSP_MAX_QUEUE_SIZE", "1000000") // none is dropped
			tel, err := newTelemetry(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			s := &serving{}
			s.set.Store(newModelSet(&served{ModelConfig: ModelConfig{Name: "m", Slots: 4}, meter: &meter{}}))
			o, err := newObserver(s, tel)
			if err != nil {
				b.Fatal(err)
			}
			r := exampleOutcome()
			r.Trace.Sampled = sampled
			began := cpu()
			b.ReportAllocs()
			for b.Loop() {
				o.Observe(r)
			}
			if err := tel.traces.Shutdown(b.Context()); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(cpu()-began)/float64(b.N), "cpu-ns/op")
		})
	}
}

// cpu is what this process has used.
func cpu() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
