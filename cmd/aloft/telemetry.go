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

	"aloft/arbiter"
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

// gauges publishes what the arbiter and the batchers know at each scrape.
func (s *server) gauges(m metric.Meter) error {
	share, _ := m.Float64ObservableGauge("aloft.ledger.share", metric.WithDescription("Share of powered-on slice time, by account"))
	ratio, _ := m.Float64ObservableGauge("aloft.ratio", metric.WithDescription("Useful slice time over powered-on slice time"))
	slicesN, _ := m.Int64ObservableGauge("aloft.slices", metric.WithDescription("Slices by phase"))
	room, _ := m.Float64ObservableGauge("aloft.headroom", metric.WithDescription("1 - p99/target; absent without samples"))
	need, _ := m.Int64ObservableGauge("aloft.replicas.needed", metric.WithDescription("Replicas needed within the fast horizon"))
	queue, _ := m.Int64ObservableGauge("aloft.queue", metric.WithDescription("Requests waiting, by class"))
	moves, _ := m.Int64ObservableCounter("aloft.moves", metric.WithDescription("Loans, reclaims, broken bounds, broken invariants"))
	conns, _ := m.Int64ObservableGauge("aloft.connections", metric.WithDescription("Open client connections"))
	turned, _ := m.Int64ObservableCounter("aloft.connections.refused", metric.WithDescription("Client connections over the limits"))
	rows, _ := m.Int64ObservableCounter("aloft.cache.rows", metric.WithDescription("Rows that the embedding cache knew, and did not"))
	cost, _ := m.Float64ObservableGauge("aloft.overflow.cost", metric.WithUnit("USD"), metric.WithDescription("What the external provider has cost this month"))
	_, err := m.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		v := s.arbiter.View()
		for a, x := range v.Balance.Share {
			o.ObserveFloat64(share, x, metric.WithAttributes(attribute.String("account", string(a))))
		}
		o.ObserveFloat64(ratio, v.Balance.Aloft)
		count := map[arbiter.Phase]int64{}
		for _, sl := range v.Snapshot.Slices {
			count[sl.Phase]++
		}
		for p, n := range count {
			o.ObserveInt64(slicesN, n, metric.WithAttributes(attribute.String("phase", string(p))))
		}
		for name, n := range v.Plan.Needs {
			by := metric.WithAttributes(attribute.String("model", name))
			o.ObserveInt64(need, int64(n.Fast), by)
			if n.Room != nil {
				o.ObserveFloat64(room, *n.Room, by)
			}
		}
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
		for kind, n := range map[string]int{"loan": v.Stats.Loans, "reclaim": v.Stats.Reclaims, "bound_broken": v.Stats.Breaches, "invariant_broken": v.Stats.Violations} {
			o.ObserveInt64(moves, int64(n), metric.WithAttributes(attribute.String("kind", kind)))
		}
		return nil
	}, share, ratio, slicesN, room, need, queue, moves, conns, turned, rows, cost)
	return errors.Join(err, s.meterBatching(m), s.meterEngines(m))
}
