package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"aloft/backends"
	"aloft/backends/openaihttp"
	"aloft/gateway"
	"aloft/gateway/cache"
	"aloft/gateway/keys"
	"aloft/gateway/overflow"
)

// newRoute makes a model's way to its external provider.
func newRoute(m *ModelConfig, t *TimeoutConfig, was overflow.Spent) (*overflow.Route, error) {
	o := m.Overflow
	key := os.Getenv(o.KeyEnv)
	if o.KeyEnv != "" && key == "" {
		return nil, fmt.Errorf("the environment variable %s, which should have the provider's key, is empty", o.KeyEnv)
	}
	client := openaihttp.Options{BaseURL: o.URL, APIKey: key, ConnectTimeout: t.Connect, FirstByteTimeout: t.FirstByte, StreamIdleTimeout: t.StreamIdle}
	if err := client.Validate(); err != nil {
		return nil, err
	}
	return overflow.NewRoute(overflow.Options{Backend: openaihttp.New(client), Model: o.Model,
		Input: o.Input, Output: o.Output, Budget: o.Budget, Target: m.Target}, was)
}

// way is what lies between the edge and the batchers.
type way struct {
	variants *variantSet
	spending *spending
	cache    *cache.Cache // nil = off
}

// submitter is the way of a request to whoever answers it: to its model or a
// variant, and there what is remembered, else replicas, through the batchers, or, where none can in time, a model's
// external provider.
func (s *server) submitter() (gateway.Submitter, error) {
	way := &overflow.Overflow{Next: submitter{s.serving},
		Route: func(model string) *overflow.Route {
			if m := s.serving.model(model); m != nil {
				return m.route
			}
			return nil
		},
		Wait: func(model string, tokens int) time.Duration {
			if m := s.serving.model(model); m != nil {
				return m.batcher.Wait(tokens)
			}
			return -1
		},
		Missed: func(r *backends.Request) {
			if m := s.serving.model(r.Model); m != nil {
				m.batcher.Missed(r.Class, r.Tokens)
			}
		}}
	if s.conf.Gateway.Cache == 0 {
		return s.openSplitter(way), nil
	}
	var err error
	s.way.cache, err = cache.New(way, s.conf.Gateway.Cache, s.serving.upToDate)
	if err == nil {
		s.serving.renewed = s.way.cache.Purge
	}
	return s.openSplitter(s.way.cache), err
}

// charge books what an answer of the external provider has cost.
func (m *served) charge(r *gateway.Outcome) {
	if m.route != nil {
		m.route.Charge(r.Arrival.Add(r.Total), r.PromptTokens, r.CompletionTokens)
	}
}

// spending keeps what each model's provider has cost this month, so that a
// restart does not begin a new budget.
type spending struct {
	path    string
	serving *serving

	mu  sync.Mutex
	was map[string]overflow.Spent // by model, as last written
}

func openSpending(path string, s *serving) (*spending, error) {
	sp := &spending{path: path, serving: s, was: map[string]overflow.Spent{}}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return sp, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &sp.was)
	}
	if err != nil { // rather no start than a budget that begins anew
		return nil, fmt.Errorf("read what providers have cost: %s: %w", path, err)
	}
	return sp, nil
}

// of returns what a model's provider has cost.
func (sp *spending) of(model string) overflow.Spent {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	return sp.was[model]
}

// save writes what has changed.
func (sp *spending) save(now time.Time) error {
	set := sp.serving.set.Load()
	sp.mu.Lock()
	defer sp.mu.Unlock()
	changed := false
	for _, m := range set.models {
		if m.route == nil {
			continue
		}
		name := m.family(m.Name) // a variant has its model's route, and budget
		if spent := m.route.Spent(now); spent != sp.was[name] {
			sp.was[name], changed = spent, true
		}
	}
	if !changed {
		return nil
	}
	b, err := json.Marshal(sp.was)
	if err == nil {
		err = keys.WriteFile(sp.path, b)
	}
	if err != nil {
		return fmt.Errorf("keep what providers have cost: %w", err)
	}
	return nil
}

// spendingPeriod bounds what a crash can forget.
const spendingPeriod = 5 * time.Second

// run saves now and then until ctx ends, and once more.
func (sp *spending) run(ctx context.Context, warn func(msg string, args ...any)) {
	tick := time.NewTicker(spendingPeriod)
	defer tick.Stop()
	for {
		var now time.Time
		select {
		case now = <-tick.C:
		case <-ctx.Done():
			now = time.Now()
		}
		if err := sp.save(now); err != nil {
			warn("spending not saved", "error", err)
		}
		if ctx.Err() != nil {
			return
		}
	}
}
