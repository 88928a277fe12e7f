package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/term"

	"aloft/configs"
	"aloft/gpu/proc"
	"aloft/loadgen"
	"aloft/loadgen/arrivals"
)

type demoCmd struct {
	Config string `help:"Another configuration than the quick start; it needs models aloft-encoder and aloft-lm." type:"existingfile" placeholder:"FILE"`
	Fast   bool   `help:"Under a minute, for CI: attainment is printed, not judged."`
	JSON   string `help:"Write the figures here." placeholder:"FILE"`
	Seed   uint64 `help:"Decides arrivals and texts." default:"1"`
	Keep   string `help:"Keep the data folder here, with logs and journal." placeholder:"DIR"`
}

// shape of the demo: how long each phase lasts and how much is asked.
type shapeOfDemo struct {
	warm                time.Duration
	steady, burst, calm time.Duration
	rows, steps         int
	settle              time.Duration // most that batch and training may take afterwards
}

func (c *demoCmd) shape() shapeOfDemo {
	if c.Fast {
		return shapeOfDemo{2 * time.Second, 8 * time.Second, 6 * time.Second, 8 * time.Second, 9000, 500, 90 * time.Second}
	}
	return shapeOfDemo{2 * time.Second, 16 * time.Second, 20 * time.Second, 36 * time.Second, 12000, 900, 120 * time.Second}
}

// pace is the least time of a training step: the demo's machine has other work.
const pace = 40 * time.Millisecond

// Shares of one replica's measured rate that the interactive load asks for: the
// burst is far more than one replica may be given (the quick start's rho) and
// less than the machine has.
const (
	encoderSteady, encoderBurst = 0.07, 0.45
	lmSteady, lmBurst           = 0.20, 0.75
	chatTokens                  = 24
)

// demo is one run of the demonstration against a server of its own.
type demo struct {
	*demoCmd
	shape     shapeOfDemo
	data      string
	server    *proc.Process
	api       *client
	out       io.Writer
	sentences []string
	batch     string // ids
	training  string
	targets   map[string]time.Duration
	texts     float64 // one replica's, a second, as measured
	chats     float64
	perText   float64 // tokens
	phase     atomic.Pointer[string]
	loaded    []*loadgen.Report
	report    demoReport
}

// Run implements kong's command.
func (c *demoCmd) Run(ctx context.Context) (err error) {
	d := &demo{demoCmd: c, shape: c.shape(), out: os.Stdout}
	start := "start"
	d.phase.Store(&start)
	if d.data, err = c.folder(); err != nil {
		return err
	}
	if c.Keep == "" {
		defer os.RemoveAll(d.data)
	}
	sc := bufio.NewScanner(bytes.NewReader(configs.Sentences))
	for sc.Scan() {
		d.sentences = append(d.sentences, sc.Text())
	}
	if err := d.start(ctx); err != nil {
		return err
	}
	defer func() { // also on an error: nothing is left running
		if d.server != nil {
			d.server.Stop(30 * time.Second)
		}
	}()
	for _, step := range []func(context.Context) error{d.calibrate, d.submit, d.load, d.settle, d.collect} {
		if err := step(ctx); err != nil {
			return fmt.Errorf("demo: %w (server log: %s)", err, d.logTail())
		}
	}
	if err := d.stop(); err != nil {
		return err
	}
	return d.finish()
}

func (c *demoCmd) folder() (string, error) {
	if c.Keep != "" {
		return c.Keep, os.MkdirAll(c.Keep, 0o755)
	}
	return os.MkdirTemp("", "aloft-demo-")
}

