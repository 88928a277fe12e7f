package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"aloft/backends"
	"aloft/backends/llama"
	"aloft/backends/openaihttp"
	"aloft/backends/serve"
	"aloft/backends/synthetic"
	"aloft/backends/synthetic/law"
	"aloft/gpu"
	"aloft/gpu/simulated"
	"aloft/pool"
)

// engines makes the launch profile of every model, and checks what a launch
// will need, so that a missing file is one clear line now and not a crash loop.
func (s *server) engines(c *Config) ([]pool.Model, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	var models []pool.Model
	for i, m := range c.Models {
		p, err := s.profile(self, c, m)
		if err != nil {
			return nil, at(fmt.Sprintf("models[%d]", i), "%w", err)
		}
		needs, _ := s.shape(m.Shape) // checked by nextSet
		models = append(models, pool.Model{Name: m.Name, Slots: m.Slots, Needs: needs, Adapters: m.Adapters, Bytes: m.Memory, Spec: p})
	}
	return models, nil
}

func (s *server) launcher() pool.Launcher {
	t := s.conf.Gateway.Timeouts
	dial := func(url string) backends.Backend {
		return openaihttp.New(openaihttp.Options{BaseURL: url, ConnectTimeout: t.Connect, FirstByteTimeout: t.FirstByte, StreamIdleTimeout: t.StreamIdle})
	}
	return pool.Exec{Dial: dial, Nice: niceOf, RunDir: s.path("run"), LogDir: s.path("logs")}
}

// niceOf is the CPU's stand-in for a slice's share; what is lent runs below serving.
func niceOf(l pool.Launch) int {
	if l.Offline {
		return simulated.NiceForJob(l.Slice.Shape)
	}
	return simulated.NiceFor(l.Slice.Shape)
}

// freeTime bounds one look at a slice's memory.
const freeTime = time.Second

// free measures a slice's free memory; false where nobody can: a simulated GPU
// has none, and a driver that does not answer must not stop a start.
func (s *server) free(slice gpu.Slice) (int64, bool) {
	ctx, cancel := context.WithTimeout(context.Background(), freeTime)
	defer cancel()
	u, err := s.inventory.Usage(ctx, slice.ID)
	if err != nil {
		return 0, false
	}
	return u.Free()
}

func (s *server) profile(self string, c *Config, m ModelConfig) (pool.Profile, error) {
	p := pool.Profile{Announces: true, Sleep: pool.SleepHTTP}
	m.Name = c.called(&m)
	p.Path, p.WarmUp = warmUp(m)
	switch m.Engine {
	case "llama":
		file, err := c.gguf(m, s.data)
		if err != nil {
			return p, err
		}
		lib, err := c.library()
		if err != nil {
			return p, err
		}
		p.Command = []string{self, "engine", "llama", "--listen", "127.0.0.1:{port}", "--lib", lib, "--model", file, "--name", m.Name,
			"--slots", "{slots}", "--context", strconv.Itoa(m.Context)}
	case "synthetic":
		p.Command = []string{self, "engine", "synthetic", "--listen", "127.0.0.1:{port}", "--name", m.Name, "--slots", "{slots}",
			"--alpha", m.Law.Alpha.String(), "--beta", m.Law.Beta.String()}
		if needs, _ := s.shape(m.Shape); needs.ComputeSlices > 0 { // checked by openModels
			p.Command = append(p.Command, "--on", "{compute}:{memory}", "--law-for", fmt.Sprintf("%d:%d", needs.ComputeSlices, needs.MemorySlices))
		}
	case "command":
		if _, err := exec.LookPath(m.Command[0]); err != nil {
			return p, fmt.Errorf("model %s: %w", m.Name, err)
		}
		p.Command, p.Announces, p.Sleep = m.Command, false, pool.SleepMode(m.Sleep)
		for k, v := range m.Env {
			p.Env = append(p.Env, k+"="+v)
		}
		slices.Sort(p.Env)
	}
	return p, nil
}

// firstCalls are the least that each endpoint takes as a valid request. Audio
// and images have none: a recording would have to travel with the program, and a
// picture takes seconds; their engines are ready when they are healthy.
var firstCalls = map[backends.Endpoint]map[string]any{
	backends.Chat:        {"max_tokens": 1, "messages": hello},
	backends.Completions: {"max_tokens": 1, "prompt": "Hello"},
	backends.Embeddings:  {"input": []string{"The first call warms the engine."}},
	backends.Responses:   {"max_output_tokens": 16, "input": "Hello"}, // OpenAI's least
	backends.Messages:    {"max_tokens": 1, "messages": hello},
	backends.Rerank:      {"query": "Hello", "documents": []string{"Hello"}},
	backends.Score:       {"text_1": "Hello", "text_2": "Hello"},
	backends.Classify:    {"input": "Hello"},
	backends.Moderations: {"input": "Hello"},
	backends.Tokenize:    {"prompt": "Hello"},
	backends.Detokenize:  {"tokens": []int{1}},
}

