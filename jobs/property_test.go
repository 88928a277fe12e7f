package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/blob/fileblob"

	"aloft/gpu"
	"aloft/jobs"
	"aloft/jobs/boltstore"
)

// errDead is what a process gets of its store after its death.
var errDead = errors.New("this process is dead")

// mortal is the store of one life. It takes so many writes; the next is that in
// which the process dies: stored or not, nobody is told, and nothing of that life
// is stored or read after it.
type mortal struct {
	*boltstore.Store
	die func() // once, when it dies

	mu   sync.Mutex
	left int
	odd  bool // the last write is stored all the same
	dead bool
}

// pass lets a write through; told: whoever asks for it lives to see it.
func (m *mortal) pass() (store, told bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead {
		return false, false
	}
	if m.left--; m.left > 0 {
		return true, true
	}
	m.dead = true
	m.die()
	return m.odd, false
}

func (m *mortal) kill() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.dead {
		m.dead = true
		m.die()
	}
}

func (m *mortal) gone() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.dead
}

func (m *mortal) write(do func() error) error {
	store, told := m.pass()
	var err error
	if store {
		err = do()
	}
	if told {
		return err
	}
	return errDead
}

func (m *mortal) Put(ctx context.Context, j *jobs.Job, events ...jobs.Event) error {
	return m.write(func() error { return m.Store.Put(ctx, j, events...) })
}

func (m *mortal) Delete(ctx context.Context, id string) error {
	return m.write(func() error { return m.Store.Delete(ctx, id) })
}

func (m *mortal) AddEvent(ctx context.Context, id string, e jobs.Event) error {
	return m.write(func() error { return m.Store.AddEvent(ctx, id, e) })
}

func (m *mortal) PutSchedule(ctx context.Context, s jobs.ScheduleState) error {
	return m.write(func() error { return m.Store.PutSchedule(ctx, s) })
}

func (m *mortal) PutFile(ctx context.Context, f jobs.File) error {
	return m.write(func() error { return m.Store.PutFile(ctx, f) })
}

func (m *mortal) DeleteFile(ctx context.Context, id string) error {
	return m.write(func() error { return m.Store.DeleteFile(ctx, id) })
}

func (m *mortal) Get(ctx context.Context, id string) (jobs.Job, error) {
	if m.gone() {
		return jobs.Job{}, errDead
	}
	return m.Store.Get(ctx, id)
}

func (m *mortal) List(ctx context.Context, f jobs.Filter) ([]jobs.Job, error) {
	if m.gone() {
		return nil, errDead
	}
	return m.Store.List(ctx, f)
}

// program is a run of a job that counts: a step a second of the bubble, a
// checkpoint every five.
type program struct {
	of         string // job
	stop, kill chan struct{}
	stopped    sync.Once
	killed     sync.Once
	done       chan struct{}
	exit       jobs.Exit
}

const propertySteps = 20

func (p *program) Wait() jobs.Exit { <-p.done; return p.exit }

func (p *program) Preempt(grace time.Duration) {
	p.stopped.Do(func() { close(p.stop) })
	time.AfterFunc(grace, p.end)
}

func (p *program) end() { p.killed.Do(func() { close(p.kill) }) }

// run is the program's life from a step on; save writes and reports a checkpoint.
func (p *program) run(name string, from int64, report func(jobs.Report), save func(step int64)) jobs.Exit {
	second := time.NewTicker(time.Second)
	defer second.Stop()
	for step := from; step < propertySteps; {
		select {
		case <-p.kill:
			return jobs.Exit{Code: -1, Signal: "killed"}
		case <-p.stop:
			switch name {
			case "stubborn": // waits for its kill
				<-p.kill
				return jobs.Exit{Code: -1, Signal: "killed", Forced: true}
			case "steps":
				if step > from {
					save(step)
				}
				return jobs.Exit{Code: jobs.ExitRequeue}
			}
			return jobs.Exit{Code: -1, Signal: "terminated"}
		case <-second.C:
		}
		step++
		report(jobs.Report{Step: step, Total: propertySteps})
		switch {
		case name == "fails" && step == 3:
			return jobs.Exit{Code: 3}
		case name == "short" && step == 3:
			return jobs.Exit{}
		case name == "steps" && step%5 == 0:
			save(step)
		}
	}
	return jobs.Exit{}
}

