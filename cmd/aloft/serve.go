package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gocloud.dev/blob"
	_ "gocloud.dev/blob/fileblob" // the default bucket is a folder

	"aloft/arbiter"
	"aloft/batcher"
	"aloft/gateway"
	"aloft/gateway/keys"
	"aloft/gpu"
	"aloft/gpu/nvml"
	"aloft/gpu/proc"
	"aloft/gpu/simulated"
	"aloft/jobs"
	"aloft/jobs/boltstore"
	"aloft/pool"
)

type serveCmd struct {
	common
}

// Run implements kong's command.
func (c *serveCmd) Run(ctx context.Context) error {
	conf, err := c.load()
	if err != nil {
		return err
	}
	return runServer(ctx, conf, c.load, os.Stdout, os.Stderr)
}

// server is the running whole: built top to bottom, stopped in reverse.
type server struct {
	conf *Config // as it was at the start
	reloading
	access
	log       *slog.Logger
	data      string
	inventory gpu.Inventory
	devices   []gpu.Device
	listener  net.Listener
	telemetry *telemetry
	store     *boltstore.Store
	blobs     *blob.Bucket
	serving   *serving
	work      *work
	arbiter   *arbiter.Arbiter
	gateway   *gateway.Server
	runner
	books
	way   way
	began time.Time
	stops []stop
}

type stop struct {
	name string
	f    func(context.Context) error
}

// stopBound is how long a shutdown may take in all before it is cut short.
const stopBound = 60 * time.Second

// runServer runs until ctx ends and then stops everything in reverse order. What
// was started is stopped also when a later part fails to start. load reads the
// configuration again, as it is now.
func runServer(ctx context.Context, conf *Config, load func() (*Config, error), stdout, stderr io.Writer) (err error) {
	s := &server{conf: conf, reloading: reloading{load: load, level: new(slog.LevelVar)}, began: time.Now()}
	s.current.Store(conf)
	s.log = conf.logger(stderr, s.level)
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), stopBound)
		defer cancel()
		for _, st := range slices.Backward(s.stops) {
			began := time.Now()
			e := st.f(ctx)
			s.log.Debug("stopped", "part", st.name, "took", time.Since(began), "error", e)
			if e != nil {
				err = errors.Join(err, fmt.Errorf("stop %s: %w", st.name, e))
			}
		}
	}()
	for _, step := range []func(context.Context) error{s.openFolders, s.openDevices, s.openAccess, s.listen, s.openTelemetry,
		s.openModels, s.openJobs, s.openPool, s.openArbiter, s.openGateway} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return s.run(ctx, stdout)
}

func (s *server) onStop(name string, f func(context.Context) error) {
	s.stops = append(s.stops, stop{name, f})
}

func (s *server) openFolders(context.Context) error {
	data, unlock, err := openData(s.conf.data)
	if err != nil {
		return err
	}
	s.data = data
	s.onStop("data folder", func(context.Context) error { unlock(); return nil })
	if n, err := proc.Reap(s.path("run"), s.log); err != nil {
		return fmt.Errorf("clear what an earlier server left: %w", err)
	} else if n > 0 {
		s.log.Warn("killed what an earlier server left running", "processes", n)
	}
	if s.journal, err = openJournal(s.path("journal.jsonl")); err != nil {
		return err
	}
	s.onStop("journal", func(context.Context) error { return s.journal.Close() })
	if s.memories, err = openMemories(s.path("pasts"), time.Now(), s.log); err != nil {
		return err
	}
	s.history, err = openHistory(s.path("ledger"), time.Now(), s.log)
	return err
}

func (s *server) path(elem ...string) string {
	return filepath.Join(append([]string{s.data}, elem...)...)
}

