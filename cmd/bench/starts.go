package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// timings are the rounds of several steps, in ms, in the order in which they came.
type timings struct {
	names []string
	took  map[string][]float64
}

func (t *timings) add(name string, v float64) {
	if _, known := t.took[name]; !known {
		t.names = append(t.names, name)
	}
	t.took[name] = append(t.took[name], v)
}

func starts(ctx context.Context, l *lab) (*result, error) {
	t := &timings{took: map[string][]float64{}}
	for round := range l.rounds() {
		if err := serverStart(ctx, l, t); err != nil {
			return nil, fmt.Errorf("start aloft serve: %w", err)
		}
		for _, m := range []startedModel{
			{encoder, "/v1/embeddings", embedBody(encoder, sentences()[0]), "1", "256"},
			{lm, "/v1/chat/completions", mustJSON(map[string]any{"model": lm, "max_tokens": 1,
				"messages": []map[string]string{{"role": "user", "content": "Hello"}}}), "4", "512"},
		} {
			if err := m.startAndWake(ctx, l, t); err != nil {
				return nil, fmt.Errorf("start engine of %s: %w", m.name, err)
			}
		}
		l.say("starts, round %d of %d: serve to /readyz %.0f ms, %s cold %.0f ms", round+1, l.rounds(), t.took[toReady][round], encoder, t.took[encoder+": cold start"][round])
	}
	r := &result{title: "Starts and wakes",
		how: "`aloft serve` with the quick start and an empty data folder, from the start of its process. /readyz answers 200 as soon as a model can be served, " +
			"so the first answers are timed too; several replicas load at the same time then. *Replica in the server* is what the pool itself measured, for the first one that was ready. " +
			"Below it `aloft engine llama` alone: cold start = process start to the first answer; wake = `/wake_up` and the first answer, from asleep (process alive, model unloaded). " +
			"The files are in the page cache: no disk is measured. Milliseconds.",
		head: []string{"step", "best", "median", "slowest"}}
	for _, name := range t.names {
		s := spreadOf(t.took[name])
		r.row(name, fmt.Sprintf("%.0f", s.min), fmt.Sprintf("%.0f", s.median), fmt.Sprintf("%.0f", s.max))
		r.measured(name+", ms, best", s.min)
	}
	return r, nil
}

const toReady = "aloft serve: to /readyz"

// serverStart times one start of the quick start.
func serverStart(ctx context.Context, l *lab, t *timings) error {
	server, err := l.startServer(ctx, "")
	if err != nil {
		return err
	}
	defer server.stop()
	t.add(toReady, ms(time.Since(server.began)))
	// Both are asked at once: which replica comes first is not ours to say.
	first := make(chan error, 2)
	var took [2]time.Duration
	ask := func(i int, path string, body []byte) {
		_, err := server.post(ctx, path, body, nil)
		took[i] = time.Since(server.began)
		first <- err
	}
	go ask(0, "/v1/embeddings", embedBody(encoder, sentences()[0]))
	go ask(1, "/v1/chat/completions", mustJSON(map[string]any{"model": lm, "max_tokens": 1, "messages": []map[string]string{{"role": "user", "content": "Hello"}}}))
	for range 2 {
		if e := <-first; e != nil {
			err = e
		}
	}
	if err != nil {
		return err
	}
	t.add("aloft serve: to the first embedding", ms(took[0]))
	t.add("aloft serve: to the first chat answer", ms(took[1]))
	for _, model := range []string{encoder, lm} {
		d, err := poolStart(filepath.Join(server.dir, "output"), model)
		if err != nil {
			return err
		}
		t.add("replica in the server: "+model+" to ready", ms(d))
	}
	return nil
}

// poolStart reads from a server's log how long the model's first ready replica took.
func poolStart(log, model string) (time.Duration, error) {
	text, err := os.ReadFile(log)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "replica="+model+"-") && strings.Contains(line, " to=ready ") {
			if m := tookField.FindStringSubmatch(line); m != nil {
				return time.ParseDuration(m[1])
			}
		}
	}
	return 0, fmt.Errorf("the log does not say how long %s took to start", model)
}

var tookField = regexp.MustCompile(` took=(\S+)`)

// startedModel is an engine of its own as the pool would start it.
type startedModel struct {
	name, path     string
	body           []byte
	slots, context string
}

func (m startedModel) startAndWake(ctx context.Context, l *lab, t *timings) error {
	e, err := l.startEngine(ctx, "llama", "--model", filepath.Join("configs", "models", m.name+".gguf"), "--name", m.name, "--slots", m.slots, "--context", m.context)
	if err != nil {
		return err
	}
	defer e.stop()
	step := func(name string, began time.Time, calls ...string) error {
		for _, path := range calls {
			var body []byte
			if path == m.path {
				body = m.body
			}
			if _, err := e.post(ctx, path, body, nil); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		t.add(m.name+": "+name, ms(time.Since(began)))
		return nil
	}
	if err := step("cold start", e.began, m.path); err != nil {
		return err
	}
	if err := step("sleep", time.Now(), "/sleep?level=1"); err != nil {
		return err
	}
	return step("wake", time.Now(), "/wake_up", m.path)
}