// asked is what the test knows of a job from outside: what it was answered. An
// operation in which the process died may have been stored or not: it is unsure.
type asked struct {
	id, name, key, template string
	deps                    []string
	input                   string // file of a batch

	cancelled, paused, deleted bool
	doomed                     bool   // a removal was interrupted: its files may be gone before its record
	unsure                     string // the operation whose answer never came
	final                      jobs.State
	saved                      int64 // the step of the newest checkpoint whose report was stored
}

// propertyWorld is a world in which a manager lives again and again.
type propertyWorld struct {
	t    *testing.T
	r    *rand.Rand // the driver's
	seed uint64
	dir  string

	store  *mortal
	bucket *blob.Bucket
	m      *jobs.Manager

	mu    sync.Mutex
	jobs  map[string]*asked
	names map[string]*asked // that were ever asked for
	live  map[string]*program
	done  map[string]bool // rows that were committed when this life began
	lives int
	last  bool // this life goes on to the end
	count int
	deeds map[string]int
}

func (w *propertyWorld) fail(format string, args ...any) {
	w.t.Helper()
	w.t.Errorf("life %d: %s (replay with ALOFT_SEED=%d)", w.lives, fmt.Sprintf(format, args...), w.seed)
}

const propertyMost = 60 // unfinished jobs

// open begins a life that ends after so many writes, 0 = in peace.
func (w *propertyWorld) open(writes int) bool {
	w.lives++
	store, err := boltstore.Open(filepath.Join(w.dir, "jobs.db"))
	if err != nil {
		w.t.Fatal(err)
	}
	if w.bucket, err = fileblob.OpenBucket(filepath.Join(w.dir, "blobs"), &fileblob.Options{CreateDir: true, NoTempDir: true, Metadata: fileblob.MetadataDontWrite}); err != nil {
		w.t.Fatal(err)
	}
	if writes == 0 {
		writes = 1 << 30
	}
	w.store = &mortal{Store: store, left: writes, odd: w.r.IntN(2) == 0, die: w.killPrograms}
	w.look()
	list := []jobs.Template{}
	for _, name := range []string{"steps", "short", "fails", "stubborn"} {
		list = append(list, jobs.Template{Name: name, Kind: jobs.KindTrain, Command: []string{name}, Grace: 4 * time.Second})
	}
	w.m, err = jobs.NewManager(jobs.Options{
		Store: w.store, Files: w.store, Blobs: w.bucket, DataDir: w.dir, MaxOpen: propertyMost,
		Caller: caller(w.call), Executor: w, Templates: list,
		Schedules: []jobs.Schedule{{Name: "often", Spec: "7m", Template: "short", Overlap: true, Next: func(after time.Time) time.Time {
			return after.Truncate(7 * time.Minute).Add(7 * time.Minute)
		}}},
	}, nil)
	if err == nil {
		err = w.m.Open(context.Background())
	}
	if err != nil && !errors.Is(err, errDead) {
		w.t.Fatalf("open: %v (replay with ALOFT_SEED=%d)", err, w.seed)
	}
	if err == nil {
		w.recovered()
	}
	return err == nil
}

