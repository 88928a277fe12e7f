package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"aloft/arbiter"
	"aloft/backends"
	"aloft/batcher"
	"aloft/gateway"
	"aloft/jobs"
	"aloft/pool"
)

// catalog fits the served models to gateway.Catalog.
type catalog struct{ *serving }

// Lookup implements gateway.Catalog.
func (c catalog) Lookup(name string) (gateway.Model, bool) {
	l := c.set.Load().names[name]
	if l == nil {
		return gateway.Model{}, false
	}
	return c.describe(l), true
}

// Models implements gateway.Catalog: each model, followed by its adapters.
func (c catalog) Models() []gateway.Model {
	var out []gateway.Model
	for _, l := range c.set.Load().listed {
		out = append(out, c.describe(l))
	}
	return out
}

// describe adds to a listing what changes while it stands. The edge asks for
// every request.
func (c catalog) describe(l *listing) gateway.Model {
	g := l.model
	state := c.state(l.served.Name, g.Adapter)
	g.State = string(state)
	g.Usable = state == pool.Ready || state == pool.Waking || state == pool.Sleeping
	return g
}

// best orders replica states for people: what a request meets at best.
var best = []pool.State{pool.Ready, pool.Waking, pool.Warming, pool.Loading, pool.Sleeping, pool.Draining, pool.Failed}

// The states of models that no replica is in.
const (
	cold    pool.State = "cold"    // there is no replica
	missing pool.State = "missing" // no ready replica has the adapter
)

// state is the best of a model's serving replicas. notify and publish keep it.
func (s *serving) state(model, adapter string) pool.State {
	s.mu.Lock()
	defer s.mu.Unlock()
	state, ok := s.seen[model]
	switch {
	case !ok:
		return cold
	case adapter != "" && state == pool.Ready && !slices.Contains(s.adapters[model], adapter):
		return missing
	}
	return state
}

// submitter fits the batchers to gateway.Submitter.
type submitter struct{ *serving }

// Submit implements gateway.Submitter. A batcher that was replaced between the
// look and the call refuses: its successor is asked.
func (s submitter) Submit(ctx context.Context, r *backends.Request) (*backends.Reply, error) {
	for {
		m := s.model(r.Model)
		if m == nil {
			return nil, backends.ErrUnknownModel
		}
		if m.batcher.Wait(r.Tokens) < 0 {
			if wait := s.hopeless(m, r, time.Now()); wait > 0 {
				m.batcher.Missed(r.Class, r.Tokens) // demand all the same: another replica may be started for it
				return nil, &backends.RetryError{After: wait, Reason: backends.ReasonNoReplica,
					Err: fmt.Errorf("every replica failed, and none starts again before the request's time is up: %w", backends.ErrUnavailable)}
			}
		}
		s.arrived(m, r)
		reply, err := m.batcher.Submit(ctx, r)
		if err == nil {
			return reply, nil
		}
		if now := s.model(r.Model); !errors.Is(err, backends.ErrDraining) || now != nil && now.batcher == m.batcher {
			return reply, s.onItsWay(r.Model, err)
		}
	}
}

// arrived tells the arbiter of a request, which may be the one that breaks the
// envelope of its model.
func (s *serving) arrived(m *served, r *backends.Request) {
	if s.tell == nil || r.Class == backends.Offline {
		return
	}
	m.meter.mu.Lock()
	rate := m.meter.rate
	m.meter.mu.Unlock()
	s.tell(m.Name, time.Duration(float64(r.Tokens)*rate*float64(time.Second)))
}

// hopeless is how long no replica can be there for a request that would not wait
// so long, now that there is none: all of its model's have failed, and start again
// later. 0 = it may wait. Rows of batches do: they have hours.
func (s *serving) hopeless(m *served, r *backends.Request, now time.Time) time.Duration {
	if r.Class == backends.Offline {
		return 0
	}
	s.mu.Lock()
	state, back := s.seen[m.Name], s.back[m.Name]
	s.mu.Unlock()
	until := now.Add(cmp.Or(m.options.QueueTimeout, batcher.DefaultQueueTimeout))
	if !r.Deadline.IsZero() && r.Deadline.Before(until) {
		until = r.Deadline
	}
	if state != pool.Failed || back.IsZero() || !back.After(until) {
		return 0
	}
	return back.Sub(now)
}

// onItsWay tells clients that waited in vain for a replica which is loading from
// those that none is coming for.
func (s *serving) onItsWay(model string, err error) error {
	var retry *backends.RetryError
	if !errors.As(err, &retry) || retry.Reason != backends.ReasonNoReplica {
		return err
	}
	switch s.state(model, "") {
	case pool.Loading, pool.Warming, pool.Waking:
		return &backends.RetryError{Err: err, After: retry.After, Reason: backends.ReasonLoading}
	}
	return err
}

// caller is the gateway as jobs.Caller; jobs are made before the gateway is.
type caller struct{ *server }

