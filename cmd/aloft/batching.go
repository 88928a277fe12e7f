package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"aloft/backends"
	"aloft/batcher"
)

// BatchStatus is how a model's batcher decides now, and what it has decided since
// the start.
type BatchStatus struct {
	Calls  uint64             `json:"calls"`
	Rows   float64            `json:"rows_per_call"`   // mean of recent calls
	Tokens float64            `json:"tokens_per_call"` // the same
	Oldest map[string]float64 `json:"oldest_wait_ms"`  // by class
	Sent   map[string]uint64  `json:"dispatched"`      // calls, by reason
	Held   map[string]uint64  `json:"held"`            // times that a free replica was left waiting
	Drops  map[string]uint64  `json:"dropped"`         // requests without an engine's answer
	Fits   []FitStatus        `json:"fits"`

	Engines *EngineStatus `json:"engines,omitempty"` // absent while nothing is known of them
}

// EngineStatus is what is known of the engines of a model's serving replicas.
type EngineStatus struct {
	Speaking   int     `json:"speaking"` // those whose own metrics are read
	Silent     int     `json:"silent"`   // and of them those that have stopped answering: they count as full
	Running    int     `json:"running"`  // as they say
	Waiting    int     `json:"waiting"`  // the same
	KVUsage    float64 `json:"kv_usage"` // of the fullest, as it says
	KVRoom     int     `json:"kv_room_tokens"`
	KVPromised int     `json:"kv_promised_tokens"`
	Prefill    int     `json:"prefill_tokens"`         // prompts that are still to be read
	Output     int     `json:"expected_output_tokens"` // p80 of recent answers
}

// FitStatus is the service-time model of one shape.
type FitStatus struct {
	Shape   string  `json:"shape"`
	Alpha   float64 `json:"alpha_ms"`
	Beta    float64 `json:"beta_us_per_token"`
	Margin  float64 `json:"margin"`
	Padded  bool    `json:"padded"`
	Samples int     `json:"samples"`
	Knee    int     `json:"knee_tokens"`
	Largest int     `json:"largest_tokens"`
	Rate    float64 `json:"tokens_per_s"` // of one replica with calls of the largest useful size
}

func batchStatus(sig batcher.Signals) BatchStatus {
	b := BatchStatus{Calls: sig.Calls.Calls, Rows: sig.Calls.Rows, Tokens: sig.Calls.Tokens, Oldest: map[string]float64{},
		Sent: tally[batcher.Reason](sig.Calls.Reasons[:]), Held: tally[batcher.Hold](sig.Calls.Holds[:]), Drops: tally[batcher.Drop](sig.Calls.Drops[:])}
	for c := range backends.Classes {
		if w := sig.Class[c].OldestWait; w > 0 {
			b.Oldest[c.String()] = 1000 * w.Seconds()
		}
	}
	for _, f := range sig.Fits {
		b.Fits = append(b.Fits, FitStatus{Shape: f.Shape, Alpha: 1000 * f.Alpha, Beta: 1e6 * f.Beta, Margin: f.Margin, Padded: f.Padded,
			Samples: f.Samples, Knee: f.Knee, Largest: f.Largest, Rate: f.Rate})
	}
	if e := sig.Engines; e.Read > 0 || e.KVTokens > 0 || e.Output > 0 {
		b.Engines = &EngineStatus{Speaking: e.Read, Silent: e.Stale, Running: e.Running, Waiting: e.Waiting, KVUsage: e.KVUsage,
			KVRoom: e.KVTokens, KVPromised: e.KVKept, Prefill: e.Prefilling, Output: e.Output}
	}
	return b
}

// word is a closed list of reasons.
type word interface {
	~uint8
	fmt.Stringer
}

// tally is what was counted, by reason; what never happened is left out.
func tally[W word](counts []uint64) map[string]uint64 {
	out := map[string]uint64{}
	for i, n := range counts {
		if n > 0 {
			out[W(i).String()] = n
		}
	}
	return out
}

// draw writes the lines of `aloft top` about m's batcher.
func (b BatchStatus) draw(w *strings.Builder, m ModelStatus) {
	for _, f := range b.Fits {
		shape := f.Shape
		if f.Padded {
			shape += " (pads)"
		}
		fmt.Fprintf(w, "%-14s %-12s %7.2f ms %8.1f us %6.2f %6d %7d %8.0f %6.1f %5.2f\n", m.Name, shape, f.Alpha, f.Beta, f.Margin, f.Knee, f.Largest, f.Rate, b.Rows, m.Eta)
	}
	if e := b.Engines; e != nil {
		fmt.Fprintf(w, "  engines: %d running, %d waiting inside, %d prompt tokens to read, KV %d of %d tokens promised", e.Running, e.Waiting, e.Prefill, e.KVPromised, e.KVRoom)
		if e.Silent > 0 {
			fmt.Fprintf(w, "; %d SILENT", e.Silent)
		}
		fmt.Fprintln(w)
	}
	for _, class := range slices.Sorted(maps.Keys(b.Oldest)) {
		fmt.Fprintf(w, "  oldest %s request waits %.0f ms\n", class, b.Oldest[class])
	}
	for _, l := range []struct {
		what   string
		counts map[string]uint64
	}{{"calls", b.Sent}, {"held", b.Held}, {"dropped", b.Drops}} {
		if len(l.counts) == 0 {
			continue
		}
		fmt.Fprintf(w, "  %s:", l.what)
		for _, reason := range slices.Sorted(maps.Keys(l.counts)) {
			fmt.Fprintf(w, " %s %d", reason, l.counts[reason])
		}
		fmt.Fprintln(w)
	}
	if m.Counts != nil {
		fmt.Fprintf(w, "  tokens: by %s, %.3f of the engines' count\n", m.Counted, *m.Counts)
	}
}

