package main

import (
	"context"
	"errors"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"aloft/arbiter"
)

// arbiterMeter counts decisions and reclaims as they are recorded; what can be
// read at a scrape is.
type arbiterMeter struct {
	decisions metric.Int64Counter
	reclaims  metric.Float64Histogram

	mu     sync.Mutex
	booked map[arbiter.Account]float64 // largest so far: a loss takes back what counted, and counters do not fall
}

func label1(key, value string) metric.MeasurementOption {
	return metric.WithAttributes(attribute.String(key, value))
}

// meterArbiter exports what the arbiter decided and where slice time went.
// Labels are models and closed lists.
func (s *server) meterArbiter(m metric.Meter) error {
	a := &arbiterMeter{booked: map[arbiter.Account]float64{}}
	var errs [2]error
	a.decisions, errs[0] = m.Int64Counter("aloft.decisions", metric.WithUnit("{decision}"),
		metric.WithDescription("Decisions and how their moves ended, by action, reason and outcome: decided, observed, done, failed, bound_broken, learned"))
	a.reclaims, errs[1] = m.Float64Histogram("aloft.reclaim.duration", metric.WithUnit("s"),
		metric.WithDescription("From the decision to a ready replica, by bound: kept, broken"),
		metric.WithExplicitBucketBoundaries(0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256))
	s.measure = a
	return errors.Join(errs[0], errs[1], s.meterLedger(m, a), s.meterLending(m))
}

// record hears of every decision and outcome. It must not block.
func (a *arbiterMeter) record(r arbiter.Record) {
	outcome := r.Outcome
	if outcome == "" {
		outcome = "decided"
	}
	ctx := context.Background()
	a.decisions.Add(ctx, 1, metric.WithAttributes(attribute.String("action", string(r.Move.Action)),
		attribute.String("reason", string(r.Move.Reason)), attribute.String("outcome", outcome)))
	if r.Move.Action != arbiter.Reclaim {
		return
	}
	switch r.Outcome {
	case "done":
		a.reclaims.Record(ctx, r.Took.Seconds(), label1("bound", "kept"))
	case "bound_broken":
		a.reclaims.Record(ctx, r.Took.Seconds(), label1("bound", "broken"))
	}
}

// counted is what a counter of an account may say.
func (a *arbiterMeter) counted(account arbiter.Account, s float64) float64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.booked[account] = max(a.booked[account], s)
	return a.booked[account]
}

func (s *server) meterLedger(m metric.Meter, a *arbiterMeter) error {
	spent, _ := m.Float64ObservableCounter("aloft.ledger.time", metric.WithUnit("s"), metric.WithDescription("Powered-on time of compute slices, by account"))
	share, _ := m.Float64ObservableGauge("aloft.ledger.share", metric.WithDescription("Share of powered-on slice time since the start, by account"))
	ratio, _ := m.Float64ObservableGauge("aloft.ratio", metric.WithDescription("Useful slice time over powered-on slice time, since the start"))
	frag, _ := m.Float64ObservableGauge("aloft.fragmentation", metric.WithDescription("Share of the GPUs that is free and of no use to what is asked for"))
	queued, _ := m.Float64ObservableCounter("aloft.jobs.queued", metric.WithUnit("s"), metric.WithDescription("Time of queued jobs, by cause: capacity, shape, policy"))
	longest, _ := m.Float64ObservableGauge("aloft.jobs.longest_wait", metric.WithUnit("s"), metric.WithDescription("How long a job that has no slice has waited, the longest"))
	bound, _ := m.Float64ObservableGauge("aloft.jobs.starvation_bound", metric.WithUnit("s"), metric.WithDescription("Until each waiting job goes ahead of all that are submitted later; absent without ageing"))
	late, _ := m.Int64ObservableGauge("aloft.jobs.late", metric.WithDescription("Waiting jobs that can no longer meet their deadline"))
	count, _ := m.Int64ObservableGauge("aloft.slices", metric.WithDescription("Slices by phase"))
	_, err := m.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		v := s.arbiter.View()
		for account, x := range v.Balance.Share {
			by := label1("account", string(account))
			o.ObserveFloat64(share, x, by)
			o.ObserveFloat64(spent, a.counted(account, x*v.Balance.Total), by)
		}
		o.ObserveFloat64(ratio, v.Balance.Aloft)
		o.ObserveFloat64(frag, v.Snapshot.Fragmentation())
		for cause, x := range v.Balance.Queue {
			o.ObserveFloat64(queued, x, label1("cause", string(cause)))
		}
		waits := waitingOf(v.Policy.Waits(v.Snapshot), v.Policy.AgeEvery > 0, v.Snapshot.Now)
		o.ObserveFloat64(longest, waits.Longest)
		o.ObserveInt64(late, int64(waits.Late))
		if waits.Bound != nil {
			o.ObserveFloat64(bound, *waits.Bound)
		}
		phases := map[arbiter.Phase]int64{}
		for _, sl := range v.Snapshot.Slices {
			phases[sl.Phase]++
		}
		for p, n := range phases {
			o.ObserveInt64(count, n, label1("phase", string(p)))
		}
		return nil
	}, spent, share, ratio, frag, queued, longest, bound, late, count)
	return err
}