// recovered looks at what a start-up made of the jobs: of those with processes
// none runs, and each is where the wish that was stored for it says.
func (w *propertyWorld) recovered() {
	list, err := w.m.List(context.Background(), jobs.Filter{States: jobs.Unfinished()})
	if err != nil {
		if !errors.Is(err, errDead) {
			w.fail("list: %v", err)
		}
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, j := range list {
		k := w.jobs[j.ID]
		switch {
		case j.Kind == jobs.KindBatch || k == nil: // its rows go on by themselves; or a schedule's, made just now
		case !slices.Contains([]jobs.State{jobs.Queued, jobs.Waiting, jobs.Paused}, j.State):
			w.fail("%s is %s after the start, and nothing runs yet", j.ID, j.State)
		case k.cancelled:
			w.fail("%s was to be cancelled and is %s after the start", j.ID, j.State)
		case k.paused != (j.State == jobs.Paused):
			w.fail("%s is %s after the start; paused before: %v", j.ID, j.State, k.paused)
		}
	}
}

// close ends a life; of a dead process nothing is left, which a process that goes
// on can only say by waiting until it has given up.
func (w *propertyWorld) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	if err := w.m.Close(ctx); err != nil {
		w.fail("close: %v", err)
	}
	if err := errors.Join(w.bucket.Close(), w.store.Store.Close()); err != nil {
		w.t.Fatal(err)
	}
}

func (w *propertyWorld) killPrograms() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.live {
		p.end()
	}
}

// Reap implements jobs.Executor: nothing outlives its process here.
func (w *propertyWorld) Reap(context.Context) error { return nil }