// openDevices takes the driver's devices, or the simulated ones.
func (s *server) openDevices(ctx context.Context) error {
	want := s.conf.Node.Devices
	if want != "simulated" {
		inv, err := nvml.Open()
		switch {
		case err == nil:
			s.inventory = inv
		case want == "nvml" || !(errors.Is(err, nvml.ErrNoDriver) || errors.Is(err, nvml.ErrNotBuilt)):
			return fmt.Errorf("read GPUs: %w", err)
		}
	}
	if s.inventory == nil {
		node, err := simulated.New(s.conf.simulated())
		if err != nil {
			return fmt.Errorf("simulate GPUs: %w", err)
		}
		s.inventory = node
	}
	s.onStop("devices", func(context.Context) error { return s.inventory.Close() })
	var err error
	if s.devices, err = s.inventory.List(ctx); err != nil {
		return fmt.Errorf("list GPUs: %w", err)
	}
	n := 0
	for _, d := range s.devices {
		n += len(d.Slices)
	}
	if n == 0 {
		return fmt.Errorf("no GPU slices found; with MIG on, create instances first, or set node.devices to simulated")
	}
	return nil
}

func (s *server) openTelemetry(ctx context.Context) (err error) {
	if s.telemetry, err = newTelemetry(ctx); err == nil {
		s.onStop("telemetry", s.telemetry.close)
	}
	return err
}

// background runs f until the server stops, and then waits for its end.
func (s *server) background(name string, f func(context.Context)) {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { f(ctx); close(done) }()
	s.onStop(name, func(context.Context) error { stop(); <-done; return nil })
}

// shape looks a profile up on this node; "" fits every slice.
func (s *server) shape(profile string) (gpu.Shape, error) { return shapeOn(s.devices, profile) }

// shapeOn looks a profile up on devices; "" fits every slice.
func shapeOn(devices []gpu.Device, profile string) (gpu.Shape, error) {
	if profile == "" {
		return gpu.Shape{}, nil
	}
	var have []string
	for _, d := range devices {
		for _, sl := range d.Slices {
			if sl.Shape.Profile == profile {
				return sl.Shape, nil
			}
			have = append(have, sl.Shape.Profile)
		}
		if shape, err := gpu.ShapeOf(d.Family, profile); err == nil {
			for _, sl := range d.Slices {
				if sl.Shape.ComputeSlices >= shape.ComputeSlices && sl.Shape.Bytes >= shape.Bytes {
					return shape, nil
				}
			}
		}
	}
	slices.Sort(have)
	return gpu.Shape{}, fmt.Errorf("no slice is as large as %q; this node has %s", profile, strings.Join(slices.Compact(have), ", "))
}

// room counts the slices of this node that are at least as large.
func (s *server) room(needs gpu.Shape) (n int) { return room(s.devices, needs) }

// room counts the slices of devices that are at least as large.
func room(devices []gpu.Device, needs gpu.Shape) (n int) {
	for _, d := range devices {
		for _, sl := range d.Slices {
			if sl.Shape.ComputeSlices >= needs.ComputeSlices && sl.Shape.Bytes >= needs.Bytes {
				n++
			}
		}
	}
	return n
}

// openModels checks all that the models need and makes their batchers.
func (s *server) openModels(context.Context) error {
	s.serving = &serving{changed: make(chan struct{}), rows: map[string]bool{}, offline: map[string]int{}, shared: map[string]int{},
		adapters: map[string][]string{}, retired: map[string][]*batcher.Batcher{}}
	var err error
	if s.way.spending, err = openSpending(s.path("overflow.json"), s.serving); err != nil {
		return err
	}
	if s.way.variants, err = openVariants(s.path("variants.json")); err != nil {
		return err
	}
	set, err := s.nextSet(s.withVariants(s.conf), newModelSet())
	s.serving.set.Store(set)
	s.onStop("batchers", s.closeBatchers)
	return s.conf.located(err)
}

