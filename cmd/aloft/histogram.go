package main

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/instrumentation"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// measure is one of the histograms that every label has.
type measure int

const (
	duration measure = iota
	firstToken
	perToken
	inputTokens
	outputTokens
	measures int = iota
)

// instruments are the histograms by the GenAI conventions, with their buckets.
// Those of one name stand together: they are one metric.
var instruments = [measures]struct {
	name, unit, what string
	bounds           []float64
	more             []attribute.KeyValue
}{
	duration:    {"gen_ai.server.request.duration", "s", "Time from arrival to the last byte", durationBuckets, nil},
	firstToken:  {"gen_ai.server.time_to_first_token", "s", "Time from arrival to the first content", durationBuckets, nil},
	perToken:    {"gen_ai.server.time_per_output_token", "s", "Time of each token after the first, of streams", perTokenBuckets, nil},
	inputTokens: {"gen_ai.client.token.usage", "{token}", "Tokens of a request", tokenBuckets, tokenType("input")},
	outputTokens: {"gen_ai.client.token.usage", "{token}", "Tokens of a request", tokenBuckets,
		tokenType("output")},
}

func tokenType(t string) []attribute.KeyValue {
	return []attribute.KeyValue{attribute.String("gen_ai.token.type", t)}
}

// They double from 10 ms, or grow fourfold.
var durationBuckets = []float64{0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92}
var perTokenBuckets = []float64{0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5}
var tokenBuckets = []float64{1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864}

// histogram is what one measure of one label has come to.
type histogram struct {
	buckets       [15]uint64 // of each bound what is at most that, and what is above all
	sum, min, max float64
}

// series are a label's histograms, with one lock for the up to five that a
// request writes.
type series struct {
	attrs [measures]attribute.Set // made once: they are the costly part

	mu sync.Mutex
	of [measures]histogram
}

// add counts a value. s.mu is held.
func (s *series) add(m measure, v float64) {
	h := &s.of[m]
	i, _ := slices.BinarySearch(instruments[m].bounds, v)
	if h.count() == 0 {
		h.min, h.max = v, v
	}
	h.buckets[i]++
	h.sum, h.min, h.max = h.sum+v, min(h.min, v), max(h.max, v)
}

func (h *histogram) count() (n uint64) {
	for _, b := range h.buckets {
		n += b
	}
	return n
}

// measured are the histograms of all labels. The SDK's own cost each request two
// microseconds, ten look-ups of an attribute set with OTLP on; these are looked up
// once, and handed to the SDK only when somebody reads.
type measured struct {
	began time.Time
	sets  atomic.Pointer[map[label]*series] // never changed: a new label replaces it

	mu sync.Mutex // of who adds a label
}

func newMeasured(now time.Time) *measured {
	m := &measured{began: now}
	m.sets.Store(&map[label]*series{})
	return m
}

// set finds a label's histograms.
func (m *measured) set(by label) *series {
	if s := (*m.sets.Load())[by]; s != nil {
		return s
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	sets := maps.Clone(*m.sets.Load())
	if sets[by] == nil {
		s := &series{}
		attrs := by.attributes()
		for i, in := range instruments {
			s.attrs[i] = attribute.NewSet(slices.Concat(in.more, attrs)...)
		}
		sets[by] = s
		m.sets.Store(&sets)
	}
	return sets[by]
}

// told implements sdk/metric.Producer for one reader of measured.
type told struct {
	*measured
	temporality metricdata.Temporality

	mu     sync.Mutex
	since  time.Time
	before map[*histogram]histogram // as the reader knows them, where it wants differences
}

// producer hands the histograms to a reader, in the temporality that it prefers.
func (m *measured) producer(t metricdata.Temporality) *told {
	return &told{measured: m, temporality: t, since: m.began, before: map[*histogram]histogram{}}
}

// Produce implements sdk/metric.Producer.
func (t *told) Produce(context.Context) ([]metricdata.ScopeMetrics, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now, sets := time.Now(), *t.sets.Load()
	var out []metricdata.Metrics
	var points []metricdata.HistogramDataPoint[float64]
	for i, in := range instruments {
		for _, s := range sets {
			s.mu.Lock()
			h := s.of[i]
			s.mu.Unlock()
			p := metricdata.HistogramDataPoint[float64]{Attributes: s.attrs[i], StartTime: t.since, Time: now, Bounds: slices.Clone(in.bounds)}
			t.fill(&p, &s.of[i], h)
			if p.Count > 0 {
				points = append(points, p)
			}
		}
		if len(points) > 0 && (i+1 == measures || instruments[i+1].name != in.name) {
			out = append(out, metricdata.Metrics{Name: in.name, Unit: in.unit, Description: in.what,
				Data: metricdata.Histogram[float64]{DataPoints: points, Temporality: t.temporality}})
			points = nil
		}
	}
	if t.temporality == metricdata.DeltaTemporality {
		t.since = now
	}
	return []metricdata.ScopeMetrics{{Scope: instrumentation.Scope{Name: scope}, Metrics: out}}, nil
}

// fill writes what a histogram has come to, or by how much it grew since the
// reader asked last. Of a difference nobody knows the least and the most.
func (t *told) fill(p *metricdata.HistogramDataPoint[float64], id *histogram, h histogram) {
	if t.temporality == metricdata.DeltaTemporality {
		before := t.before[id]
		t.before[id] = h
		h.sum -= before.sum
		for i := range h.buckets {
			h.buckets[i] -= before.buckets[i]
		}
	} else {
		p.Min, p.Max = metricdata.NewExtrema(h.min), metricdata.NewExtrema(h.max)
	}
	p.Count, p.Sum, p.BucketCounts = h.count(), h.sum, slices.Clone(h.buckets[:len(p.Bounds)+1])
}

var _ sdk.Producer = (*told)(nil)
