package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// jobSizes is how much of everything is measured.
type jobSizes struct {
	rows     int // of a batch
	stored   int // jobs in the store
	left     int // unfinished ones that a start finds
	submits  int
	pages    int // of each list
	preempts int
	rounds   int // of the batch
}

func (l *lab) jobSizes() jobSizes {
	s := jobSizes{rows: 50_000, stored: 100_000, left: 10_000, submits: 5000, pages: 200, preempts: 60, rounds: 3}
	if l.quick {
		s = jobSizes{rows: 6000, stored: 20_000, left: 2000, submits: 1000, pages: 40, preempts: 8, rounds: 1}
	}
	if l.setRounds > 0 {
		s.rounds = l.setRounds
	}
	return s
}

const jobsHow = "*Batch*: %d short rows with `aloft serve` and two replicas of the timed encoder (`cmd/bench/servers/jobs.yaml`: 20 ms + 50 µs a token for a call of at most 64 rows), from the batch's start to its last row stored; " +
	"*straight calls* are the same rows, 64 to a request, sent to the same server by %d clients, who throw the answers away. The ways take turns; medians of %d rounds, in brackets the extremes, the ratio is the median of the rounds'. " +
	"*Store*: %d jobs in the server's bbolt file, of which %d wait; %d are submitted by %d clients, each answered after its record's fsync; then one client asks for pages. " +
	"*Start*: `jobs.Manager.Open` on a store in which a killed server left %d unfinished jobs, one in ten of them running. " +
	"*Preempt*: `aloft train` as a job of its own process, taken back at random moments %d times: from the call to its process gone, checkpoint written and record stored, the slice free."

// jobsBench measures what jobs cost: batches, their store, and taking back a slice.
func jobsBench(ctx context.Context, l *lab) (*result, error) {
	size := l.jobSizes()
	r := &result{title: "Jobs: batches, the store, preemption", head: []string{"what", "measured"}}
	r.how = fmt.Sprintf(jobsHow, size.rows, straightClients, size.rounds, size.stored, waitingJobs, size.submits, submitClients, size.left, size.preempts)
	for _, part := range []func(context.Context, *lab, jobSizes, *result) error{batchRates, storeRates, startAfterKill, preemptions} {
		if err := part(ctx, l, size, r); err != nil {
			return nil, err
		}
	}
	return r, nil
}

const (
	straightClients = 4 // two calls for each replica: one computes, one is on its way
	straightRows    = 64
	encoderModel    = "encoder"
)

func jobText(i int) string { return fmt.Sprintf("row number %05d", i) }

// batchRates compares a batch with straight batched calls.
func batchRates(ctx context.Context, l *lab, size jobSizes, r *result) error {
	server, err := l.serve(ctx, "jobs.yaml")
	if err != nil {
		return err
	}
	defer server.stop()
	if _, err := straightRate(ctx, server.client, 10*straightRows); err != nil { // the batcher learns the engine's times
		return err
	}
	rest := memoryOf(server)
	var batched, called []float64
	var batchCost, callCost cost
	way := func(rate func(context.Context, *client, int) (float64, error), into *[]float64, costs *cost) func() error {
		return func() error {
			before := cpuOf(server)
			v, err := rate(ctx, server.client, size.rows)
			costs.add(before, cpuOf(server), size.rows)
			*into = append(*into, v)
			return err
		}
	}
	for round := range size.rounds {
		ways := []func() error{way(batchRate, &batched, &batchCost), way(straightRate, &called, &callCost)}
		for i := range ways {
			if err := ways[(i+round)%2](); err != nil {
				return err
			}
		}
		l.say("jobs, round %d of %d: batch %.0f rows/s, straight calls %.0f rows/s", round+1, size.rounds, batched[round], called[round])
	}
	most := memoryOf(server)
	tokens, err := tokensOf(ctx, server.client, jobText(0))
	if err != nil {
		return err
	}
	law := 2 * straightRows / (0.020 + 50e-6*straightRows*tokens) // two replicas, jobs.yaml's law
	r.row("batch, rows/s", spreadOf(batched).show("%.0f"))
	r.row("straight calls of 64, rows/s", spreadOf(called).show("%.0f"))
	r.row(fmt.Sprintf("the engines' law at %.0f tokens a row, rows/s", tokens), fmt.Sprintf("%.0f", law))
	over := spreadOf(each(batched, called, ratio))
	r.row("batch / straight calls", over.show("%.3f"))
	r.row("CPU time of a row, ms, engines + server + client: batch", batchCost.String())
	r.row("CPU time of a row: straight calls", callCost.String())
	r.row("server's memory (VmHWM), MiB: at rest, with all of it", fmt.Sprintf("%.0f, %.0f", rest, most))
	r.measured("batch, rows/s", spreadOf(batched).median)
	r.measured("straight calls, rows/s", spreadOf(called).median)
	r.atLeastIn("batch / straight calls", interval(over), 0.9)
	r.atMost("memory that batches add to the server, MiB", most-rest, 64)
	return nil
}

// tokensOf is what the engine counts of a text.
func tokensOf(ctx context.Context, c *client, text string) (float64, error) {
	answer, err := c.post(ctx, "/v1/embeddings", embedBody(encoderModel, text), nil)
	if err != nil {
		return 0, err
	}
	var v struct {
		Usage struct {
			PromptTokens float64 `json:"prompt_tokens"`
		}
	}
	if err := json.Unmarshal(answer, &v); err != nil {
		return 0, fmt.Errorf("usage of a text: %w", err)
	}
	return v.Usage.PromptTokens, nil
}

// memoryOf is the most that a process has had resident so far, in MiB.
func memoryOf(c *child) float64 {
	var kB float64
	_, _ = fmt.Sscan(field(fmt.Sprintf("/proc/%d/status", c.PID()), "VmHWM:"), &kB)
	return kB / 1024
}

// straightRate sends rows texts in ready-made calls and returns rows a second.
func straightRate(ctx context.Context, c *client, rows int) (float64, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var clients sync.WaitGroup
	began := time.Now()
	for range straightClients {
		clients.Go(func() {
			var buf []byte
			for ctx.Err() == nil {
				from := int(next.Add(straightRows)) - straightRows
				if from >= rows {
					return
				}
				var texts []string
				for i := from; i < min(rows, from+straightRows); i++ {
					texts = append(texts, jobText(i))
				}
				var err error
				if buf, err = c.post(ctx, "/v1/embeddings", mustJSON(map[string]any{"model": encoderModel, "input": texts, "encoding_format": "base64"}), buf); err != nil {
					cancel(fmt.Errorf("straight call: %w", err))
				}
			}
		})
	}
	clients.Wait()
	return float64(rows) / time.Since(began).Seconds(), context.Cause(ctx)
}

// batchFile is an input file of so many rows.
func batchFile(rows int) string {
	var b strings.Builder
	for i := range rows {
		fmt.Fprintf(&b, `{"custom_id":"r%d","method":"POST","url":"/v1/embeddings","body":{"model":%q,"input":%q,"encoding_format":"base64"}}`+"\n", i, encoderModel, jobText(i))
	}
	return b.String()
}
