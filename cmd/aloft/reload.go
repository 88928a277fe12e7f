package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"aloft/batcher"
	"aloft/gateway/overflow"
)

// reloadable are the keys that a running server takes from a changed file, with
// all below them. Everything else needs a restart.
var reloadable = []string{"models", "jobs.templates", "jobs.schedules", "log.level", "engine.library", "node.price",
	"arbiter.mode", "arbiter.risk", "arbiter.hold", "arbiter.after_reclaim", "arbiter.age_every", "arbiter.rho", "arbiter.lend_above", "arbiter.reclaim_below",
	"arbiter.spare", "arbiter.max_eta", "arbiter.budget", "arbiter.tenants", "arbiter.windows"}

// reloading is what a server needs to take a changed configuration.
type reloading struct {
	load     func() (*Config, error)
	current  atomic.Pointer[Config] // the newest that was taken; only reload changes it
	level    *slog.LevelVar
	retiring sync.WaitGroup // batchers that answer what they still hold
}

// reload reads the configuration again, checks all of it, and only then swaps it
// in. Requests under way keep the model that they began with; a model that did
// not change keeps its batcher and its replicas.
func (s *server) reload() (changed []string, err error) {
	next, err := s.load()
	if err != nil {
		return nil, err
	}
	if path := differs(reflect.ValueOf(*s.conf), reflect.ValueOf(*next), ""); path != "" {
		return nil, next.located(at(path, "changed: this needs a restart, until then nothing of the file is taken"))
	}
	if err := s.checkTemplates(next); err != nil {
		return nil, next.located(err)
	}
	s.way.variants.mu.Lock()
	defer s.way.variants.mu.Unlock()
	changed = changes(s.current.Load(), next)
	if err := s.serveBy(next); err != nil {
		return nil, err
	}
	if err := s.jobs.SetTemplates(next.templates()); err != nil {
		return nil, err // they were checked: this is a bug, and harmless
	}
	schedules, err := next.schedules()
	if err == nil {
		err = s.jobs.SetSchedules(schedules)
	}
	if err != nil {
		return nil, err // as above
	}
	level, _ := logLevel(next.Log.Level) // checked by load
	s.level.Set(level)
	s.current.Store(next)
	return changed, s.decideBy(time.Now())
}

// serveBy swaps in the models of a configuration, with their variants; nothing
// is changed on an error. The variants are locked.
func (s *server) serveBy(c *Config) error {
	c = s.withVariants(c)
	models, err := s.engines(c)
	if err != nil {
		return c.located(err)
	}
	old := s.serving.set.Load()
	set, err := s.nextSet(c, old)
	if err != nil {
		return c.located(err)
	}
	if err := s.serving.pool.SetModels(models); err != nil {
		return err
	}
	s.serving.markOld(s.serving.pool.Replicas())
	s.serving.swap(set)
	if s.way.cache != nil && old.differs(set) {
		s.way.cache.Purge() // a changed model may have other vectors
	}
	s.retire(old, set)
	if s.arbiter != nil {
		s.arbiter.Kick()
	}
	return nil
}

// differs reports whether two sets serve other models.
func (a *modelSet) differs(b *modelSet) bool {
	return !maps.EqualFunc(a.models, b.models, func(x, y *served) bool { return reflect.DeepEqual(x.ModelConfig, y.ModelConfig) })
}

// differs returns the path of the first key that two configurations have
// different and a reload does not take; "" = none.
func differs(a, b reflect.Value, path string) string {
	if slices.Contains(reloadable, path) {
		return ""
	}
	if a.Kind() != reflect.Struct {
		if reflect.DeepEqual(a.Interface(), b.Interface()) {
			return ""
		}
		return path
	}
	for i := range a.NumField() {
		key := a.Type().Field(i).Tag.Get("yaml")
		if key == "" {
			continue
		}
		if found := differs(a.Field(i), b.Field(i), strings.TrimPrefix(path+"."+key, ".")); found != "" {
			return found
		}
	}
	return ""
}

// changes says in words what a reload changes, for the log.
func changes(old, next *Config) []string {
	var out []string
	before := map[string]ModelConfig{}
	for _, m := range old.Models {
		before[m.Name] = m
	}
	for _, m := range next.Models {
		was, known := before[m.Name]
		delete(before, m.Name)
		switch {
		case !known:
			out = append(out, "model "+m.Name+" added")
		case !reflect.DeepEqual(was, m):
			out = append(out, "model "+m.Name+" changed")
		}
	}
	for name := range before {
		out = append(out, "model "+name+" removed")
	}
	slices.Sort(out)
	for name, same := range map[string]bool{
		"job templates":  reflect.DeepEqual(old.Jobs.Templates, next.Jobs.Templates),
		"schedules":      reflect.DeepEqual(old.Jobs.Schedules, next.Jobs.Schedules),
		"log level":      old.Log.Level == next.Log.Level,
		"engine library": old.Engine.Library == next.Engine.Library,
		"arbiter":        reflect.DeepEqual(old.Arbiter, next.Arbiter),
		"price":          old.Node.Price == next.Node.Price,
	} {
		if !same {
			out = append(out, name+" changed")
		}
	}
	return out
}

