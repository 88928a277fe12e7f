package main

import (
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"aloft/backends"
	"aloft/batcher"
	"aloft/gpu"
	"aloft/jobs"
	"aloft/pool"
)

func testServing() *serving {
	s := &serving{
		changed: make(chan struct{}), rows: map[string]bool{"m": true}, offline: map[string]int{"m": 2}, shared: map[string]int{"m": 3},
		adapters: map[string][]string{},
	}
	s.set.Store(newModelSet(
		&served{ModelConfig: ModelConfig{Name: "m", Aliases: []string{"text-embedding-3-small"}, Endpoints: []string{"embeddings"},
			Adapters: []string{"fr", "de"}, Affinity: AffinityConfig{Prefix: true}, Overflow: &OverflowConfig{}}, counting: counting{counter: &backends.Ratio{}}},
		&served{ModelConfig: ModelConfig{Name: "m:de", Endpoints: []string{"chat"}, Affinity: AffinityConfig{Session: true}}},
	))
	return s
}

func TestBatchRowsFindTheirModel(t *testing.T) {
	s := testServing()
	for name, want := range map[string]int{
		"m":                      5 * 8, // two lent replicas and three ready ones
		"text-embedding-3-small": 5 * 8,
		"m:fr":                   5 * 8,
		"unknown":                8, // refused by the gateway, not held until the window ends
	} {
		if got := s.concurrency(name, 8); got != want {
			t.Errorf("%s: %d rows, want %d", name, got, want)
		}
	}
	s.rows["m"], s.offline["m"] = false, 0
	if got := s.concurrency("m", 8); got != 0 {
		t.Errorf("nothing lent and no rows allowed: %d rows, want 0", got)
	}
}

// Names in requests: models, aliases, adapters of either; a model that is called
// like an adapter comes first.
func TestCatalog(t *testing.T) {
	s := testServing()
	s.notify([]pool.Replica{{ID: "m-1", Model: "m", State: pool.Loading}, {ID: "m-2", Model: "m", State: pool.Ready}})
	s.adapters["m"] = []string{"fr"}
	for _, tt := range []struct{ ask, name, adapter, engine, state string }{
		{"m", "m", "", "", "ready"},
		{"text-embedding-3-small", "m", "", "", "ready"},
		{"m:fr", "m", "fr", "fr", "ready"},
		{"text-embedding-3-small:fr", "m", "fr", "fr", "ready"},
		{"m:de", "m:de", "", "", "cold"},
		{"text-embedding-3-small:de", "m", "de", "de", "missing"},
		{"m:xx", "", "", "", ""}, {"m:", "", "", "", ""}, {":fr", "", "", "", ""}, {"m:fr:fr", "", "", "", ""}, {"", "", "", "", ""},
	} {
		g, ok := catalog{s}.Lookup(tt.ask)
		if ok != (tt.name != "") || g.Name != tt.name || g.Adapter != tt.adapter || g.EngineModel != tt.engine || g.State != tt.state ||
			g.Usable != (tt.state == "ready") {
			t.Errorf("%q: %v %+v, want %+v", tt.ask, ok, g, tt)
		}
		if session := tt.name == "m:de"; ok && (g.BySession != session || g.ByPrefix == session || g.Overflow == session || len(g.Endpoints) != 1) {
			t.Errorf("%q: %+v", tt.ask, g)
		}
	}
	var listed []string
	for _, g := range (catalog{s}).Models() {
		listed = append(listed, g.Name+"/"+g.Adapter)
	}
	if want := []string{"m/", "m/fr", "m:de/"}; !slices.Equal(listed, want) {
		t.Errorf("listed %q, want %q", listed, want)
	}
	if n := testing.AllocsPerRun(100, func() { catalog{s}.Lookup("m:fr") }); n != 0 {
		t.Errorf("%v allocations a lookup, want 0", n)
	}
}

