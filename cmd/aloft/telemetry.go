package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	prom "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
)

// telemetry is the OpenTelemetry SDK, wired once: metrics always on /metrics,
// and by OTLP with traces when OTEL_EXPORTER_OTLP_ENDPOINT is set.
type telemetry struct {
	handler  http.Handler
	metrics  *sdk.MeterProvider
	measured *measured           // read with metrics
	traces   trace.SpanProcessor // nil without OTLP
	res      *resource.Resource
}

// scope is the instrumentation scope of all that is told.
const scope = "aloft"

func newTelemetry(ctx context.Context) (*telemetry, error) {
	registry := prom.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	t := &telemetry{handler: promhttp.HandlerFor(registry, promhttp.HandlerOpts{}), measured: newMeasured(time.Now())}
	reader, err := prometheus.New(prometheus.WithRegisterer(registry), prometheus.WithoutScopeInfo(),
		prometheus.WithProducer(t.measured.producer(metricdata.CumulativeTemporality)))
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	res := resource.NewSchemaless(attribute.String("service.name", "aloft"), attribute.String("service.version", version()))
	if t.res, err = resource.Merge(resource.Environment(), res); err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	opts := []sdk.Option{sdk.WithReader(reader), sdk.WithResource(res)}
	if os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" {
		push, err := otlpmetrichttp.New(ctx)
		if err != nil {
			return nil, fmt.Errorf("OTLP metrics: %w", err)
		}
		spans, err := otlptracehttp.New(ctx)
		if err != nil {
			return nil, fmt.Errorf("OTLP traces: %w", err)
		}
		same := t.measured.producer(push.Temporality(sdk.InstrumentKindHistogram))
		opts = append(opts, sdk.WithReader(sdk.NewPeriodicReader(push, sdk.WithProducer(same))))
		t.traces = trace.NewBatchSpanProcessor(spans)
	}
	t.metrics = sdk.NewMeterProvider(opts...)
	return t, nil
}

func (t *telemetry) meter() metric.Meter { return t.metrics.Meter(scope) }

// spans returns who records spans; nil without OTLP.
func (t *telemetry) spans() *spans {
	if t.traces == nil {
		return nil
	}
	return &spans{t.traces, t.res}
}

// sample is the share of requests that begin a trace here.
func (t *telemetry) sample() float64 {
	if t.traces == nil {
		return 0
	}
	return sampleRatio()
}

func (t *telemetry) close(ctx context.Context) error {
	err := t.metrics.Shutdown(ctx)
	if t.traces != nil {
		err = errors.Join(err, t.traces.Shutdown(ctx))
	}
	return err
}

// gauges publishes what the server knows at each scrape.
func (s *server) gauges(m metric.Meter) error {
	queue, _ := m.Int64ObservableGauge("aloft.queue", metric.WithDescription("Requests waiting, by class"))
	conns, _ := m.Int64ObservableGauge("aloft.connections", metric.WithDescription("Open client connections"))
	turned, _ := m.Int64ObservableCounter("aloft.connections.refused", metric.WithDescription("Client connections over the limits"))
	rows, _ := m.Int64ObservableCounter("aloft.cache.rows", metric.WithDescription("Rows that the embedding cache knew, and did not"))
	cost, _ := m.Float64ObservableGauge("aloft.overflow.cost", metric.WithUnit("USD"), metric.WithDescription("What the external provider has cost this month"))
	_, err := m.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		s.observeQueues(o, queue)
		if s.gateway != nil { // else this is the last export of a start that failed
			open, refused := s.gateway.Connections()
			o.ObserveInt64(conns, int64(open))
			o.ObserveInt64(turned, refused)
		}
		if s.way.cache != nil {
			hits, misses, _ := s.way.cache.Stats()
			o.ObserveInt64(rows, int64(hits), metric.WithAttributes(attribute.String("found", "yes")))
			o.ObserveInt64(rows, int64(misses), metric.WithAttributes(attribute.String("found", "no")))
		}
		for name, served := range s.serving.set.Load().models {
			if served.route != nil {
				o.ObserveFloat64(cost, served.route.Spent(time.Now()).Dollars, metric.WithAttributes(attribute.String("model", name)))
			}
		}
		return nil
	}, queue, conns, turned, rows, cost)
	return errors.Join(err, s.meterArbiter(m), s.meterBatching(m), s.meterEngines(m))
}