// start runs the real server as a child process and waits until it is ready.
func (d *demo) start(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(d.data, "serve.log"))
	if err != nil {
		return err
	}
	defer log.Close() // the child has its own copy
	args := []string{"serve", "--data", d.data, "--listen", "127.0.0.1:0", "--log-level", "debug"}
	if d.Config != "" {
		args = append(args, "--config", d.Config)
	}
	var hello bytes.Buffer
	d.server, err = proc.Start(ctx, proc.Spec{Name: "demo server", Path: self, Args: args, Env: append(proc.BaseEnv(), aloftEnv()...), Stdout: log, Stderr: log})
	if err != nil {
		return err
	}
	deadline := time.Now().Add(60 * time.Second)
	for {
		if b, err := os.ReadFile(filepath.Join(d.data, "run", "address")); err == nil {
			d.api = &client{base: strings.TrimSpace(string(b))}
			if s, err := d.status(ctx); err == nil && d.warm(s) {
				break
			}
		}
		select {
		case <-d.server.Done():
			return fmt.Errorf("the server ended: %s", d.logTail())
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the server was not ready in a minute: %s", d.logTail())
		}
	}
	text, _ := os.ReadFile(filepath.Join(d.data, "serve.log"))
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "time=") {
			hello.WriteString(line)
		}
	}
	_, err = d.out.Write(hello.Bytes())
	return err
}

// warm reports whether every model has a ready replica.
func (d *demo) warm(s Status) bool {
	for _, m := range s.Models {
		if m.State != "ready" {
			return false
		}
	}
	return len(s.Models) > 0
}

// aloftEnv hands on the variables that say where the engine library is.
func aloftEnv() []string {
	if lib := os.Getenv("ALOFT_ENGINE_LIB"); lib != "" {
		return []string{"ALOFT_ENGINE_LIB=" + lib}
	}
	return nil
}

func (d *demo) logTail() string {
	b, _ := os.ReadFile(filepath.Join(d.data, "serve.log"))
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		if !strings.Contains(lines[i], "level=DEBUG") {
			return lines[i]
		}
	}
	return "empty"
}

func (d *demo) status(ctx context.Context) (Status, error) {
	var s Status
	return s, d.api.call(ctx, http.MethodGet, "/aloft/v1/status", nil, &s)
}

// calibrate warms up and measures what one replica of each model does on this
// machine with both at full load, so that the burst asks for more than one
// replica may be given on any machine.
func (d *demo) calibrate(ctx context.Context) error {
	fmt.Fprint(d.out, "measuring one replica of each model ... ")
	s, err := d.status(ctx)
	if err != nil {
		return err
	}
	d.targets = map[string]time.Duration{}
	for _, m := range s.Models {
		d.targets[m.Name] = time.Duration(m.Target * float64(time.Millisecond))
	}
	const texts, streams = 32, 2
	api := *d.api
	api.class = "offline" // neither demand nor latency of the interactive traffic
	var embedded, chatted atomic.Int64
	prompt := map[*atomic.Int64]*atomic.Int64{&embedded: {}, &chatted: {}}
	var all sync.WaitGroup
	var mu sync.Mutex
	until, cancel := context.WithTimeout(ctx, d.shape.warm)
	defer cancel()
	began := time.Now()
	loop := func(n int, path string, body func(i int) any, each int64, count *atomic.Int64) {
		for range n {
			all.Go(func() {
				for i := 0; until.Err() == nil; i++ {
					var answer struct {
						Usage struct {
							Prompt int `json:"prompt_tokens"`
						}
					}
					if e := api.call(until, http.MethodPost, path, body(i), &answer); e != nil && until.Err() == nil {
						mu.Lock()
						err = e
						mu.Unlock()
						return
					}
					if until.Err() == nil {
						count.Add(each)
						prompt[count].Add(int64(answer.Usage.Prompt))
					}
				}
			})
		}
	}
	loop(2, "/v1/embeddings", func(i int) any {
		from := i * texts % (len(d.sentences) - texts)
		return map[string]any{"model": "aloft-encoder", "input": d.sentences[from : from+texts]}
	}, texts, &embedded)
	loop(streams, "/v1/chat/completions", func(i int) any {
		return map[string]any{"model": "aloft-lm", "max_tokens": chatTokens, "messages": []any{map[string]string{"role": "user", "content": d.sentences[i]}}}
	}, 1, &chatted)
	all.Wait()
	if err != nil {
		return fmt.Errorf("warm-up: %w", err)
	}
	took := time.Since(began).Seconds()
	d.texts, d.chats = float64(embedded.Load())/took, float64(chatted.Load())/took
	if embedded.Load() == 0 || d.chats == 0 {
		return fmt.Errorf("warm-up: %d texts and %d chats in %.0f s: this machine is too busy", embedded.Load(), chatted.Load(), took)
	}
	d.perText = float64(prompt[&embedded].Load()) / float64(embedded.Load())
	fmt.Fprintf(d.out, "aloft-encoder %.0f texts/s, aloft-lm %.1f chats/s of %d tokens\n", d.texts, d.chats, chatTokens)
	return nil
}