func (s *server) openJobs(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	if err := s.checkTemplates(s.conf); err != nil {
		return s.conf.located(err)
	}
	if s.store, err = boltstore.Open(s.path("store.db")); err != nil {
		return err
	}
	s.onStop("job store", func(context.Context) error { return s.store.Close() })
	bucket := s.conf.Jobs.Blobs
	if bucket == "" {
		bucket = "file://" + filepath.ToSlash(s.path("blobs")) + "?metadata=skip&no_tmp_dir=true"
	}
	if s.blobs, err = blob.OpenBucket(ctx, bucket); err != nil {
		return fmt.Errorf("open bucket %s: %w", bucket, err)
	}
	s.onStop("bucket", func(context.Context) error { return s.blobs.Close() })
	schedules, err := s.conf.schedules()
	if err != nil {
		return err
	}
	if s.local, err = s.executor(ctx); err != nil {
		return err
	}
	s.jobs, err = jobs.NewManager(jobs.Options{KeepFor: s.conf.Jobs.KeepFor, Schedules: schedules, Sessions: s.conf.sessions(), Store: s.store, Files: durable(s.store, bucket), Blobs: s.blobs, Caller: caller{s},
		Executor: s.local, Templates: s.conf.templates(), DataDir: s.data, Self: self,
		BatchConcurrency: func(model string) int { return s.serving.concurrency(model, s.conf.Jobs.BatchRows) },
		Serves:           func(model string) bool { return s.serving.set.Load().names[model] != nil },
		OnChange:         func(jobs.Job) { s.arbiter.Kick() }}, s.log)
	return err
}

// durable is the store of files for a bucket: what a folder holds is synced before
// a record names it. Other buckets answer once a blob is safe.
func durable(files jobs.FileStore, bucket string) jobs.FileStore {
	u, err := url.Parse(bucket)
	if err != nil || u.Scheme != "file" {
		return files
	}
	folder := filepath.FromSlash(u.Path)
	if u.Host == "." { // a relative path
		folder = filepath.FromSlash(strings.TrimPrefix(u.Path, "/"))
	}
	folder = filepath.Clean(folder)
	return jobs.SyncedFiles{FileStore: files, Sync: func(blob string) error {
		return jobs.Sync(filepath.Join(folder, filepath.FromSlash(u.Query().Get("prefix")+blob)), folder)
	}}
}

func (s *server) openPool(context.Context) error {
	models, err := s.engines(s.withVariants(s.conf))
	if err != nil {
		return s.conf.located(err)
	}
	c := s.conf.Pool
	s.serving.pool, err = pool.New(pool.Options{Models: models, Launcher: s.launcher(), Publish: s.serving.publish, OnReading: s.serving.reading,
		OnEvent: func(e pool.Event) { s.serving.notify(e.All); s.arbiter.Kick() }, Free: s.free,
		StartTimeout: c.StartTimeout, DrainTimeout: c.DrainTimeout, StopGrace: c.StopGrace,
		BackoffMin: c.BackoffMin, BackoffMax: c.BackoffMax}, s.log)
	if err == nil {
		s.onStop("pool", s.serving.pool.Close)
	}
	return err
}

// geometryPeriod is between plans that may reshape a GPU: what is gained has to
// pay for the minutes in which its slices are empty.
const geometryPeriod = 10 * time.Minute

// openArbiter makes the arbiter, then opens the jobs: their batches call the
// gateway, so that comes first.
func (s *server) openArbiter(context.Context) error {
	a := s.conf.Arbiter
	open := s.conf.openWindows(time.Now())
	s.serving.open.Store(&open)
	if missing := s.conf.unknownSlices(s.devices); len(missing) > 0 {
		s.log.Warn("slices of the configuration that no device has", "slices", missing)
	}
	s.work = &work{jobs: s.jobs, serving: s.serving, width: s.conf.Jobs.BatchWidth, began: map[string]time.Time{},
		shape: s.shape}
	var err error
	shaper, _ := s.inventory.(gpu.Shaper) // nil where nothing can reshape
	core := arbiter.CoreOptions{Policy: s.conf.policy(time.Now()), Guard: a.Guard, Plan: a.Plan, Geometry: max(a.Plan, geometryPeriod),
		FastHorizon: a.FastHorizon, SlowHorizon: a.SlowHorizon, RiseQuantile: a.RiseQuantile}
	s.arbiter, err = arbiter.New(arbiter.Options{Core: core, Serving: s.serving, Work: s.work, Inventory: s.inventory, Shaper: shaper,
		MoveTimeout: s.conf.Pool.StartTimeout, Journal: s.journal, Past: s.journal.past, Memories: s.memories.past, OnRecord: s.record}, s.log)
	if err == nil {
		s.serving.tell = s.arbiter.Arrived
		s.memories.past = nil
	}
	return err
}