func (s *server) meterLending(m metric.Meter) error {
	room, _ := m.Float64ObservableGauge("aloft.headroom", metric.WithDescription("1 - p99/target; absent without samples"))
	need, _ := m.Int64ObservableGauge("aloft.replicas.needed", metric.WithDescription("Replicas needed, by within: now, fast, slow (the two horizons)"))
	have, _ := m.Int64ObservableGauge("aloft.replicas.ready", metric.WithDescription("Replicas ready or on their way"))
	lent, _ := m.Int64ObservableGauge("aloft.slices.lent", metric.WithDescription("Compute slices lent to jobs"))
	lendable, _ := m.Int64ObservableGauge("aloft.slices.lendable", metric.WithDescription("Compute slices that may be lent, those that are included"))
	limit, _ := m.Int64ObservableGauge("aloft.lending.cap", metric.WithDescription("Most slices lent at once after a broken bound; absent without a cap"))
	loans, _ := m.Int64ObservableCounter("aloft.loans", metric.WithDescription("Loans begun"))
	incidents, _ := m.Int64ObservableCounter("aloft.incidents", metric.WithDescription("What must not happen, by kind: bound_broken, invariant_broken"))
	_, err := m.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		v := s.arbiter.View()
		for name, n := range v.Plan.Needs {
			by := attribute.String("model", name)
			for within, x := range map[string]int{"now": n.Need, "fast": n.Fast, "slow": n.Slow} {
				o.ObserveInt64(need, int64(x), metric.WithAttributes(by, attribute.String("within", within)))
			}
			o.ObserveInt64(have, int64(n.Have), metric.WithAttributes(by))
			o.ObserveInt64(lendable, int64(n.Lendable)) // the same for all models
			if n.Room != nil {
				o.ObserveFloat64(room, *n.Room, metric.WithAttributes(by))
			}
		}
		for name, n := range lentBy(v.Snapshot) {
			o.ObserveInt64(lent, int64(n), label1("model", name))
		}
		if v.Cap > 0 {
			o.ObserveInt64(limit, int64(v.Cap))
		}
		o.ObserveInt64(loans, int64(v.Stats.Loans))
		o.ObserveInt64(incidents, int64(v.Stats.Breaches), label1("kind", "bound_broken"))
		o.ObserveInt64(incidents, int64(v.Stats.Violations), label1("kind", "invariant_broken"))
		return nil
	}, room, need, have, lent, lendable, limit, loans, incidents)
	return err
}

// lentBy counts the slices that jobs hold by whose sleeping replica is on them;
// "" = nobody's.
func lentBy(s arbiter.Snapshot) map[string]int {
	out := map[string]int{"": 0}
	for _, m := range s.Models {
		out[m.Name] = 0
	}
	for _, sl := range s.Slices {
		if sl.Lent() {
			out[sl.Model] += sl.Units()
		}
	}
	return out
}