// Start implements jobs.Executor, and judges whether the job may run.
func (w *propertyWorld) Start(_ context.Context, l jobs.Launch) (jobs.Run, error) {
	id, from := l.Job.ID, int64(0)
	if l.ResumeFrom != "" {
		text, err := os.ReadFile(l.ResumeFrom)
		if err != nil {
			return nil, err
		}
		from, _ = strconv.ParseInt(string(text), 10, 64)
	}
	for _, on := range l.Job.DependsOn {
		if d, err := w.store.Store.Get(context.Background(), on); err != nil || d.State != jobs.Succeeded {
			w.fail("%s starts, and depends on %s, which is %q (%v)", id, on, d.State, err)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	k := w.known(l.Job)
	if k == nil {
		w.fail("%s starts, and nobody asked for it", id)
		k = &asked{}
	}
	switch {
	case w.live[id] != nil:
		w.fail("%s starts while it runs", id)
	case k.cancelled || k.paused || k.deleted || k.final != "":
		w.fail("%s starts: %+v", id, *k)
	case from < k.saved:
		w.fail("%s goes on from step %d, saved was %d", id, from, k.saved)
	}
	p := &program{of: id, stop: make(chan struct{}), kill: make(chan struct{}), done: make(chan struct{})}
	w.live[id] = p
	store := w.store
	go func() {
		defer close(p.done)
		p.exit = p.run(l.Job.Template, from, l.Report, func(step int64) {
			path := filepath.Join(l.CheckpointDir, fmt.Sprintf("at-%d", step))
			if err := os.WriteFile(path, fmt.Append(nil, step), 0o600); err != nil {
				w.fail("checkpoint: %v", err)
			}
			if l.Report(jobs.Report{Step: step, Checkpoint: path}); store.gone() {
				return
			}
			w.mu.Lock()
			k.saved = step
			w.mu.Unlock()
		})
		w.mu.Lock()
		delete(w.live, id)
		w.mu.Unlock()
	}()
	return p, nil
}

// known is what was asked for as this job; those of schedules are taken in here.
// The lock is held.
func (w *propertyWorld) known(j jobs.Job) *asked {
	if k := w.jobs[j.ID]; k != nil {
		return k
	}
	for _, k := range w.names {
		if k.id == "" && j.Schedule == "" && (k.name == j.Name || k.template == "batch" && k.key == j.Idempotency) {
			k.id = j.ID
			w.jobs[j.ID] = k
			return k
		}
	}
	if j.Schedule == "often" {
		k := &asked{id: j.ID, name: j.Idempotency, key: j.Idempotency, template: j.Template}
		w.jobs[j.ID] = k
		return k
	}
	return nil
}

// call implements jobs.Caller.
func (w *propertyWorld) call(ctx context.Context, r jobs.Row) (jobs.Result, error) {
	w.mu.Lock()
	if w.done[r.ID] {
		w.fail("row %s is called after it was committed", r.ID)
	}
	w.mu.Unlock()
	select {
	case <-time.After(rand.N(2 * time.Second)):
	case <-ctx.Done():
		return jobs.Result{}, context.Cause(ctx)
	}
	if rand.N(10) == 0 {
		return jobs.Result{Status: 503}, nil
	}
	return answer(ctx, r)
}

const propertyRows = 30

// look compares what the last life left in its store with what was answered.
func (w *propertyWorld) look() {
	list, err := w.store.Store.List(context.Background(), jobs.Filter{})
	if err != nil {
		w.t.Fatal(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.live, w.done = map[string]*program{}, map[string]bool{}
	there, keys := map[string]bool{}, map[string]string{}
	for _, j := range list {
		there[j.ID] = true
		if twice := keys[j.Idempotency]; j.Idempotency != "" && twice != "" {
			w.fail("%s and %s are one request: key %s", j.ID, twice, j.Idempotency)
		}
		keys[j.Idempotency] = j.ID
		k := w.known(j)
		if k == nil {
			w.fail("%s is there twice, or nobody asked for it: %+v", j.ID, j)
			continue
		}
		w.compare(k, j)
		if j.Batch == nil || j.State.Terminal() {
			continue
		}
		for i := range propertyRows {
			if i/8 < len(j.Batch.Log.Done) && j.Batch.Log.Done[i/8]&(1<<(i%8)) != 0 {
				w.done[fmt.Sprintf("batch_req_%s_%05d", strings.TrimPrefix(j.ID, "batch_"), i)] = true
			}
		}
	}
	for id, k := range w.jobs {
		switch {
		case !there[id] && k.unsure == "delete":
			k.deleted = true
		case k.unsure == "delete":
			k.doomed = true
		case !there[id] && !k.deleted:
			w.fail("%s is lost: %+v", id, *k)
		}
		k.unsure = ""
	}
}

// compare holds a job's record against what was answered about it, and takes from
// it what was done in the operation that was not answered. The lock is held.
func (w *propertyWorld) compare(k *asked, j jobs.Job) {
	if k.deleted {
		w.fail("%s was deleted and is %s", j.ID, j.State)
	}
	if k.unsure == "retry" && (!j.State.Terminal() || j.Tried == 0 && j.Finished.IsZero()) {
		k.final, k.cancelled = "", false
	}
	if k.final != "" && k.final != j.State {
		w.fail("%s was %s and is %s", j.ID, k.final, j.State)
	}
	if k.cancelled && j.Cancelling.IsZero() && !j.State.Terminal() || k.cancelled && !slices.Contains([]jobs.State{"", jobs.Cancelled, jobs.Succeeded}, terminal(j.State)) {
		w.fail("%s was cancelled and is %s (%s)", j.ID, j.State, j.Error)
	}
	if k.paused && j.State != jobs.Paused && j.Pausing.IsZero() && !j.State.Terminal() && k.unsure != "resume" {
		w.fail("%s was paused and is %s", j.ID, j.State)
	}
	k.cancelled = !j.Cancelling.IsZero() || j.State == jobs.Cancelled
	k.paused = j.State == jobs.Paused || !j.Pausing.IsZero()
	if j.State.Terminal() {
		k.final = j.State
	}
}

func terminal(s jobs.State) jobs.State {
	if s.Terminal() {
		return s
	}
	return ""
}

// deed does one thing at random, and notes what was answered.
func (w *propertyWorld) deed() {
	ctx := context.Background()
	list, err := w.m.List(ctx, jobs.Filter{})
	if err != nil {
		w.answered(nil, "list", err)
		return
	}
	var open []jobs.Job
	for _, j := range list {
		if !j.State.Terminal() {
			open = append(open, j)
		}
	}
	var some jobs.Job
	if len(list) > 0 {
		some = list[w.r.IntN(min(len(list), 30))]
	}
	w.mu.Lock()
	k := w.jobs[some.ID]
	w.mu.Unlock()
	type change = func(context.Context, string) (jobs.Job, error)
	changes := map[string]change{"cancel": w.m.Cancel, "pause": w.m.Pause, "resume": w.m.Resume, "retry": w.m.Retry}
	names := slices.Sorted(maps.Keys(changes))
	switch what := w.r.IntN(20); {
	case what < 4 && len(open) < propertyMost/2:
		w.submit(list)
	case what < 6 && len(open) < propertyMost/2:
		w.batch()
	case what == 6:
		w.again()
	case what < 11 && k != nil:
		name := names[w.r.IntN(len(names))]
		_, err := changes[name](ctx, some.ID)
		w.answered(k, name, err)
	case what == 11 && k != nil:
		w.answered(k, "delete", w.m.Delete(ctx, some.ID))
	case what == 12 && k != nil:
		w.answered(k, "preempt", w.m.Preempt(ctx, some.ID, 0))
	case what == 13 && w.r.IntN(3) == 0 && !w.last:
		w.store.kill()
	case what == 14 && !w.last:
		w.wish(open)
	default:
		w.lend(open)
		time.Sleep(time.Duration(w.r.Int64N(int64(20 * time.Second))))
		if w.r.IntN(20) == 0 {
			time.Sleep(8 * time.Minute)
		}
	}
}

// wish asks for the end of a job that runs, and the process dies while the wish is
// all there is.
func (w *propertyWorld) wish(open []jobs.Job) {
	w.lend(open)
	for _, i := range w.r.Perm(len(open)) {
		j, err := w.m.Get(context.Background(), open[i].ID)
		if err != nil || j.Kind == jobs.KindBatch || j.State != jobs.Running {
			continue
		}
		w.mu.Lock()
		k := w.jobs[j.ID]
		w.mu.Unlock()
		name, ask := "pause", w.m.Pause
		if w.r.IntN(3) == 0 {
			name, ask = "cancel", w.m.Cancel
		}
		_, err = ask(context.Background(), j.ID)
		w.answered(k, name, err)
		w.store.kill()
		return
	}
}

// answered notes what an operation on a job came to.
func (w *propertyWorld) answered(k *asked, what string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deeds[what]++
	if errors.Is(err, errDead) || w.store.gone() {
		if k != nil {
			k.unsure = what
		}
		return
	}
	var bad *jobs.InvalidError
	switch {
	case err == nil:
	case errors.Is(err, jobs.ErrConflict), errors.Is(err, jobs.ErrFinished), errors.Is(err, jobs.ErrNotFound), errors.As(err, &bad):
		return // told so
	default:
		w.fail("%s: %v", what, err)
		return
	}
	switch what {
	case "cancel":
		k.cancelled, k.paused = true, false
	case "pause":
		k.paused = true
	case "resume":
		k.paused = false
	case "retry":
		k.final, k.cancelled, k.paused = "", false, false
	case "delete":
		k.deleted = true
	}
}

// ask is a new request, under a name that no other has.
func (w *propertyWorld) ask(template string) *asked {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.count++
	k := &asked{name: fmt.Sprintf("ask-%d", w.count), template: template}
	w.names[k.name] = k
	return k
}

func (w *propertyWorld) submit(list []jobs.Job) {
	k := w.ask([]string{"steps", "steps", "steps", "short", "fails", "stubborn"}[w.r.IntN(6)])
	if w.r.IntN(2) == 0 {
		k.key = "key-of-" + k.name
	}
	for range w.r.IntN(3) {
		if len(list) == 0 || w.r.IntN(2) == 0 {
			break
		}
		if on := list[w.r.IntN(len(list))]; on.State != jobs.Failed && !slices.Contains(k.deps, on.ID) {
			k.deps = append(k.deps, on.ID)
		}
	}
	w.send(k)
}

// send submits k, for the first time or once more.
func (w *propertyWorld) send(k *asked) {
	if k.deleted { // the key is free again
		w.mu.Lock()
		k = &asked{name: k.name, key: k.key, template: k.template, deps: k.deps, input: k.input}
		w.names[k.name] = k
		w.mu.Unlock()
	}
	if k.template == "batch" {
		b, err := w.m.CreateBatch(context.Background(), jobs.BatchSpec{InputFile: k.input, Endpoint: "/v1/embeddings", Window: "240h", Idempotency: k.key})
		w.took(k, b.ID, err)
		return
	}
	retries := 0
	if k.template == "fails" {
		retries = 2
	}
	j, err := w.m.Submit(context.Background(), jobs.Job{Template: k.template, Terms: jobs.Terms{Name: k.name, Idempotency: k.key, DependsOn: k.deps, Retries: retries}})
	w.took(k, j.ID, err)
}

// took notes the answer to a submission.
func (w *propertyWorld) took(k *asked, id string, err error) {
	w.answered(nil, "submit", err)
	if err != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if k.id != "" && k.id != id {
		w.fail("one request made %s and %s", k.id, id)
	}
	k.id = id
	w.jobs[id] = k
}

// again repeats an earlier request, whatever became of its answer; or sends
// another one under its key.
func (w *propertyWorld) again() {
	w.mu.Lock()
	var keyed []*asked
	for _, name := range slices.Sorted(maps.Keys(w.names)) {
		if k := w.names[name]; k.key != "" {
			keyed = append(keyed, k)
		}
	}
	w.mu.Unlock()
	if len(keyed) == 0 {
		return
	}
	k := keyed[w.r.IntN(len(keyed))]
	if w.r.IntN(3) > 0 {
		w.send(k)
		return
	}
	w.mu.Lock()
	there := k.id != "" && !k.deleted
	w.mu.Unlock()
	if !there {
		return
	}
	_, err := w.m.Submit(context.Background(), jobs.Job{Template: "short", Terms: jobs.Terms{Name: "other", Idempotency: k.key}})
	if !errors.Is(err, jobs.ErrConflict) && !w.store.gone() {
		w.fail("another request under %s: %v", k.key, err)
	}
}

func (w *propertyWorld) batch() {
	ctx := context.Background()
	f, err := w.m.CreateFile(ctx, known(jobs.FileSpec{Name: "in.jsonl", Purpose: jobs.PurposeBatch}), strings.NewReader(rowsFile(propertyRows)))
	w.answered(nil, "upload", err)
	if err != nil {
		return
	}
	k := w.ask("batch")
	k.key, k.input = "key-of-"+k.name, f.ID
	w.send(k)
}

// lend starts up to three of what waits.
func (w *propertyWorld) lend(open []jobs.Job) {
	started := 0
	for _, i := range w.r.Perm(len(open)) {
		j := open[i]
		if !j.Waits() || started == 3 {
			continue
		}
		started++
		w.answered(nil, "start", w.m.Start(context.Background(), j.ID, []gpu.Slice{{ID: "g0/s" + j.ID, UUID: "MIG-" + j.ID}}))
	}
}

// drain lets everything go on, and returns when nothing is unfinished.
func (w *propertyWorld) drain() {
	for range 5000 { // some hours of the bubble
		open, err := w.m.List(context.Background(), jobs.Filter{States: jobs.Unfinished()})
		if err != nil {
			w.t.Fatal(err)
		}
		asked := 0
		for _, j := range open {
			if j.State == jobs.Paused {
				if _, err := w.m.Resume(context.Background(), j.ID); err != nil {
					w.fail("resume %s: %v", j.ID, err)
				}
				w.mu.Lock()
				w.jobs[j.ID].paused = false
				w.mu.Unlock()
			}
			if j.Schedule == "" {
				asked++
			}
		}
		if asked == 0 {
			return
		}
		w.lend(open)
		time.Sleep(5 * time.Second)
	}
	open, _ := w.m.List(context.Background(), jobs.Filter{States: jobs.Unfinished()})
	for _, j := range open {
		w.fail("%s is stuck: %s %+v", j.ID, j.State, j.Course)
	}
}

// judge looks at everything in the end.
func (w *propertyWorld) judge() {
	list, err := w.m.List(context.Background(), jobs.Filter{})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, j := range list {
		w.mu.Lock()
		k := w.known(j)
		w.mu.Unlock()
		want := jobs.Succeeded
		if j.Template == "fails" {
			want = jobs.Failed
		}
		switch {
		case k == nil:
			w.fail("nobody asked for %s", j.ID)
		case j.Schedule != "" && !j.State.Terminal(): // they go on coming
		case j.State == jobs.Cancelled && k.cancelled:
		case j.State == jobs.Failed && len(k.deps) > 0 && strings.HasPrefix(j.Error, "depends on"):
		case j.State != want:
			w.fail("%s of %s has %s: %s", j.ID, k.template, j.State, j.Error)
		}
		if j.Batch != nil && !k.doomed {
			rows := propertyRows
			if j.Batch.Status == jobs.BatchCancelled && j.Batch.Stamps.InProgress.IsZero() {
				rows = 0 // cancelled before its file had been read
			}
			outputs(w.t, w.m, *j.Batch, rows)
		}
	}
	// Every place of the bound on unfinished jobs is free again, and there are no more.
	open := 0
	for _, j := range list {
		if !j.State.Terminal() {
			open++
		}
	}
	for i := open; i <= propertyMost; i++ {
		_, err := w.m.Submit(context.Background(), jobs.Job{Template: "short", Terms: jobs.Terms{NotBefore: time.Now().Add(time.Hour)}})
		if (err == nil) != (i < propertyMost) {
			w.fail("with %d unfinished jobs of %d one more: %v", i, propertyMost, err)
			return
		}
	}
}

// TestJobsOutliveCrashes does things at random to a manager that dies at random
// writes of its store, and checks what each next life finds against what was
// answered: no job lost, doubled or stuck, none that runs against a wish, every
// row of a batch once. Time is the bubble's: hours of it take seconds.
func TestJobsOutliveCrashes(t *testing.T) {
	worlds, seed := 2, rand.Uint64()
	for name, into := range map[string]func(string) error{
		"ALOFT_WORLDS": func(s string) (err error) { worlds, err = strconv.Atoi(s); return err },
		"ALOFT_SEED":   func(s string) (err error) { worlds = 1; seed, err = strconv.ParseUint(s, 10, 64); return err },
	} {
		if s := os.Getenv(name); s != "" {
			if err := into(s); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
	for i := range worlds {
		seed := seed + uint64(i)
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { outlive(t, seed) })
		})
	}
}

// life opens a manager, lets it do something, and ends it.
func (w *propertyWorld) life(writes int, do func()) {
	opened := w.open(writes)
	defer w.close()
	if opened {
		do()
	}
}

func outlive(t *testing.T, seed uint64) {
	const lives = 6
	w := &propertyWorld{
		t: t, r: rand.New(rand.NewPCG(seed, 7)), seed: seed, dir: t.TempDir(),
		jobs: map[string]*asked{}, names: map[string]*asked{}, deeds: map[string]int{},
	}
	for range lives {
		w.life(1+w.r.IntN(250), func() {
			for !w.store.gone() && !t.Failed() && w.r.IntN(200) > 0 { // at times the end is peaceful
				w.deed()
			}
		})
		if t.Failed() {
			return
		}
	}
	w.last = true
	w.life(0, func() {
		for range 100 {
			w.deed()
		}
		w.drain()
		w.judge()
	})
	t.Logf("seed %d: %d lives, %d jobs, %v", seed, w.lives, len(w.jobs), w.deeds)
}
