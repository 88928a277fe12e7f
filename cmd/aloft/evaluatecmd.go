package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"aloft/configs"
	"aloft/jobs"
	"aloft/jobs/evaluation"
)

type evaluateCmd struct {
	remote
	Set          string        `help:"JSONL file of rows, or builtin:NAME (language, search)." required:"" placeholder:"FILE"`
	Model        string        `help:"A served model." placeholder:"NAME" xor:"model" required:""`
	GGUF         string        `name:"gguf" help:"A candidate: a GGUF file or builtin:NAME, on an engine of its own in this process's slice." placeholder:"FILE" xor:"model" required:""`
	AgainstModel string        `help:"Compare with this served model." placeholder:"NAME" xor:"against"`
	AgainstGGUF  string        `name:"against-gguf" help:"Compare with this candidate." placeholder:"FILE" xor:"against"`
	AgainstURL   string        `help:"Server of the model that is compared with; default: the same." placeholder:"URL"`
	Folder       string        `help:"--gguf and --against-gguf are names of files in this folder, not paths. For job templates: a user's value then stays in it." placeholder:"DIR"`
	K            int           `help:"How many documents count as found." default:"5"`
	Concurrency  int           `help:"Requests at a time; more than 1 measures latency under that load." default:"1"`
	MaxTokens    int           `help:"Of an answer where the row says nothing." default:"32"`
	Timeout      time.Duration `help:"Of a request." default:"1m"`
	Lib          string        `help:"Folder of llama.cpp's shared libraries; default: beside the binary or in .engine." env:"ALOFT_ENGINE_LIB" placeholder:"DIR"`
	Context      int           `help:"Most tokens of a sequence of a candidate." default:"2048"`
	Threads      int           `help:"Threads of a candidate's engine." default:"1"`
	Out          string        `short:"o" help:"Also write the result here." placeholder:"FILE"`
}

// Run implements kong's command; as a job's program it keeps done rows in the
// checkpoint folder and reports the result.
func (c *evaluateCmd) Run(ctx context.Context) error {
	set, err := readSet(c.Set)
	if err != nil {
		return err
	}
	var engines []*candidate
	defer func() {
		for _, e := range engines {
			e.stop()
		}
	}()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	opt := evaluation.Options{Set: set, K: c.K, Concurrency: c.Concurrency, MaxTokens: c.MaxTokens, Timeout: c.Timeout, Dir: os.Getenv("ALOFT_CHECKPOINT_DIR")}
	subject := func(model, gguf, url string) (evaluation.Subject, error) {
		if gguf == "" {
			return c.served(model, url)
		}
		e, err := c.start(ctx, gguf, cancel)
		if err != nil {
			return evaluation.Subject{}, err
		}
		engines = append(engines, e)
		return e.Subject, nil
	}
	opt.Model, err = subject(c.Model, c.GGUF, "")
	if err == nil && c.AgainstModel+c.AgainstGGUF != "" {
		var other evaluation.Subject
		other, err = subject(c.AgainstModel, c.AgainstGGUF, c.AgainstURL)
		opt.Against = &other
	}
	if err == nil {
		err = c.evaluate(ctx, opt)
	}
	var ended *engineEnded
	switch cause := context.Cause(ctx); {
	case errors.As(cause, &ended):
		return cause
	case ctx.Err() != nil && err != nil && opt.Dir != "":
		return exitCode(jobs.ExitRequeue) // ErrPreempted, or stopped while an engine started
	}
	return err
}

func (c *evaluateCmd) evaluate(ctx context.Context, opt evaluation.Options) error {
	out, err := openProgress()
	if err != nil {
		return err
	}
	defer out.Close()
	_, byHand := out.(nopCloser)
	lines := json.NewEncoder(out)
	last := reportLine{Unit: "rows"}
	opt.Report = func(p evaluation.Progress) {
		last.Step, last.Total, last.Checkpoint = int64(p.Done), int64(p.Total), p.Checkpoint
		last.Metrics = map[string]float64{"failed": float64(p.Failed)}
		if !byHand {
			_ = lines.Encode(last) // nobody reads: no reason to stop
		}
	}
	r, err := evaluation.Run(ctx, opt)
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if c.Out != "" {
		if err := os.WriteFile(c.Out, append(text, '\n'), 0o644); err != nil {
			return err
		}
	}
	if !byHand {
		last.Checkpoint, last.Metrics, last.Result = "", figures(r.Model), r
		return lines.Encode(last)
	}
	if c.JSON {
		fmt.Println(string(text))
		return nil
	}
	return printEvaluation(os.Stdout, r)
}

