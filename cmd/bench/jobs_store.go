package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"gocloud.dev/blob/memblob"

	"aloft/gpu"
	"aloft/jobs"
	"aloft/jobs/boltstore"
)

const (
	waitingJobs   = 1000 // unfinished ones among those stored
	submitClients = 32
	fillers       = 512 // writers that share each commit
)

// fillStore puts n jobs of a hundred days into the store below a data folder:
// the newest are unfinished, of those before one in a hundred has failed.
func fillStore(ctx context.Context, dir string, n, unfinished int, state func(i int) jobs.State) error {
	store, err := boltstore.Open(filepath.Join(dir, "jobs.db"))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	began := time.Now().Add(-100 * 24 * time.Hour)
	var next atomic.Int64
	var writers sync.WaitGroup
	for range fillers {
		writers.Go(func() {
			for i := int(next.Add(1) - 1); i < n && ctx.Err() == nil; i = int(next.Add(1) - 1) {
				j := jobs.Job{ID: fmt.Sprintf("job_%032d", i), Kind: jobs.KindTrain, State: jobs.Succeeded, Template: "train-demo", Grace: 5 * time.Second,
					Params: map[string]string{"steps": "400"}, Command: []string{"aloft", "train", "--steps", "400"}, MinWidth: 1, MaxWidth: 1, Shape: "1g.10gb",
					Times: jobs.Times{Created: began.Add(time.Duration(i) * time.Minute)}}
				switch {
				case i >= n-unfinished:
					j.State = state(i)
				case i%100 == 1:
					j.State, j.Error = jobs.Failed, "exit status 1"
				}
				if j.State.Terminal() {
					j.Finished = time.Now() // so that nothing is old enough to be swept
				}
				if err := store.Put(ctx, &j); err != nil {
					cancel(err)
				}
			}
		})
	}
	writers.Wait()
	return errors.Join(context.Cause(ctx), store.Close())
}

// storeRates submits and lists through a server whose store is full.
func storeRates(ctx context.Context, l *lab, size jobSizes, r *result) error {
	dir, err := os.MkdirTemp(l.dir, "store-")
	if err != nil {
		return err
	}
	began := time.Now()
	if err := fillStore(ctx, dir, size.stored, waitingJobs, func(int) jobs.State { return jobs.Queued }); err != nil {
		return fmt.Errorf("fill the store: %w", err)
	}
	l.say("jobs: %d jobs stored in %.0f s", size.stored, time.Since(began).Seconds())
	server, err := l.startServerIn(ctx, dir, filepath.Join("cmd", "bench", "servers", "jobs.yaml"))
	if err != nil {
		return err
	}
	defer server.stop()
	rate, waits, err := submitRate(ctx, server.client, size.submits)
	if err != nil {
		return err
	}
	r.row(fmt.Sprintf("submits/s, %d clients", submitClients), fmt.Sprintf("%.0f", rate))
	r.row("submit, ms: p50, p99", fmt.Sprintf("%.1f, %.1f", quantile(waits, 0.5), quantile(waits, 0.99)))
	r.atLeast(fmt.Sprintf("submits/s with %d jobs stored", size.stored), rate, 500)
	for _, page := range []struct{ name, path string }{
		{"all", "/aloft/v1/jobs?limit=100"},
		{"failed", "/aloft/v1/jobs?limit=100&state=failed"},
		{"queued", "/aloft/v1/jobs?limit=100&state=queued"},
		{"evaluations, of which there are none", "/aloft/v1/jobs?limit=100&kind=evaluate"},
		{"batches, of which there are none", "/v1/batches?limit=100"},
	} {
		var took []float64
		for range size.pages {
			began := time.Now()
			if err := server.get(ctx, page.path, nil); err != nil {
				return err
			}
			took = append(took, ms(time.Since(began)))
		}
		r.row("list page of 100, "+page.name+", ms: p50, p99", fmt.Sprintf("%.1f, %.1f", quantile(took, 0.5), quantile(took, 0.99)))
		r.atMost(fmt.Sprintf("list page with %d jobs stored, %s, p99, ms", size.stored, page.name), quantile(took, 0.99), 20)
	}
	r.row("server's memory (VmHWM) with that store, MiB", fmt.Sprintf("%.0f", memoryOf(server)))
	return nil
}

// submitRate submits n jobs and returns their rate and each one's time in ms.
func submitRate(ctx context.Context, c *client, n int) (rate float64, waits []float64, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	body := []byte(`{"template":"train-demo","params":{"steps":"400"}}`)
	var next atomic.Int64
	var mu sync.Mutex
	var clients sync.WaitGroup
	began := time.Now()
	for range submitClients {
		clients.Go(func() {
			for int(next.Add(1)) <= n && ctx.Err() == nil {
				sent := time.Now()
				if _, err := c.post(ctx, "/aloft/v1/jobs", body, nil); err != nil {
					cancel(err)
					return
				}
				mu.Lock()
				waits = append(waits, ms(time.Since(sent)))
				mu.Unlock()
			}
		})
	}
	clients.Wait()
	return float64(n) / time.Since(began).Seconds(), waits, context.Cause(ctx)
}