// record hears of every decision and outcome, while the arbiter waits.
func (s *server) record(r arbiter.Record) {
	s.history.record(r)
	s.measure.record(r)
}

func (s *server) openGateway(ctx context.Context) error {
	obs, err := newObserver(s.serving, s.telemetry)
	if err != nil {
		return err
	}
	obs.book = s.way.variants.book
	if obs.recorder, err = newRecorder(s.path("recordings"), s.log); err != nil {
		return err
	}
	s.onStop("recorder", obs.recorder.close)
	way, err := s.submitter()
	if err != nil {
		return err
	}
	if err := s.gauges(s.telemetry.meter()); err != nil {
		return err
	}
	edge := s.conf.edge(s.cert)
	edge.Telemetry.Sample = s.telemetry.sample()
	s.gateway, err = gateway.New(edge,
		gateway.Deps{Catalog: catalog{s.serving}, Submitter: way, Observer: obs, Decisions: decisions{s.arbiter},
			Status: statusSource{s}, Reporter: statusSource{s}, Metrics: s.telemetry.handler, Files: s.jobs, Batches: s.jobs, Jobs: jobDoor{s.jobs, s.shape, s.room}, FineTunes: s.jobs,
			Keys: s.keys, KeyAdmin: s.keys, Recorder: obs.recorder, Variants: variantDesk{s}}, s.log)
	return err
}

// moveGrace is how long a shutdown waits for moves under way. One that waits for
// a cold start may take minutes, and the jobs behind it need theirs to save.
const moveGrace = 5 * time.Second

// run serves until ctx ends. The edge stops first, then the arbiter, so that
// nothing is lent while the jobs and then the pool go down.
func (s *server) run(ctx context.Context, stdout io.Writer) error {
	if err := s.jobs.Open(ctx); err != nil {
		return fmt.Errorf("recover jobs: %w", err)
	}
	s.onStop("jobs", s.jobs.Close)
	deciding, stopDeciding := context.WithCancel(context.WithoutCancel(ctx))
	decided := make(chan struct{})
	go func() { s.arbiter.Run(deciding); close(decided) }()
	s.onStop("arbiter", func(ctx context.Context) error {
		stopDeciding()
		select {
		case <-decided: // the moves under way have ended too
		case <-time.After(moveGrace): // they end with the jobs and replicas that they wait for
		case <-ctx.Done():
		}
		return nil
	})
	loose, err := s.local.Check(ctx)
	if err != nil {
		return err
	}
	address := s.scheme() + s.listener.Addr().String()
	if err := keys.WriteFile(s.path("run", "address"), []byte(address+"\n")); err != nil {
		return err
	}
	s.onStop("address", func(context.Context) error { _ = os.Remove(s.path("run", "address")); return nil })
	s.background("history", s.keepHistory)
	s.background("waits", s.tellWaits)
	s.background("pasts", s.keepMemories)
	s.background("windows", s.tendWindows)
	s.background("variants", s.tendVariants)
	s.background("spending", func(ctx context.Context) { s.way.spending.run(ctx, s.log.Warn) })
	s.background("heap", tendHeap)
	s.hello(stdout, address)
	for _, n := range loose {
		s.log.Info("jobs are not confined further", "because", n)
	}
	s.watchFiles(ctx)
	return s.gateway.Serve(ctx, s.listener)
}