// Call implements jobs.Caller.
func (c caller) Call(ctx context.Context, row jobs.Row) (jobs.Result, error) {
	return c.gateway.Call(ctx, row)
}

// decisions fits the arbiter to gateway.Decisions.
type decisions struct{ *arbiter.Arbiter }

// decision is a record with its sentence.
type decision struct {
	ID string `json:"id"`
	arbiter.Record
	Text string `json:"text"`
}

// Decisions implements gateway.Decisions. Ids are good until a restart.
func (d decisions) Decisions(f gateway.Filter) ([]gateway.Decision, error) {
	q := arbiter.Query{About: f.About, Action: arbiter.Action(f.Action), Since: f.Since, Until: f.Until, Limit: f.Limit}
	if f.After != "" {
		n, err := strconv.ParseUint(strings.TrimPrefix(f.After, "dec_"), 10, 64)
		if err != nil || n == 0 {
			return nil, fmt.Errorf("%.40q is no id of a decision", f.After)
		}
		q.Before = n
	}
	var out []gateway.Decision
	for _, r := range slices.Backward(d.Why(q)) {
		id := fmt.Sprintf("dec_%d", r.Seq)
		out = append(out, gateway.Decision{ID: id, Value: decision{id, r, r.String()}})
	}
	return out, nil
}

// Status is what /aloft/v1/status answers.
type Status struct {
	Time     time.Time       `json:"time"`
	Uptime   float64         `json:"uptime_s"`
	Mode     string          `json:"mode"`
	Devices  []DeviceStatus  `json:"devices"`
	Slices   []SliceStatus   `json:"slices"`
	Models   []ModelStatus   `json:"models"`
	Jobs     []JobStatus     `json:"jobs"`
	Arbiter  ArbiterStatus   `json:"arbiter"`
	Ledger   arbiter.Balance `json:"ledger"`
	Modelled bool            `json:"modelled"`
}

// DeviceStatus is one GPU.
type DeviceStatus struct {
	Index    int    `json:"index"`
	Model    string `json:"model"`
	Healthy  bool   `json:"healthy"`
	Reason   string `json:"reason,omitempty"`
	Modelled bool   `json:"modelled"`
}

// SliceStatus is one slice and its holder.
type SliceStatus struct {
	ID     string  `json:"id"`
	Shape  string  `json:"shape"`
	Phase  string  `json:"phase"`
	Model  string  `json:"model,omitempty"`
	Job    string  `json:"job,omitempty"`
	To     string  `json:"to,omitempty"` // while it moves
	Since  float64 `json:"since_s"`
	Moving bool    `json:"moving"`
}

// ModelStatus is one model's load and what it needs.
type ModelStatus struct {
	Name     string         `json:"name"`
	State    string         `json:"state"`
	Level    float64        `json:"level"`
	Need     int            `json:"need"`
	Fast     int            `json:"need_fast"`
	Slow     int            `json:"need_slow"`
	Lent     int            `json:"lent"`   // its slices on loan
	Frozen   bool           `json:"frozen"` // a maintenance window: it lends nothing
	Have     int            `json:"have"`
	Law      *LawStatus     `json:"law"`      // null = none learned yet
	Headroom *float64       `json:"headroom"` // null = none
	P99      float64        `json:"p99_ms"`
	Target   float64        `json:"target_ms"`
	Rate     float64        `json:"requests_per_s"`
	Queue    map[string]int `json:"queue"` // by class
	Eta      float64        `json:"eta"`
	Batching BatchStatus    `json:"batching"`
	Counted  string         `json:"tokens_by"`    // vocabulary, or estimate
	Counts   *float64       `json:"tokens_ratio"` // our counts over the engines'; null = none yet
}

// LawStatus is what of a model stays ready: level + rise × level^power replicas,
// never below the floor, and no less until that has lasted for the hold.
type LawStatus struct {
	Quantile float64 `json:"quantile"` // of the rises that are covered; above 1: so many times the worst
	Rise     float64 `json:"rise"`     // within the fast horizon, at level 1
	Power    float64 `json:"power"`
	Floor    float64 `json:"floor"`
	Hold     float64 `json:"hold_s"`
}

func lawStatus(l arbiter.Law) *LawStatus {
	if !l.Learned() {
		return nil
	}
	return &LawStatus{Quantile: l.Quantile, Rise: l.Fast, Power: l.Power, Floor: l.Floor, Hold: l.Hold.Seconds()}
}

// JobStatus is one unfinished job.
type JobStatus struct {
	ID          string `json:"id"`
	Kind        string `json:"kind"`
	State       string `json:"state"`
	Done        int64  `json:"done"`
	Total       int64  `json:"total"`
	Preemptions int    `json:"preemptions"`
	Resumes     int    `json:"resumes"`
}