var hello = []map[string]string{{"role": "user", "content": "Hello"}}

// warmUp is the first request that a replica must answer; no path: none. Of a
// model's endpoints the first in Endpoints' order is asked: generation before
// the tokenizer, which warms nothing.
func warmUp(m ModelConfig) (path string, body []byte) {
	for _, e := range backends.Endpoints() {
		call, ok := firstCalls[e]
		if !ok || !slices.Contains(m.Endpoints, string(e)) {
			continue
		}
		call = maps.Clone(call)
		call["model"] = m.Name
		body, err := json.Marshal(call)
		if err != nil {
			panic("BUG: first call: " + err.Error())
		}
		return e.EnginePath(e.Path()), body
	}
	return "", nil
}

type llamaCmd struct {
	Listen      string `help:"Address; port 0 picks one, and the first line of output says which." default:"127.0.0.1:0"`
	Lib         string `help:"Folder of llama.cpp's shared libraries." env:"ALOFT_ENGINE_LIB" default:".engine"`
	Model       string `help:"GGUF file." required:"" placeholder:"FILE"`
	Name        string `help:"What requests call the model; default: the file's name."`
	Context     int    `help:"Most tokens of a sequence; 0: 2048." default:"0"`
	Slots       int    `help:"Sequences that generate at once; 0: 8." default:"0"`
	Threads     int    `help:"Threads of a step." default:"1"`
	BatchTokens int    `help:"Tokens of one step; 0: 512." default:"0"`
}

// Run implements kong's command.
func (c *llamaCmd) Run(ctx context.Context) error {
	log := defaultLogger()
	l, err := announce(c.Listen)
	if err != nil {
		return err
	}
	return llama.Serve(ctx, l, llama.Options{Lib: c.Lib, Model: c.Model, Name: c.Name, Context: c.Context, Slots: c.Slots,
		Threads: c.Threads, BatchTokens: c.BatchTokens}, log)
}

type syntheticCmd struct {
	Listen string        `help:"Address; port 0 picks one, and the first line of output says which." default:"127.0.0.1:0"`
	Name   string        `help:"What requests call the model." default:"synthetic"`
	Slots  int           `help:"Sequences that generate at once." default:"8"`
	Alpha  time.Duration `help:"Fixed time of a batch." default:"6ms"`
	Beta   time.Duration `help:"Time of each token." default:"10us"`
	On     string        `help:"Compute and memory slices it runs on, as 2:2; with --law-for the law scales by shape." placeholder:"C:M"`
	LawFor string        `help:"Compute and memory slices that the law is meant for." placeholder:"C:M"`
}

// Run implements kong's command.
func (c *syntheticCmd) Run(ctx context.Context) error {
	l, err := announce(c.Listen)
	if err != nil {
		return err
	}
	opt, err := c.options()
	if err != nil {
		l.Close()
		return err
	}
	return synthetic.Serve(ctx, l, opt, defaultLogger())
}

// announce listens and says where on standard output.
func announce(address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	var line bytes.Buffer
	if err := serve.Announce(&line, l.Addr()); err != nil {
		return nil, err
	}
	_, err = os.Stdout.Write(line.Bytes())
	return l, err
}

// options scales the law from the shape it is meant for to the slice. The slots
// stay: the batcher counts on the configured number.
func (c *syntheticCmd) options() (synthetic.Options, error) {
	l := law.Default()
	l.AlphaMs = float64(c.Alpha) / float64(time.Millisecond)
	l.BetaMsPerToken = float64(c.Beta) / float64(time.Millisecond)
	if c.On != "" || c.LawFor != "" {
		var on, of [2]int
		for flag, v := range map[string]*[2]int{"--on " + c.On: &on, "--law-for " + c.LawFor: &of} {
			_, text, _ := strings.Cut(flag, " ")
			if n, err := fmt.Sscanf(text, "%d:%d", &v[0], &v[1]); n != 2 || err != nil || v[0] < 1 || v[1] < 1 {
				return synthetic.Options{}, fmt.Errorf("%s: want compute and memory slices, for example 2:2", flag)
			}
		}
		l = l.Scaled(float64(on[0])/float64(of[0]), float64(on[1])/float64(of[1]))
	}
	l.Slots = c.Slots
	return synthetic.Options{Model: c.Name, Law: l}, nil
}