// readSet reads a set that ships or lies in a file.
func readSet(name string) (evaluation.Set, error) {
	short, builtin := strings.CutPrefix(name, "builtin:")
	if builtin {
		b, err := configs.Evaluation.ReadFile("evaluation/" + short + ".jsonl")
		if err != nil {
			return evaluation.Set{}, fmt.Errorf("there is no built-in set %q, want %s", short, evaluationSets())
		}
		return evaluation.ReadSet(name, bytes.NewReader(b))
	}
	f, err := os.Open(name)
	if err != nil {
		return evaluation.Set{}, fmt.Errorf("evaluation set: %w", err)
	}
	defer f.Close()
	return evaluation.ReadSet(filepath.Base(name), f)
}

func evaluationSets() string {
	files, err := configs.Evaluation.ReadDir("evaluation")
	if err != nil {
		panic("BUG: embedded folder: " + err.Error())
	}
	var names []string
	for _, f := range files {
		names = append(names, strings.TrimSuffix(f.Name(), ".jsonl"))
	}
	return strings.Join(names, ", ")
}

// served is a model behind a server, this one's or another's.
func (c *evaluateCmd) served(model, url string) (evaluation.Subject, error) {
	r := c.remote
	r.URL = cmp.Or(url, c.URL)
	api := r.client()
	if api.nobody != "" {
		return evaluation.Subject{}, fmt.Errorf("no server serves the data folder %s (start one with `aloft serve --data %[1]s`, or name it with --url)", api.nobody)
	}
	s := evaluation.Subject{Name: model, Model: model, URL: strings.TrimSuffix(api.base, "/v1"), Key: c.Key}
	if c.CA == "" {
		return s, nil
	}
	pem, err := os.ReadFile(c.CA)
	if err != nil {
		return s, fmt.Errorf("read --ca: %w", err)
	}
	if s.Roots, err = x509.SystemCertPool(); err != nil {
		s.Roots = x509.NewCertPool() // a machine without certificates of its own
	}
	if !s.Roots.AppendCertsFromPEM(pem) {
		return s, fmt.Errorf("--ca %s: there is no PEM certificate in it", c.CA)
	}
	return s, nil
}

// figures are the job's metrics: what a list or a chart shows of the result.
func figures(m evaluation.Measures) map[string]float64 {
	out := map[string]float64{"failed": float64(m.Failed)}
	add := func(name string, e *evaluation.Estimate) {
		if e != nil {
			out[name] = e.Value
		}
	}
	add("exact_match", m.ExactMatch)
	add("bits_per_byte", m.BitsPerByte)
	add("perplexity", m.Perplexity)
	if m.Retrieval != nil {
		add("recall", &m.Retrieval.Recall)
		add("mrr", &m.Retrieval.MRR)
		add("ndcg", &m.Retrieval.NDCG)
	}
	if m.Latency != nil {
		add("first_p50_ms", m.Latency.FirstP50)
		add("first_p99_ms", m.Latency.FirstP99)
		add("total_p50_ms", &m.Latency.TotalP50)
		add("total_p99_ms", &m.Latency.TotalP99)
	}
	return out
}

// printEvaluation shows a result to a person.
func printEvaluation(w io.Writer, r evaluation.Result) error {
	fmt.Fprintf(w, "%s, %d rows (95 %% intervals)\n", r.Set.Name, r.Set.Rows)
	row := func(name string, e *evaluation.Estimate) {
		if e != nil {
			fmt.Fprintf(w, "  %-28s %9.4g  [%.4g, %.4g]  n = %d\n", name, e.Value, e.Low, e.High, e.N)
		}
	}
	show := func(m evaluation.Measures) {
		fmt.Fprint(w, m.Name)
		if m.Bytes > 0 {
			fmt.Fprintf(w, ", %.1f MB", float64(m.Bytes)/1e6)
		}
		if m.Failed > 0 {
			fmt.Fprintf(w, ", %d rows failed: %s", m.Failed, m.Error)
		}
		fmt.Fprintln(w)
		row("exact match", m.ExactMatch)
		row("bits per byte", m.BitsPerByte)
		row("perplexity per token", m.Perplexity)
		if t := m.Retrieval; t != nil {
			row(fmt.Sprintf("recall@%d of %d documents", t.K, t.Documents), &t.Recall)
			row("MRR", &t.MRR)
			row(fmt.Sprintf("nDCG@%d", t.K), &t.NDCG)
		}
		if l := m.Latency; l != nil {
			row("first token p50, ms", l.FirstP50)
			row("first token p99, ms", l.FirstP99)
			row("total p50, ms", &l.TotalP50)
			row("total p99, ms", &l.TotalP99)
		}
	}
	show(r.Model)
	if r.Against != nil {
		show(*r.Against)
	}
	if a := r.Agreement; a != nil {
		fmt.Fprintf(w, "%s against %s, paired by row\n", r.Model.Name, r.Against.Name)
		row("same text", a.SameText)
		row("same first document", a.SameFirst)
		row("cosine of vectors", a.Cosine)
		row("exact match, difference", a.ExactMatch)
		row("bits per byte, difference", a.BitsPerByte)
		row("recall, difference", a.Recall)
		row("total time, ratio", a.Total)
	}
	return nil
}