// jobManager is a manager of its own over the store in dir.
func (l *lab) jobManager(ctx context.Context, dir string) (m *jobs.Manager, opened time.Duration, stop func(), err error) {
	began := time.Now()
	store, err := boltstore.Open(filepath.Join(dir, "jobs.db"))
	if err != nil {
		return nil, 0, nil, err
	}
	bucket := memblob.OpenBucket(nil)
	stop = func() { _ = errors.Join(bucket.Close(), store.Close()) }
	m, err = jobs.NewManager(jobs.Options{Store: store, Files: store, Blobs: bucket, DataDir: dir, Self: l.bin, Caller: noCaller{},
		Executor: &jobs.Local{RunDir: filepath.Join(dir, "run")},
		Templates: []jobs.Template{{Name: "train", Kind: jobs.KindTrain, Grace: 10 * time.Second,
			Command: []string{"{aloft}", "train", "--steps", "1000000", "--pace", "2ms"}}},
	}, slog.New(slog.DiscardHandler))
	if err == nil {
		err = m.Open(ctx)
	}
	if err != nil {
		stop()
		return nil, 0, nil, err
	}
	closeStore := stop
	return m, time.Since(began), func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		_ = m.Close(ctx) // its jobs have ended or do not matter any more
		closeStore()
	}, nil
}

type noCaller struct{}

func (noCaller) Call(context.Context, jobs.Row) (jobs.Result, error) {
	return jobs.Result{}, errors.New("no batch is run here")
}

// startAfterKill measures the recovery of what a killed server left.
func startAfterKill(ctx context.Context, l *lab, size jobSizes, r *result) error {
	var took []float64
	for range min(3, size.rounds) {
		dir, err := os.MkdirTemp(l.dir, "left-")
		if err != nil {
			return err
		}
		err = fillStore(ctx, dir, size.left, size.left, func(i int) jobs.State {
			if i%10 == 0 {
				return jobs.Running
			}
			return jobs.Queued
		})
		if err != nil {
			return fmt.Errorf("fill the store: %w", err)
		}
		_, opened, stop, err := l.jobManager(ctx, dir)
		if err != nil {
			return err
		}
		stop()
		took = append(took, opened.Seconds())
	}
	r.row(fmt.Sprintf("start with %d unfinished jobs, s", size.left), spreadOf(took).show("%.2f"))
	r.atMostIn(fmt.Sprintf("start with %d unfinished jobs, s", size.left), interval(spreadOf(took)), 2)
	return nil
}

// preemptions measures how soon a trainer's slice is free.
func preemptions(ctx context.Context, l *lab, size jobSizes, r *result) error {
	dir, err := os.MkdirTemp(l.dir, "preempt-")
	if err != nil {
		return err
	}
	m, _, stop, err := l.jobManager(ctx, dir)
	if err != nil {
		return err
	}
	defer stop()
	j, err := m.Submit(ctx, jobs.Job{Template: "train"})
	if err != nil {
		return err
	}
	var took []float64
	for range size.preempts {
		before, err := m.Get(ctx, j.ID)
		if err != nil {
			return err
		}
		if err := m.Start(ctx, j.ID, []gpu.Slice{{ID: "g0/s0", UUID: "MIG-0"}}); err != nil {
			return err
		}
		for now := before; now.Progress.Done <= before.Progress.Done; { // it trains
			if !pause(ctx, 5*time.Millisecond) {
				return context.Cause(ctx)
			}
			if now, err = m.Get(ctx, j.ID); err != nil {
				return err
			}
			if now.State.Terminal() {
				return fmt.Errorf("the trainer ended: %s %s", now.State, now.Error)
			}
		}
		pause(ctx, rand.N(100*time.Millisecond))
		asked := time.Now()
		if err := m.Preempt(ctx, j.ID, 0); err != nil {
			return err
		}
		took = append(took, ms(time.Since(asked)))
		after, err := m.Get(ctx, j.ID)
		if err != nil {
			return err
		}
		if after.State != jobs.Queued || after.Progress.CheckpointAt.Before(asked) {
			return fmt.Errorf("after a preemption the trainer is %s, its last checkpoint of %v: %s", after.State, after.Progress.CheckpointAt, after.Error)
		}
	}
	r.row("preempt to slice free, ms: p50, p99", fmt.Sprintf("%.0f, %.0f", quantile(took, 0.5), quantile(took, 0.99)))
	r.measured("preempt to slice free, ms, p50", quantile(took, 0.5))
	r.measured("preempt to slice free, ms, p99", quantile(took, 0.99))
	_, err = m.Cancel(ctx, j.ID)
	return err
}