// nextSet makes the set of a configuration. A model whose batcher would be no
// other keeps it. On an error nothing is left behind.
func (s *server) nextSet(c *Config, old *modelSet) (*modelSet, error) {
	var models []*served
	var made []*batcher.Batcher
	routes := map[string]*overflow.Route{} // of models whose variants have the same
	fail := func(i int, what string, err error) (*modelSet, error) {
		for _, b := range made {
			_ = b.Close(context.Background()) // no request has seen it
		}
		return newModelSet(), at(fmt.Sprintf("models[%d]%s", i, what), "model %s: %w", c.Models[i].Name, err)
	}
	for i, m := range c.Models {
		needs, err := s.shape(m.Shape)
		if err != nil {
			return fail(i, ".shape", fmt.Errorf("shape: %w", err))
		}
		next := &served{ModelConfig: m, needs: needs, options: batching(c, m), side: c.sides[m.Name], created: time.Now(), meter: &meter{}}
		if was := old.models[m.Name]; was != nil {
			next.created, next.meter = was.created, was.meter
			if sameVocabulary(&was.ModelConfig, &m) {
				next.counting = was.counting
			}
			if reflect.DeepEqual(was.options, next.options) {
				next.batcher = was.batcher
			}
		}
		if next.counter == nil {
			next.counting = s.countingOf(c, &m)
		}
		name := next.family(m.Name)
		if next.route = routes[name]; next.route == nil {
			if next.route, err = s.nextRoute(c, &m, old.named(name)); err != nil {
				return fail(i, ".overflow", err)
			}
			routes[name] = next.route
		}
		if next.batcher == nil {
			if next.batcher, err = batcher.New(next.options, s.log.With("model", m.Name)); err != nil {
				return fail(i, ".batch", err)
			}
			made = append(made, next.batcher)
		}
		models = append(models, next)
	}
	return newModelSet(models...), nil
}

// nextRoute keeps a route that did not change, with what it has reserved.
func (s *server) nextRoute(c *Config, m *ModelConfig, was *served) (*overflow.Route, error) {
	switch {
	case m.Overflow == nil:
		return nil, nil
	case was == nil || was.route == nil:
		return newRoute(m, &c.Gateway.Timeouts, s.way.spending.of(c.called(m)))
	case reflect.DeepEqual(m.Overflow, was.Overflow) && m.Target == was.Target:
		return was.route, nil
	}
	return newRoute(m, &c.Gateway.Timeouts, was.route.Spent(time.Now()))
}

func batching(c *Config, m ModelConfig) batcher.Options {
	return batcher.Options{Model: c.called(&m), Merge: m.merges(),
		Affinity: m.Affinity.Session || m.Affinity.Prefix, Hedge: m.Hedge,
		MaxBatchRows: m.Batch.MaxRows, MaxBatchTokens: m.Batch.MaxTokens, MaxQueueDelay: m.Batch.MaxDelay, MaxQueue: m.Batch.MaxQueue, KVTokens: m.Batch.KVTokens,
		Target: m.Target, Window: c.Arbiter.Window, MinSamples: c.Arbiter.MinSamples, Off: m.Batch.Off}
}

func (s *server) checkTemplates(c *Config) error {
	for i, t := range c.Jobs.Templates {
		needs, err := s.shape(t.Shape)
		if err != nil {
			return at(fmt.Sprintf("jobs.templates[%d].shape", i), "job template %s: shape: %w", t.Name, err)
		}
		if have := s.room(needs); t.Width.Min > have {
			return at(fmt.Sprintf("jobs.templates[%d].width", i), "job template %s: min is %d, this node has %d slices that are as large", t.Name, t.Width.Min, have)
		}
	}
	return nil
}

// swap publishes a new set. Batchers that it does not have keep being told of
// their replicas until they are retired.
func (s *serving) swap(set *modelSet) {
	old := s.set.Load()
	s.mu.Lock()
	for name, m := range old.models {
		if now := set.models[name]; now == nil || now.batcher != m.batcher {
			s.retired[name] = append(s.retired[name], m.batcher)
		}
	}
	s.mu.Unlock()
	s.set.Store(set)
	for name, m := range set.models {
		if was := old.models[name]; was == nil || was.batcher != m.batcher {
			_ = s.pool.Republish(name) // a closed pool has nobody to tell of
		}
	}
}

// retire lets the batchers that are not in the new set answer what they hold,
// then stops the replicas of models that are gone.
func (s *server) retire(old, set *modelSet) {
	for name, m := range old.models {
		now := set.models[name]
		if now != nil && now.batcher == m.batcher {
			continue
		}
		s.retiring.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), s.conf.Pool.DrainTimeout)
			defer cancel()
			if err := m.batcher.Close(ctx); err != nil {
				s.log.Warn("requests were cut off by a reload", "model", name, "error", err)
			}
			s.serving.mu.Lock()
			s.serving.retired[name] = slices.DeleteFunc(s.serving.retired[name], func(b *batcher.Batcher) bool { return b == m.batcher })
			s.serving.mu.Unlock()
			if now == nil {
				_ = s.serving.pool.Retire(name) // the pool may be closed by now
			}
		})
	}
}

// closeBatchers drains every batcher: those that serve and those that a reload
// has put out of service.
func (s *server) closeBatchers(ctx context.Context) error {
	var errs []error
	for _, m := range s.serving.set.Load().models {
		errs = append(errs, m.batcher.Close(ctx))
	}
	s.retiring.Wait()
	return errors.Join(errs...)
}

// refresh reloads and tells how it went, once.
func (s *server) refresh(reloads metric.Int64Counter) {
	changed, err := s.reload()
	result := "taken"
	switch {
	case err != nil:
		result = "refused"
		s.log.Error("configuration not reloaded", "error", err)
	case len(changed) == 0:
		result = "same"
		s.log.Info("configuration read again", "changed", "nothing")
	default:
		s.log.Info("configuration reloaded", "changed", strings.Join(changed, ", "))
	}
	reloads.Add(context.Background(), 1, metric.WithAttributes(attribute.String("result", result)))
}