// submit queues the batch and the training job.
func (d *demo) submit(ctx context.Context) error {
	var rows bytes.Buffer
	enc := json.NewEncoder(&rows)
	for i, s := range d.sentences[:d.shape.rows] {
		if err := enc.Encode(map[string]any{"custom_id": fmt.Sprintf("row-%d", i), "method": "POST", "url": "/v1/embeddings",
			"body": map[string]any{"model": "aloft-encoder", "input": s}}); err != nil {
			return err
		}
	}
	file, err := d.api.upload(ctx, "sentences.jsonl", &rows)
	if err != nil {
		return err
	}
	var b batchObject
	if err := d.api.call(ctx, http.MethodPost, "/v1/batches", map[string]string{"input_file_id": file, "endpoint": "/v1/embeddings", "completion_window": "24h"}, &b); err != nil {
		return err
	}
	var j jobObject
	params := map[string]any{"steps": d.shape.steps, "seed": d.Seed, "pace_ms": pace.Milliseconds()}
	if err := d.api.call(ctx, http.MethodPost, "/aloft/v1/jobs", map[string]any{"template": "train-demo", "params": params}, &j); err != nil {
		return err
	}
	d.batch, d.training = b.ID, j.ID
	fmt.Fprintf(d.out, "queued: %s (%d sentences to embed), %s (%d training steps)\n", b.ID, d.shape.rows, j.ID, d.shape.steps)
	return nil
}

// load puts the interactive traffic on the server, phase by phase, with the
// live screen beside it.
func (d *demo) load(ctx context.Context) error {
	watch, stop := context.WithCancel(ctx)
	var screenDone sync.WaitGroup
	screenDone.Go(func() { d.watch(watch, time.Now()) })
	defer screenDone.Wait()
	defer stop()
	texts := 0.0
	for i, share := range []leg{
		{"steady", d.shape.steady, encoderSteady, lmSteady},
		{"burst", d.shape.burst, encoderBurst, lmBurst},
		{"calm", d.shape.calm, encoderSteady, lmSteady},
	} {
		base, err := d.textRate(ctx)
		if err != nil {
			return err
		}
		texts = max(texts, base)
		d.phase.Store(&share.name)
		r, err := d.run(ctx, uint64(i), leg{share.name, share.long, share.texts * texts, share.chats * d.chats})
		if err != nil {
			return err
		}
		d.loaded = append(d.loaded, r)
	}
	name := "settle"
	d.phase.Store(&name)
	return nil
}

// textRate is what the server has fitted one encoder replica to do, in texts a
// second: what the arbiter's need counts in, whatever else the machine did while
// it was measured. It is read again before each phase, since that may have ended.
func (d *demo) textRate(ctx context.Context) (float64, error) {
	s, err := d.status(ctx)
	if err != nil {
		return 0, err
	}
	for _, m := range s.Models {
		if m.Name == "aloft-encoder" && len(m.Batching.Fits) > 0 {
			return m.Batching.Fits[0].Rate / d.perText, nil
		}
	}
	return 0, fmt.Errorf("the server has measured no rate for aloft-encoder")
}

