package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"aloft/arbiter"
	"aloft/jobs/trainer"
	"aloft/loadgen"
)

// demoReport is what --json writes.
type demoReport struct {
	Interactive []demoInteractive `json:"interactive"`
	Batch       demoBatch         `json:"batch"`
	Training    demoTraining      `json:"training"`
	Arbiter     ArbiterStatus     `json:"arbiter"`
	Ledger      arbiter.Balance   `json:"ledger"`
	Problems    []string          `json:"problems"` // why the demo failed; empty = it did not
}

type demoInteractive struct {
	Model      string  `json:"model"`
	Phase      string  `json:"phase"`
	Offered    int     `json:"offered"`
	OK         int     `json:"ok"`
	Late       int     `json:"late"`
	Shed       int     `json:"shed"`
	Failed     int     `json:"failed"`
	P50        float64 `json:"p50_ms"` // embeddings: the whole answer; chat: the first token
	P99        float64 `json:"p99_ms"`
	Target     float64 `json:"target_ms"`
	Attainment float64 `json:"attainment"`
}

type demoBatch struct {
	Rows       int `json:"rows"`
	OK         int `json:"ok"`
	Failed     int `json:"failed"`
	Duplicated int `json:"duplicated"`
	Missing    int `json:"missing"`
}

type demoTraining struct {
	Steps     int64  `json:"steps"`
	Resumes   int    `json:"resumes"`
	Identical bool   `json:"identical"` // final weights equal an uninterrupted run's, bit for bit
	SHA256    string `json:"sha256"`
}