// meterBatching exports what every batcher decided. Labels are models, shapes and
// closed lists of reasons.
func (s *server) meterBatching(m metric.Meter) error {
	calls, _ := m.Int64ObservableCounter("aloft.batcher.calls", metric.WithUnit("{call}"), metric.WithDescription("Calls sent to engines, by why they were sent when they were"))
	holds, _ := m.Int64ObservableCounter("aloft.batcher.holds", metric.WithDescription("Times that work was left waiting, by why"))
	drops, _ := m.Int64ObservableCounter("aloft.batcher.drops", metric.WithUnit("{request}"), metric.WithDescription("Requests refused or given up without an engine's answer, by why"))
	rows, _ := m.Float64ObservableGauge("aloft.batcher.rows", metric.WithDescription("Mean rows of recent calls"))
	eta, _ := m.Float64ObservableGauge("aloft.batcher.eta", metric.WithDescription("Patience: 0 sends at once, 1 waits as long as the target allows"))
	oldest, _ := m.Float64ObservableGauge("aloft.batcher.oldest_wait", metric.WithUnit("s"), metric.WithDescription("Age of the oldest waiting request, by class"))
	alpha, _ := m.Float64ObservableGauge("aloft.batcher.alpha", metric.WithUnit("s"), metric.WithDescription("Fitted time that a call costs whatever its size"))
	beta, _ := m.Float64ObservableGauge("aloft.batcher.beta", metric.WithUnit("s"), metric.WithDescription("Fitted time of a token"))
	margin, _ := m.Float64ObservableGauge("aloft.batcher.margin", metric.WithDescription("What 95 of 100 calls stay below, over the fitted time"))
	ratio, _ := m.Float64ObservableGauge("aloft.tokens.ratio", metric.WithDescription("Tokens of recent prompts as counted here, over the engines' count"))
	_, err := m.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		set := s.serving.set.Load()
		for _, name := range set.order {
			sig := set.models[name].batcher.Signals(time.Now())
			by := func(key, value string) metric.ObserveOption {
				return metric.WithAttributes(attribute.String("model", name), attribute.String(key, value))
			}
			b := batchStatus(sig)
			for counter, counts := range map[metric.Int64Observable]map[string]uint64{calls: b.Sent, holds: b.Held, drops: b.Drops} {
				for reason, n := range counts {
					o.ObserveInt64(counter, int64(n), by("reason", reason))
				}
			}
			for class, ms := range b.Oldest {
				o.ObserveFloat64(oldest, ms/1000, by("class", class))
			}
			for _, f := range b.Fits {
				o.ObserveFloat64(alpha, f.Alpha/1000, by("shape", f.Shape))
				o.ObserveFloat64(beta, f.Beta/1e6, by("shape", f.Shape))
				o.ObserveFloat64(margin, f.Margin, by("shape", f.Shape))
			}
			own := metric.WithAttributes(attribute.String("model", name))
			o.ObserveFloat64(rows, b.Rows, own)
			o.ObserveFloat64(eta, sig.Eta, own)
			if r := set.models[name].ratio(); r != nil {
				o.ObserveFloat64(ratio, *r, own, metric.WithAttributes(attribute.String("by", set.models[name].by())))
			}
		}
		return nil
	}, calls, holds, drops, rows, eta, oldest, alpha, beta, margin, ratio)
	return err
}

// meterEngines exports what is known of the engines of each model.
func (s *server) meterEngines(m metric.Meter) error {
	silent, _ := m.Int64ObservableGauge("aloft.engines.silent", metric.WithDescription("Engines that gave metrics and have stopped; they count as full"))
	waiting, _ := m.Int64ObservableGauge("aloft.engines.waiting", metric.WithUnit("{request}"), metric.WithDescription("Requests that wait inside engines, as they say"))
	room, _ := m.Int64ObservableGauge("aloft.engines.kv.room", metric.WithUnit("{token}"), metric.WithDescription("Tokens of KV cache that may be promised; 0 = no limit is known"))
	promised, _ := m.Int64ObservableGauge("aloft.engines.kv.promised", metric.WithUnit("{token}"), metric.WithDescription("Tokens of KV cache that what runs is expected to need at most at once"))
	prefill, _ := m.Int64ObservableGauge("aloft.engines.prefill", metric.WithUnit("{token}"), metric.WithDescription("Prompt tokens that engines have still to read"))
	_, err := m.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		set := s.serving.set.Load()
		for _, name := range set.order {
			e, own := set.models[name].batcher.Signals(time.Now()).Engines, metric.WithAttributes(attribute.String("model", name))
			o.ObserveInt64(silent, int64(e.Stale), own)
			o.ObserveInt64(waiting, int64(e.Waiting), own)
			o.ObserveInt64(room, int64(e.KVTokens), own)
			o.ObserveInt64(promised, int64(e.KVKept), own)
			o.ObserveInt64(prefill, int64(e.Prefilling), own)
		}
		return nil
	}, silent, waiting, room, promised, prefill)
	return err
}