// ArbiterStatus counts what the arbiter did.
type ArbiterStatus struct {
	Loans      int     `json:"loans"`
	Reclaims   int     `json:"reclaims"`
	ReclaimP99 float64 `json:"reclaim_p99_s"`
	Bound      float64 `json:"reclaim_bound_s"` // largest promised
	Breaches   int     `json:"bound_breaches"`
	Violations int     `json:"invariant_violations"`
	Lent       int     `json:"lent"` // compute slices, as Lendable
	Lendable   int     `json:"lendable"`
	Cap        int     `json:"cap"` // on slices lent at once, after a broken bound; 0 = none
	Risk       string  `json:"risk"`
	// Windows are the maintenance windows that are open.
	Windows []string `json:"windows"`
}

// statusSource fits the whole server to gateway.Status.
type statusSource struct{ *server }

// Status implements gateway.Status.
func (s statusSource) Status() any {
	v := s.arbiter.View()
	out := Status{Time: time.Now(), Uptime: time.Since(s.began).Seconds(), Mode: s.current.Load().Arbiter.Mode, Ledger: v.Balance}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	devices, err := s.inventory.List(ctx)
	if err != nil {
		devices = s.devices // as they were at the start
	}
	for _, d := range devices {
		out.Devices = append(out.Devices, DeviceStatus{Index: d.Index, Model: d.Model, Healthy: d.Health.OK, Reason: d.Health.Reason, Modelled: d.Modeled})
		out.Modelled = out.Modelled || d.Modeled
	}
	for _, sl := range v.Snapshot.Slices {
		out.Slices = append(out.Slices, SliceStatus{ID: sl.ID, Shape: sl.Shape.Profile, Phase: string(sl.Phase), Model: sl.Model,
			Job: sl.Job, To: sl.To, Moving: sl.Moving, Since: time.Since(sl.Since).Seconds()})
	}
	set, lent := s.serving.set.Load(), lentBy(v.Snapshot)
	for _, name := range set.order {
		m := s.modelStatus(set.models[name], v.Plan.Needs[name])
		m.Lent = lent[name]
		for _, x := range v.Snapshot.Models {
			if x.Name == name {
				m.Frozen, m.Law = x.Frozen, lawStatus(x.Law)
			}
		}
		out.Models = append(out.Models, m)
	}
	list, _ := s.jobs.List(context.Background(), jobs.Filter{States: []jobs.State{jobs.Queued, jobs.Starting, jobs.Running, jobs.Preempting}})
	for _, j := range list {
		js := JobStatus{ID: j.ID, Kind: string(j.Kind), State: string(j.State), Done: j.Progress.Done, Total: j.Progress.Total,
			Preemptions: j.Preemptions, Resumes: j.Progress.Resumes}
		if j.Batch != nil {
			js.Done, js.Total = int64(j.Batch.Counts.Completed+j.Batch.Counts.Failed), int64(j.Batch.Counts.Total)
		}
		out.Jobs = append(out.Jobs, js)
	}
	slices.SortFunc(out.Jobs, func(a, b JobStatus) int { return cmp.Compare(a.ID, b.ID) })
	st := v.Stats
	out.Arbiter = ArbiterStatus{Loans: st.Loans, Reclaims: st.Reclaims, ReclaimP99: st.P99().Seconds(), Bound: st.Bound.Seconds(),
		Breaches: st.Breaches, Violations: st.Violations, Cap: v.Cap, Risk: string(v.Policy.Risk), Windows: []string{}}
	for _, w := range s.current.Load().openWindows(time.Now()) {
		out.Arbiter.Windows = append(out.Arbiter.Windows, w.title())
	}
	for _, n := range v.Plan.Needs {
		out.Arbiter.Lendable = n.Lendable
	}
	for i := range v.Snapshot.Slices { // not the plan's: mode observe plans and does nothing
		if sl := &v.Snapshot.Slices[i]; sl.Lent() {
			out.Arbiter.Lent += sl.Units()
		}
	}
	return out
}

func (s *server) modelStatus(m *served, n arbiter.Numbers) ModelStatus {
	sig := m.batcher.Signals(time.Now())
	ms := ModelStatus{Name: m.Name, State: string(s.serving.state(m.Name, "")), Level: n.Level, Need: n.Need, Fast: n.Fast, Slow: n.Slow, Have: n.Have,
		Headroom: n.Room, P99: 1000 * sig.First.P99.Seconds(), Target: 1000 * m.Target.Seconds(), Rate: sig.Load.Requests,
		Queue: map[string]int{}, Eta: sig.Eta, Batching: batchStatus(sig), Counted: m.by(), Counts: m.ratio()}
	for c := range backends.Classes {
		ms.Queue[c.String()] = sig.Class[c].Queue
	}
	return ms
}

func (s *server) observeQueues(o metric.Observer, queue metric.Int64Observable) {
	set := s.serving.set.Load()
	for _, name := range set.order {
		sig := set.models[name].batcher.Signals(time.Now())
		for c := range backends.Classes {
			o.ObserveInt64(queue, int64(sig.Class[c].Queue), metric.WithAttributes(attribute.String("model", name), attribute.String("class", c.String())))
		}
	}
}