// Who waited in vain is told whether a replica is on its way.
func TestWaitForAReplica(t *testing.T) {
	for state, want := range map[pool.State]string{
		pool.Loading: "loading", pool.Warming: "loading", pool.Waking: "loading",
		pool.Failed: "no_replica", pool.Stopped: "no_replica", cold: "no_replica",
	} {
		s := testServing()
		b, err := batcher.New(batcher.Options{Model: "m", Merge: true, QueueTimeout: time.Millisecond}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		s.model("m").batcher = b
		if state != cold {
			s.notify([]pool.Replica{{ID: "m-1", Model: "m", State: state}})
		}
		_, err = submitter{s}.Submit(t.Context(), &backends.Request{Model: "m", Endpoint: backends.Embeddings, Inputs: [][]byte{[]byte(`"x"`)}, InputTokens: []int{1}})
		var retry *backends.RetryError
		if !errors.As(err, &retry) || retry.Reason != want || retry.After < time.Second || !errors.Is(err, backends.ErrUnavailable) {
			t.Errorf("%s: %v, want an error to try again with the reason %s", state, err, want)
		}
		if err := b.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// Who would wait in vain is told so at once, with the time when a replica may be
// there again: every one has failed and is tried again too late for it.
func TestNoWaitForWhatCannotCome(t *testing.T) {
	now := time.Now()
	failed := func(id string, in time.Duration) pool.Replica {
		return pool.Replica{ID: id, Model: "m", State: pool.Failed, Retry: now.Add(in)}
	}
	for name, tt := range map[string]struct {
		replicas []pool.Replica
		deadline time.Duration
		class    backends.Class
		want     time.Duration // about; 0 = it waits
	}{
		"a minute":            {replicas: []pool.Replica{failed("m-1", time.Minute)}, want: time.Minute},
		"the first counts":    {replicas: []pool.Replica{failed("m-1", time.Minute), failed("m-2", 40*time.Second)}, want: 40 * time.Second},
		"in time":             {replicas: []pool.Replica{failed("m-1", time.Minute), failed("m-2", 10*time.Second)}},
		"in time, but for it": {replicas: []pool.Replica{failed("m-1", 10*time.Second)}, deadline: 5 * time.Second, want: 10 * time.Second},
		"another loads":       {replicas: []pool.Replica{failed("m-1", time.Minute), {ID: "m-2", Model: "m", State: pool.Loading}}},
		"another's":           {replicas: []pool.Replica{{ID: "n-1", Model: "n", State: pool.Failed, Retry: now.Add(time.Minute)}}},
		"a row":               {replicas: []pool.Replica{failed("m-1", time.Minute)}, class: backends.Offline},
		"none":                {},
	} {
		s := testServing()
		b, err := batcher.New(batcher.Options{Model: "m"}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		s.model("m").batcher = b
		s.notify(tt.replicas)
		r := &backends.Request{Model: "m", Endpoint: backends.Chat, Class: tt.class}
		if tt.deadline > 0 {
			r.Deadline = now.Add(tt.deadline)
		}
		if got := s.hopeless(s.model("m"), r, now); got != tt.want {
			t.Errorf("%s: no replica for %v, want %v", name, got, tt.want)
		}
		if tt.want > 0 {
			_, err := submitter{s}.Submit(t.Context(), r)
			var retry *backends.RetryError
			if !errors.As(err, &retry) || retry.Reason != "no_replica" || retry.After < tt.want/2 || !errors.Is(err, backends.ErrUnavailable) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err := b.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestLentReplicasAreForgotten(t *testing.T) {
	s := testServing()
	slice := gpu.Slice{ID: "gpu0/s0"}
	s.notify([]pool.Replica{
		{ID: "m-1", Model: "m", Slice: slice, State: pool.Sleeping},
		{ID: "m-2", Model: "m", Slice: slice, State: pool.Ready, Job: "batch_1"},
	})
	if s.isLent("m-1") || !s.isLent("m-2") || s.state("m", "") != pool.Sleeping {
		t.Errorf("lent %v, states %v", s.lent, s.seen)
	}
	s.notify([]pool.Replica{{ID: "m-1", Model: "m", Slice: slice, State: pool.Sleeping}})
	if len(s.lent) != 0 {
		t.Errorf("a stopped replica is still listed as lent: %v", s.lent)
	}
}

func TestJobsThatCannotRunAreRefused(t *testing.T) {
	small := func(profile string) (gpu.Shape, error) {
		if profile == "7g.80gb" {
			return gpu.Shape{}, errors.New("no slice is as large")
		}
		return gpu.Shape{}, nil
	}
	for param, j := range map[string]jobs.Job{"shape": {Shape: "7g.80gb"}, "min_width": {MinWidth: 3}} {
		_, err := jobDoor{shape: small, room: func(gpu.Shape) int { return 2 }}.Submit(t.Context(), j)
		if bad, ok := errors.AsType[*jobs.InvalidError](err); !ok || bad.Param != param {
			t.Errorf("%s: %v, want it refused", param, err)
		}
	}
}

func TestWidth(t *testing.T) {
	for _, c := range []struct {
		job         jobs.Job
		least, most int
	}{
		{jobs.Job{}, 1, 1},
		{jobs.Job{MinWidth: 2, MaxWidth: 4}, 2, 4},
		{jobs.Job{MinWidth: 2, MaxWidth: 4, Slices: []string{"a", "b", "c"}}, 3, 3}, // no member may be lost, and none is added
	} {
		if least, most, whole := width(c.job); least != c.least || most != c.most || !whole {
			t.Errorf("%+v: %d to %d, whole %v; want %d to %d, whole", c.job, least, most, whole, c.least, c.most)
		}
	}
}

func TestUnsavedWorkIsThisRunsOwn(t *testing.T) {
	first := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	j := jobs.Job{ID: "job_1", Times: jobs.Times{Started: first}}
	w := &work{began: map[string]time.Time{"job_1": first.Add(10 * time.Minute), "job_2": first}}
	if got := w.saved(j); !got.Equal(first.Add(10 * time.Minute)) {
		t.Errorf("second run: safe up to %v, want its own start", got)
	}
	j.Progress.CheckpointAt = first.Add(11 * time.Minute)
	if got := w.saved(j); !got.Equal(j.Progress.CheckpointAt) {
		t.Errorf("with a checkpoint: safe up to %v, want %v", got, j.Progress.CheckpointAt)
	}
	w.keep([]jobs.Job{j})
	if len(w.began) != 1 {
		t.Errorf("%d starts remembered, want that of the listed job", len(w.began))
	}
}