// leg is one phase of the load, with rates a second.
type leg struct {
	name         string
	long         time.Duration
	texts, chats float64
}

func (d *demo) run(ctx context.Context, n uint64, l leg) (*loadgen.Report, error) {
	phase := func(rate float64) []arrivals.Phase {
		return []arrivals.Phase{{Name: l.name, Duration: l.long, Process: arrivals.Process{Kind: arrivals.Poisson, Rate: rate}}}
	}
	fmt.Fprintf(d.out, "%s: %.1f embeddings/s and %.1f chat streams/s for %v\n", l.name, l.texts, l.chats, l.long)
	r, err := loadgen.Run(ctx, loadgen.Options{Name: "aloft demo", Seed: d.Seed + n, Drain: 15 * time.Second, Workloads: []loadgen.Workload{
		{Name: "embed", Kind: loadgen.Embeddings, URL: d.api.base, Model: "aloft-encoder", Content: loadgen.Content{Texts: d.sentences}, Goal: loadgen.Goal{Target: d.targets["aloft-encoder"]}, Phases: phase(l.texts)},
		{Name: "chat", Kind: loadgen.Chat, URL: d.api.base, Model: "aloft-lm", Content: loadgen.Content{Texts: d.sentences}, Stream: true, MaxTokens: chatTokens,
			Goal: loadgen.Goal{TTFTTarget: d.targets["aloft-lm"]}, Phases: phase(l.chats)},
	}})
	if err == nil && r.Interrupted {
		err = context.Cause(ctx)
	}
	return r, err
}

// watch draws the screen each second: a picture on a terminal, a line elsewhere.
func (d *demo) watch(ctx context.Context, began time.Time) {
	live := false
	if f, ok := d.out.(*os.File); ok {
		live = term.IsTerminal(int(f.Fd()))
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for n := 1; ; n++ {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		s, err := d.status(ctx)
		if err != nil {
			continue // ctx ended, or the next second tells
		}
		age, name := time.Since(began), *d.phase.Load()
		if live {
			fmt.Fprintf(d.out, "\033[H\033[2JALOFT DEMO  %3.0f s  %s\n\n%s", age.Seconds(), strings.ToUpper(name), screen(s))
		} else if n%2 == 0 {
			fmt.Fprintln(d.out, demoLine(age, name, s))
		}
	}
}

// demoLine is the screen in one line, for logs and dumb terminals.
func demoLine(age time.Duration, phase string, s Status) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%3.0fs %-6s |", age.Seconds(), phase)
	for _, sl := range s.Slices {
		who := cmp.Or(strings.TrimPrefix(sl.Model, "aloft-"), "-")
		if sl.Job != "" {
			who = "train"
			if strings.HasPrefix(sl.Job, "batch") {
				who = "batch"
			}
		}
		if sl.Phase != "ready" && sl.Phase != "free" && sl.Phase != "job_runs" {
			who += "(" + sl.Phase + ")"
		}
		fmt.Fprintf(&b, " %s", who)
	}
	for _, m := range s.Models {
		room := "none"
		if m.Headroom != nil {
			room = fmt.Sprintf("%.0f%%", 100**m.Headroom)
		}
		fmt.Fprintf(&b, " | %s needs %d, headroom %s, queue %d+%d", strings.TrimPrefix(m.Name, "aloft-"), m.Fast, room,
			m.Queue["interactive"]+m.Queue["standard"], m.Queue["offline"])
	}
	for _, j := range s.Jobs {
		fmt.Fprintf(&b, " | %s %d/%d", j.Kind, j.Done, j.Total)
	}
	fmt.Fprintf(&b, " | lent %d/%d, aloft %.0f%%", s.Arbiter.Lent, s.Arbiter.Lendable, 100*s.Ledger.Aloft)
	return b.String()
}
