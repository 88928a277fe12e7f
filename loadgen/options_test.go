package loadgen

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"aloft/loadgen/arrivals"
)

// Every profile that ships loads without an unknown key, is valid and can be
// planned.
func TestProfiles(t *testing.T) {
	files, err := filepath.Glob("../configs/loadgen/*.yaml")
	if err != nil || len(files) < 3 {
		t.Fatalf("profiles %q (%v), want at least 3", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		opt, err := ReadProfile(text)
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		opt.Open = func(name string) (io.ReadCloser, error) { return os.Open(filepath.Join(filepath.Dir(file), name)) }
		if want := strings.TrimSuffix(filepath.Base(file), ".yaml"); opt.Name != want {
			t.Errorf("%s: name is %q, want %q", file, opt.Name, want)
		}
		plans, err := opt.plan()
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		for i, p := range plans {
			for _, span := range p.Spans {
				if span.N == 0 {
					t.Errorf("%s: phase %s of %s has no arrivals", file, span.Name, opt.Workloads[i].Name)
				}
			}
		}
	}
	var opt Options
	err = yaml.UnmarshalWithOptions([]byte("name: x\nworkloads:\n  - name: a\n    targett: 5s\n"), &opt, yaml.Strict())
	if err == nil || !strings.Contains(err.Error(), "[4:") || !strings.Contains(err.Error(), "targett") {
		t.Errorf("a mistyped key gives %v, want its name and line", err)
	}
}

func TestValidateRefuses(t *testing.T) {
	good := func() Options {
		return Options{Workloads: []Workload{{
			Name: "w", Kind: Chat, URL: "http://127.0.0.1:1", Model: "m",
			Phases: []arrivals.Phase{{Name: "p", Duration: time.Second, Process: arrivals.Process{Kind: arrivals.Poisson, Rate: 1}}},
		}}}
	}
	if err := good().Validate(); err != nil {
		t.Fatal(err)
	}
	for want, spoil := range map[string]func(*Options, *Workload){
		"0 workloads":              func(o *Options, _ *Workload) { o.Workloads = nil },
		"drain is -1s":             func(o *Options, _ *Workload) { o.Drain = -time.Second },
		"sample_every is 1ms":      func(o *Options, _ *Workload) { o.SampleEvery = time.Millisecond },
		"workload 1 has no name":   func(_ *Options, w *Workload) { w.Name = "" },
		`two workloads`:            func(o *Options, w *Workload) { o.Workloads = append(o.Workloads, *w) },
		`unknown kind "dance"`:     func(_ *Options, w *Workload) { w.Kind = "dance" },
		`url is "127.0.0.1:8080"`:  func(_ *Options, w *Workload) { w.URL = "127.0.0.1:8080" },
		`url is ""`:                func(_ *Options, w *Workload) { w.URL = "" },
		"url has a user":           func(_ *Options, w *Workload) { w.URL = "http://me:pass@host" },
		"model is missing":         func(_ *Options, w *Workload) { w.Model = "" },
		"inputs belongs":           func(_ *Options, w *Workload) { w.Inputs = 2 },
		"stream does not belong":   func(_ *Options, w *Workload) { w.Kind, w.Stream = Embeddings, true },
		"max_tokens is -1":         func(_ *Options, w *Workload) { w.MaxTokens = -1 },
		"target is -1s":            func(_ *Options, w *Workload) { w.Target = -time.Second },
		"above timeout 1m0s":       func(_ *Options, w *Workload) { w.Target = 2 * time.Minute },
		"need stream: true":        func(_ *Options, w *Workload) { w.TTFTTarget = time.Second },
		"target need stream: true": func(_ *Options, w *Workload) { w.Smooth = time.Second },
		"smooth_target is 2h":      func(_ *Options, w *Workload) { w.Stream, w.Smooth = true, 2*time.Hour },
		"warm_up is -1s":           func(o *Options, _ *Workload) { o.WarmUp = -time.Second },
		"clients is -1":            func(_ *Options, w *Workload) { w.Clients = -1 },
		"max_in_flight is -1":      func(_ *Options, w *Workload) { w.MaxInFlight = -1 },
		"it has no phases":         func(_ *Options, w *Workload) { w.Phases = nil },
		"two phases":               func(_ *Options, w *Workload) { w.Phases = append(w.Phases, w.Phases[0]) },
		`phase "p": rate is 0`:     func(_ *Options, w *Workload) { w.Phases[0].Process.Rate = 0 },
		"none empty":               func(_ *Options, w *Workload) { w.Texts = []string{"a", ""} },
		`workload "w": url is "h`:  func(_ *Options, w *Workload) { w.URL = "http://a b" },
		"129 phases over all":      func(_ *Options, w *Workload) { w.Phases = manyPhases(w.Phases[0], 129) },
		"timeout is 2h0m0s, want ": func(_ *Options, w *Workload) { w.Timeout = 2 * time.Hour },
	} {
		opt := good()
		spoil(&opt, &opt.Workloads[0])
		if err := opt.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
		if report, err := Run(t.Context(), opt); err == nil || report != nil {
			t.Errorf("Run took options that are wrong: %q", want)
		}
	}
}

func manyPhases(p arrivals.Phase, n int) []arrivals.Phase {
	out := make([]arrivals.Phase, n)
	for i := range out {
		out[i] = p
		out[i].Name = string(rune('a'+i/26)) + string(rune('a'+i%26))
	}
	return out
}