// settle waits until the batch and the training have ended.
func (d *demo) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, d.shape.settle, fmt.Errorf("batch and training did not end within %v after the load", d.shape.settle))
	defer cancel()
	last := time.Time{}
	for {
		var b batchObject
		var j jobObject
		if err := d.api.call(ctx, http.MethodGet, "/v1/batches/"+url.PathEscape(d.batch), nil, &b); err != nil {
			return because(ctx, err)
		}
		if err := d.api.call(ctx, http.MethodGet, "/aloft/v1/jobs/"+url.PathEscape(d.training), nil, &j); err != nil {
			return because(ctx, err)
		}
		if b.ended() && (j.State == "succeeded" || j.State == "failed" || j.State == "cancelled") {
			return nil
		}
		if time.Since(last) > 4*time.Second {
			last = time.Now()
			fmt.Fprintf(d.out, "waiting for the jobs: %s; %s\n", b, j)
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// because prefers the reason a context ended for to the error that it caused.
func because(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// collect reads the results and checks them against what was asked.
func (d *demo) collect(ctx context.Context) error {
	for _, r := range d.results() {
		row := demoInteractive{Model: r.Model, Phase: r.Phase, Offered: r.Offered, OK: r.OK, Late: r.Late, Shed: r.Shed, Failed: r.Failed,
			P50: r.P50, P99: r.P99, Target: r.Targets.E2E, Attainment: r.Attainment}
		if r.TTFT != nil && r.Kind == loadgen.Chat {
			row.P50, row.P99, row.Target = r.TTFT.P50, r.TTFT.P99, r.Targets.TTFT
		}
		d.report.Interactive = append(d.report.Interactive, row)
	}
	if err := d.collectBatch(ctx); err != nil {
		return err
	}
	if err := d.collectTraining(ctx); err != nil {
		return err
	}
	s, err := d.status(ctx)
	if err != nil {
		return err
	}
	d.report.Arbiter, d.report.Ledger = s.Arbiter, s.Ledger
	return nil
}

// results lists model by model what each phase brought.
func (d *demo) results() []loadgen.Result {
	var out []loadgen.Result
	for i := range d.loaded[0].Results {
		for _, load := range d.loaded {
			out = append(out, load.Results[i])
		}
	}
	return out
}

// collectBatch counts every row of the result: each once, each with its vector.
func (d *demo) collectBatch(ctx context.Context) error {
	var b batchObject
	if err := d.api.call(ctx, http.MethodGet, "/v1/batches/"+url.PathEscape(d.batch), nil, &b); err != nil {
		return err
	}
	n := demoBatch{Rows: d.shape.rows}
	seen := map[string]bool{}
	for _, file := range []string{b.OutputFileID, b.ErrorFileID} {
		if file == "" {
			continue
		}
		var text bytes.Buffer
		if err := d.api.download(ctx, file, &text); err != nil {
			return err
		}
		sc := bufio.NewScanner(&text)
		sc.Buffer(nil, 1<<20)
		for sc.Scan() {
			var row struct {
				CustomID string `json:"custom_id"`
				Response *struct {
					Status int `json:"status_code"`
					Body   struct {
						Data []struct{ Embedding []float32 }
					}
				}
			}
			if err := json.Unmarshal(sc.Bytes(), &row); err != nil {
				return fmt.Errorf("result of %s: %w", d.batch, err)
			}
			switch {
			case seen[row.CustomID]:
				n.Duplicated++
			case row.Response != nil && row.Response.Status == 200 && len(row.Response.Body.Data) == 1 && len(row.Response.Body.Data[0].Embedding) > 0:
				n.OK++
			default:
				n.Failed++
			}
			seen[row.CustomID] = true
		}
		if err := sc.Err(); err != nil {
			return err
		}
	}
	for i := range d.shape.rows {
		if !seen[fmt.Sprintf("row-%d", i)] {
			n.Missing++
		}
	}
	d.report.Batch = n
	return nil
}

// collectTraining runs the same training once more, uninterrupted, and compares.
func (d *demo) collectTraining(ctx context.Context) error {
	var j jobObject
	if err := d.api.call(ctx, http.MethodGet, "/aloft/v1/jobs/"+url.PathEscape(d.training), nil, &j); err != nil {
		return err
	}
	t := demoTraining{Steps: j.Progress.Done, Resumes: j.Progress.Resumes, SHA256: j.Progress.Result}
	var lines bytes.Buffer
	if err := trainer.Run(ctx, trainer.Options{Steps: d.shape.steps, Seed: d.Seed, Progress: &lines}); err != nil {
		return fmt.Errorf("train uninterrupted for comparison: %w", err)
	}
	var end struct{ Result string }
	text := strings.TrimSpace(lines.String())
	if err := json.Unmarshal([]byte(text[strings.LastIndexByte(text, '\n')+1:]), &end); err != nil {
		return fmt.Errorf("train uninterrupted for comparison: %w", err)
	}
	t.Identical = len(end.Result) == 2*sha256.Size && end.Result == t.SHA256
	d.report.Training = t
	return nil
}

// stop ends the server the way an operator would.
func (d *demo) stop() error {
	exit := d.server.Stop(30 * time.Second)
	d.server = nil
	if !exit.OK() {
		d.report.Problems = append(d.report.Problems, fmt.Sprintf("the server did not end cleanly: %v", exit))
	}
	return nil
}

// judge lists what the demo promises and did not keep.
func (d *demo) judge() {
	r := &d.report
	bad := func(format string, args ...any) { r.Problems = append(r.Problems, fmt.Sprintf(format, args...)) }
	offered, ok := map[string]int{}, map[string]int{}
	for _, i := range r.Interactive {
		offered[i.Model] += i.Offered
		ok[i.Model] += i.OK
		if i.Failed > 0 && !d.Fast {
			bad("%d interactive requests of %s failed (%s)", i.Failed, i.Model, i.Phase)
		}
	}
	for model, n := range offered {
		if a := float64(ok[model]) / float64(max(1, n)); a < 0.99 && !d.Fast {
			bad("attainment of %s is %.2f%%, want at least 99%%", model, 100*a)
		}
	}
	if b := r.Batch; b.OK != b.Rows || b.Failed+b.Duplicated+b.Missing > 0 {
		bad("of %d batch rows %d are right, %d failed, %d doubled, %d missing", b.Rows, b.OK, b.Failed, b.Duplicated, b.Missing)
	}
	if !r.Training.Identical {
		bad("the preempted training did not end with the weights of an uninterrupted one")
	}
	if r.Arbiter.Loans < 1 || r.Arbiter.Reclaims < 1 {
		bad("%d loans and %d reclaims, want at least one of each", r.Arbiter.Loans, r.Arbiter.Reclaims)
	}
	if r.Arbiter.Violations > 0 {
		bad("%d invariants were broken", r.Arbiter.Violations)
	}
	if !r.Ledger.Sums() {
		bad("the ledger does not sum to 100 %%: %v", r.Ledger.Share)
	}
}

// noteLag says how late the generator itself was: this machine runs it beside
// the engines, and a request's latency counts from when it was meant to start.
func (d *demo) noteLag() {
	lag := 0.0
	for _, load := range d.loaded {
		for _, r := range load.Results {
			lag = max(lag, r.SendLag.P99)
		}
	}
	fmt.Fprintf(d.out, "load      sent up to %.0f ms late (p99): generator, gateway and engines share these cores\n", lag)
}

// finish prints the summary and says whether the demo kept its promises.
func (d *demo) finish() error {
	d.judge()
	r := &d.report
	fmt.Fprintf(d.out, "\n%-14s %-7s %8s %7s %6s %6s %7s %9s %9s %8s %11s\n", "model", "phase", "offered", "ok", "late", "shed", "failed", "p50 ms", "p99 ms", "target", "attainment")
	for _, i := range r.Interactive {
		fmt.Fprintf(d.out, "%-14s %-7s %8d %7d %6d %6d %7d %9.1f %9.1f %8.0f %10.2f%%\n", i.Model, i.Phase, i.Offered, i.OK, i.Late, i.Shed, i.Failed, i.P50, i.P99, i.Target, 100*i.Attainment)
	}
	a := r.Arbiter
	fmt.Fprintf(d.out, "\nbatch     %d rows: %d embedded, %d failed, %d doubled, %d missing\n", r.Batch.Rows, r.Batch.OK, r.Batch.Failed, r.Batch.Duplicated, r.Batch.Missing)
	fmt.Fprintf(d.out, "training  %d steps, resumed %d times from a checkpoint, weights identical to an uninterrupted run: %v\n", r.Training.Steps, r.Training.Resumes, r.Training.Identical)
	fmt.Fprintf(d.out, "arbiter   %d loans, %d reclaims, reclaim p99 %.2f s (promised %.1f s), %d bounds broken, %d invariants broken\n", a.Loans, a.Reclaims, a.ReclaimP99, a.Bound, a.Breaches, a.Violations)
	fmt.Fprintf(d.out, "ledger    %.0f slice-s: %s\n", r.Ledger.Total, ledgerLine(r.Ledger))
	d.noteLag()
	if r.Problems == nil {
		r.Problems = []string{}
	}
	if err := into(d.JSON, os.Stdout, indented(r)); err != nil {
		return err
	}
	if len(r.Problems) > 0 {
		return fmt.Errorf("the demo did not keep its promises:\n  %s\nIt wants two cores to itself: if other programs run here, try again without them", strings.Join(r.Problems, "\n  "))
	}
	fmt.Fprintln(d.out, "\nall of it as promised")
	return nil
}
