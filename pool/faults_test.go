package pool_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"aloft/backends"
	"aloft/backends/openaihttp"
	"aloft/batcher"
	"aloft/gateway"
	"aloft/gpu"
	"aloft/pool"
)

// ledgerEnv makes this test binary an engine; it names the folder where engines
// note what went wrong, who runs, and how much memory each holds.
const (
	ledgerEnv = "ALOFT_TEST_LEDGER"
	scriptEnv = "ALOFT_TEST_SCRIPT"
)

// What an engine does wrong.
const (
	deaf       = "ignores SIGTERM"
	firstFails = "fails its first load"
	greedy     = "sleeps with its memory"
)

const engineBytes = 1000 // of memory that an engine holds

func TestMain(m *testing.M) {
	if dir := os.Getenv(ledgerEnv); dir != "" {
		os.Exit(engineMain(ledger(dir), os.Args[1], os.Getenv(scriptEnv)))
	}
	os.Exit(m.Run())
}

type ledger string

func (l ledger) path(name string) string { return filepath.Join(string(l), name) }

func (l ledger) note(file, format string, args ...any) {
	f, err := os.OpenFile(l.path(file), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	defer f.Close()
	fmt.Fprintf(f, format+"\n", args...)
}

func (l ledger) wrong(format string, args ...any) { l.note("wrong", format, args...) }

func (l ledger) lines(file string) []string {
	b, _ := os.ReadFile(l.path(file))
	return strings.FieldsFunc(string(b), func(r rune) bool { return r == '\n' })
}

// engineState is a scripted engine; it holds the pool to its word.
type engineState struct {
	ledger
	mu      sync.Mutex
	running int
	asleep  bool
	untried bool // just loaded or woken: the first call must be the canary
}

func engineMain(l ledger, model, script string) int {
	terms := make(chan os.Signal, 1)
	signal.Notify(terms, syscall.SIGTERM)
	// A changed model's new engine starts beside the old one; two of one kind never run.
	lock, err := os.Create(l.path(strings.ReplaceAll(fmt.Sprint("lock ", model, " ", script, " ", os.Getenv("ALOFT_SLICE")), "/", "-")))
	if err == nil {
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	if err != nil {
		l.wrong("two processes of %s on one slice: %v", model, err)
		return 1
	}
	if script == firstFails && os.Mkdir(l.path("failed"), 0o700) == nil {
		fmt.Println("cannot load the model")
		return 3
	}
	l.note("starts", "%s", model)
	l.hold(engineBytes)
	e := &engineState{ledger: l, untried: true}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("POST /sleep", func(http.ResponseWriter, *http.Request) {
		e.idle("put to sleep")
		e.asleep = true
		e.mu.Unlock()
		if script != greedy {
			e.hold(0)
		}
	})
	mux.HandleFunc("POST /wake_up", func(http.ResponseWriter, *http.Request) {
		e.mu.Lock()
		e.asleep, e.untried = false, true
		e.mu.Unlock()
		e.hold(engineBytes)
	})
	mux.HandleFunc("POST /v1/chat/completions", e.chat)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 1
	}
	go func() { _ = http.Serve(ln, mux) }()
	fmt.Printf("{\"listening\":%q}\n", ln.Addr())
	for range terms {
		if script != deaf {
			break
		}
	}
	e.idle("ended")
	return 0
}

// hold notes how much memory this process has.
func (l ledger) hold(n int64) {
	tmp := l.path(fmt.Sprintf("tmp %d", os.Getpid()))
	if os.WriteFile(tmp, strconv.AppendInt(nil, n, 10), 0o600) == nil {
		_ = os.Rename(tmp, l.path(fmt.Sprintf("held %d", os.Getpid())))
	}
}

// idle locks the state, and complains when a call is running.
func (e *engineState) idle(what string) {
	e.mu.Lock()
	if e.running > 0 {
		e.wrong("%s with %d calls running", what, e.running)
	}
}

func (e *engineState) chat(w http.ResponseWriter, r *http.Request) {
	var ask struct {
		Canary bool
		Ms     int
	}
	_ = json.NewDecoder(r.Body).Decode(&ask)
	e.mu.Lock()
	if e.asleep {
		e.wrong("a call while asleep")
	}
	if e.untried && !ask.Canary {
		e.wrong("a call before the canary")
	}
	e.untried = false
	e.running++
	e.mu.Unlock()
	time.Sleep(time.Duration(ask.Ms) * time.Millisecond)
	e.mu.Lock()
	e.running-- // before the answer: whoever has it may go on
	e.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, `{"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"ok"},"finish_reason":"stop"}]}`)
}

// memory measures the scripted engines' memory: what an ended process held is
// back after a while.
type memory struct {
	ledger
	total int64
	late  time.Duration
	mu    sync.Mutex
	dead  map[string]time.Time
}

// free is a pool's Free; all slices are one here.
func (m *memory) free(gpu.Slice) (int64, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	free := m.total
	held, _ := filepath.Glob(m.path("held *"))
	for _, file := range held {
		_, pid, _ := strings.Cut(filepath.Base(file), " ")
		id, _ := strconv.Atoi(pid)
		if syscall.Kill(id, 0) != nil {
			if m.dead[pid].IsZero() {
				m.dead[pid] = time.Now()
			}
			if time.Since(m.dead[pid]) >= m.late {
				continue
			}
		}
		b, _ := os.ReadFile(file)
		n, _ := strconv.ParseInt(string(b), 10, 64)
		free -= n
	}
	return free, true
}

// crash kills every engine with SIGKILL.
func (m *memory) crash() {
	held, _ := filepath.Glob(m.path("held *"))
	for _, file := range held {
		_, pid, _ := strings.Cut(filepath.Base(file), " ")
		if id, _ := strconv.Atoi(pid); id > 1 {
			_ = syscall.Kill(id, syscall.SIGKILL)
		}
	}
}

// plant is the pool over real processes, with a batcher for each model.
type plant struct {
	*pool.Pool
	t        *testing.T
	ledger   ledger
	batchers map[string]*batcher.Batcher
}

// model describes an engine that follows a script.
func (l ledger) model(name, script string, slots int) pool.Model {
	self, _ := os.Executable()
	return pool.Model{Name: name, Slots: slots, Spec: pool.Profile{
		Command: []string{self, "{name}"}, Env: []string{ledgerEnv + "=" + string(l), scriptEnv + "=" + script},
		Announces: true, Sleep: pool.SleepHTTP, Path: "/v1/chat/completions", WarmUp: []byte(`{"canary":true}`),
	}}
}

func newPlant(t *testing.T, l ledger, o pool.Options, queue time.Duration) *plant {
	t.Helper()
	p := &plant{t: t, ledger: l, batchers: map[string]*batcher.Batcher{}}
	log := slog.New(slog.DiscardHandler)
	for _, m := range o.Models {
		b, err := batcher.New(batcher.Options{Model: m.Name, QueueTimeout: queue}, log)
		if err != nil {
			t.Fatal(err)
		}
		p.batchers[m.Name] = b
	}
	o.Publish = func(model string, ready []pool.ReadyReplica) {
		var out []batcher.Replica
		for _, r := range ready {
			out = append(out, batcher.Replica{ID: r.ID, Backend: r.Backend, Slots: r.Slots, Offline: r.Offline, Shape: r.Shape, Index: r.Index})
		}
		p.batchers[model].SetReplicas(out)
	}
	o.OnEvent = func(pool.Event) {}
	run, logs := t.TempDir(), t.TempDir()
	var clients sync.Map
	launcher := pool.Exec{RunDir: run, LogDir: logs, Nice: func(pool.Launch) int { return 0 }, Dial: func(url string) backends.Backend {
		c := openaihttp.New(openaihttp.Options{BaseURL: url})
		clients.Store(c, nil)
		return c
	}}
	if o.Launcher == nil {
		o.Launcher = launcher
	} else {
		o.Launcher = measured{launcher, o.Free, l}
	}
	if o.StartTimeout == 0 {
		o.StartTimeout = 10 * time.Second
	}
	o.DrainTimeout = 5 * time.Second
	if o.StopGrace == 0 {
		o.StopGrace = 5 * time.Second
	}
	if o.BackoffMin == 0 {
		o.BackoffMin = 100 * time.Millisecond
	}
	o.BackoffMax = time.Second
	var err error
	if p.Pool, err = pool.New(o, log); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
		defer cancel()
		if err := p.Close(ctx); err != nil {
			t.Errorf("close pool: %v", err)
		}
		for _, b := range p.batchers {
			if err := b.Close(ctx); err != nil {
				t.Errorf("close batcher: %v", err)
			}
		}
		clients.Range(func(c, _ any) bool { c.(*openaihttp.Client).Close(); return true })
		for _, w := range l.lines("wrong") {
			t.Error("an engine says: " + w)
		}
		if left, _ := os.ReadDir(run); len(left) != 0 {
			t.Errorf("%d processes are left", len(left))
		}
	})
	return p
}

// measured refuses to launch where the memory is not free.
type measured struct {
	pool.Exec
	free func(gpu.Slice) (int64, bool)
	ledger
}

func (m measured) Launch(ctx context.Context, l pool.Launch) (pool.Engine, error) {
	if n, _ := m.free(l.Slice); n < l.Model.Bytes {
		m.wrong("%s was started with %d of %d bytes free", l.Replica, n, l.Model.Bytes)
	}
	return m.Exec.Launch(ctx, l)
}

// stuck is how long a request may take whatever happens; every wait here is far shorter.
const stuck = time.Minute

// ask sends one request and returns an error unless it was answered, or refused
// with a reason and a time to try again.
func (p *plant) ask(model string, ms int) (answered bool) {
	ctx, cancel := context.WithTimeout(p.t.Context(), stuck)
	defer cancel()
	reply, err := p.batchers[model].Submit(ctx, &backends.Request{ID: "r", Endpoint: backends.Chat, Model: model, Path: "/v1/chat/completions",
		Body: fmt.Appendf(nil, `{"ms":%d}`, ms), Arrival: time.Now()})
	if err != nil {
		if re, ok := errors.AsType[*backends.RetryError](err); !ok || re.Reason == "" || re.After <= 0 {
			p.t.Errorf("refused without a reason: %v", err)
		}
		return false
	}
	defer reply.Body.Close()
	if body, err := io.ReadAll(reply.Body); err != nil || reply.Status != 200 || !bytes.Contains(body, []byte("ok")) {
		p.t.Errorf("status %d, %q, %v", reply.Status, body, err)
	}
	return true
}

func (p *plant) find(id string) (pool.Replica, bool) {
	all := p.Replicas()
	i := slices.IndexFunc(all, func(r pool.Replica) bool { return r.ID == id })
	if i < 0 {
		return pool.Replica{State: pool.Stopped}, false
	}
	return all[i], true
}

// reach waits until a replica is in a state.
func (p *plant) reach(id string, want pool.State) pool.Replica {
	p.t.Helper()
	var r pool.Replica
	for end := time.Now().Add(stuck); time.Now().Before(end); time.Sleep(500 * time.Microsecond) {
		if r, _ = p.find(id); r.State == want {
			return r
		}
	}
	p.t.Fatalf("%s is %s (%s), want %s", id, r.State, r.Error, want)
	return r
}

func (p *plant) start(model string, s gpu.Slice) string {
	p.t.Helper()
	id, err := p.Start(model, s, "")
	p.must(err)
	return id
}

func (p *plant) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func onSlice(i int) gpu.Slice {
	return gpu.Slice{ID: fmt.Sprintf("g0/s%d", i), UUID: fmt.Sprintf("MIG-%d", i), Shape: gpu.Shape{Profile: "1g.10gb"}}
}

func seeded(t *testing.T) *rand.Rand {
	seed := rand.Uint64()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	})
	return rand.New(rand.NewPCG(seed, 11))
}

// storm is how long each race below is played.
const storm = 3 * time.Second

// F11: requests that land within a few milliseconds of a sleep are answered: by
// the engine before it sleeps, or after it woke.
func TestF11RequestsAtTheMomentOfSleep(t *testing.T) {
	r := seeded(t)
	l := ledger(t.TempDir())
	p := newPlant(t, l, pool.Options{Models: []pool.Model{l.model("m", "", 2)}}, stuck)
	id := p.start("m", onSlice(0))
	p.reach(id, pool.Ready)
	var asked, sleeps int64
	var answered atomic.Int64
	for end := time.Now().Add(storm); time.Now().Before(end); sleeps++ {
		var calls sync.WaitGroup
		for range 3 {
			asked++
			wait, ms := time.Duration(r.Int64N(int64(10*time.Millisecond))), r.IntN(4)
			calls.Go(func() {
				time.Sleep(wait)
				if p.ask("m", ms) {
					answered.Add(1)
				}
			})
		}
		time.Sleep(5 * time.Millisecond)
		p.must(p.Sleep(id))
		p.reach(id, pool.Sleeping)
		p.must(p.Wake(id))
		calls.Wait()
		p.reach(id, pool.Ready)
	}
	if answered.Load() != asked || asked < 30 {
		t.Errorf("%d of %d requests answered", answered.Load(), asked)
	}
	if starts := l.lines("starts"); len(starts) != 1 {
		t.Errorf("%d processes started, want 1", len(starts))
	}
	t.Logf("%d requests around %d sleeps, all answered by one process", asked, sleeps)
}

// F11: two models share a slice by turns while both are asked for: each request
// is answered in its model's turn, and each turn costs one swap.
func TestF11TwoModelsShareASlice(t *testing.T) {
	r := seeded(t)
	l := ledger(t.TempDir())
	p := newPlant(t, l, pool.Options{Models: []pool.Model{l.model("a", "", 2), l.model("b", "", 2)}}, stuck)
	home := p.start("a", onSlice(0))
	p.reach(home, pool.Ready)
	var answered atomic.Int64
	var calls sync.WaitGroup
	asked, turns := 0, 0
	for end := time.Now().Add(storm); turns < 3 || time.Now().Before(end); turns++ {
		for i := range 6 {
			asked++
			model, wait := []string{"a", "b"}[i%2], time.Duration(r.Int64N(int64(20*time.Millisecond)))
			calls.Go(func() {
				time.Sleep(wait)
				if p.ask(model, 2) {
					answered.Add(1)
				}
			})
		}
		p.must(p.Sleep(home))
		p.reach(home, pool.Sleeping)
		guest := p.start("b", onSlice(0))
		if _, err := p.Start("b", onSlice(0), ""); err == nil {
			t.Error("a second replica was let onto the slice")
		}
		p.reach(guest, pool.Ready)
		if err := p.Wake(home); err == nil {
			t.Error("a sleeper woke beside the one that uses its slice")
		}
		time.Sleep(time.Duration(r.Int64N(int64(30 * time.Millisecond)))) // a residence: b's requests end within it, or in its next turn
		p.must(p.Stop(guest))
		p.reach(guest, pool.Stopped)
		p.must(p.Wake(home))
		p.reach(home, pool.Ready)
	}
	guest := p.start("b", onSlice(1))
	p.reach(guest, pool.Ready)
	calls.Wait()
	if answered.Load() != int64(asked) {
		t.Errorf("%d of %d requests answered", answered.Load(), asked)
	}
	count := map[string]int{}
	for _, model := range l.lines("starts") {
		count[model]++
	}
	if count["a"] != 1 || count["b"] != turns+1 {
		t.Errorf("%v processes started in %d turns, want one of a, one of b a turn and one at the end", count, turns)
	}
	t.Logf("%d requests over %d turns, all answered", asked, turns)
}

// F11: stops, and changes of the model, while clients keep asking: every call at
// an engine ends before it, and once the model is gone each request is refused
// with a reason.
func TestF11StopAndReloadUnderLoad(t *testing.T) {
	r := seeded(t)
	l := ledger(t.TempDir())
	p := newPlant(t, l, pool.Options{Models: []pool.Model{l.model("m", "", 2)}}, 3*time.Second)
	first := p.start("m", onSlice(0))
	p.reach(first, pool.Ready)
	var answered, refused atomic.Int64
	var clients sync.WaitGroup
	done := make(chan struct{})
	for range 4 {
		clients.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if p.ask("m", 3) {
					answered.Add(1)
				} else {
					refused.Add(1)
				}
			}
		})
	}
	steps := 0
	for end := time.Now().Add(storm); time.Now().Before(end); steps++ {
		other := p.start("m", onSlice(1))
		if r.IntN(2) == 0 {
			p.reach(other, pool.Ready)
		}
		time.Sleep(time.Duration(r.Int64N(int64(30 * time.Millisecond)))) // loading, warming or serving
		p.must(p.Stop(other))
		p.reach(other, pool.Stopped)
		if steps%3 == 2 {
			p.must(p.SetModels([]pool.Model{l.model("m", fmt.Sprint("version ", steps), 2)}))
		}
	}
	if refused.Load() != 0 || answered.Load() < 20 {
		t.Errorf("%d requests answered, %d refused while a replica was there", answered.Load(), refused.Load())
	}
	p.must(p.SetModels(nil))
	p.must(p.Retire("m"))
	for end := time.Now().Add(stuck); len(p.Replicas()) > 0 && time.Now().Before(end); time.Sleep(time.Millisecond) {
	}
	if left := p.Replicas(); len(left) != 0 {
		t.Errorf("%+v are left of a retired model", left)
	}
	close(done)
	clients.Wait()
	t.Logf("%d requests answered over %d stops, %d refused after the model had gone", answered.Load(), steps, refused.Load())
}

// F12: an engine that ignores SIGTERM is killed when its grace is over.
func TestF12DeafEngineIsKilled(t *testing.T) {
	const grace = 300 * time.Millisecond
	l := ledger(t.TempDir())
	p := newPlant(t, l, pool.Options{Models: []pool.Model{l.model("m", deaf, 1)}, StopGrace: grace}, stuck)
	id := p.start("m", onSlice(0))
	p.reach(id, pool.Ready)
	began := time.Now()
	p.must(p.Stop(id))
	p.reach(id, pool.Stopped)
	if took := time.Since(began); took < grace || took > grace+time.Minute {
		t.Errorf("stopped after %v, want its grace of %v and little more", took, grace)
	}
	p.reach(p.start("m", onSlice(0)), pool.Ready) // the slice is free, and the first process gone
}

// F12: while a load fails and its replica waits for the next try, waiters are
// told 503 and when to come back; then it works by itself.
func TestF12FirstLoadFails(t *testing.T) {
	const backoff = 3 * time.Second // in which the request below is to come and be refused
	l := ledger(t.TempDir())
	p := newPlant(t, l, pool.Options{Models: []pool.Model{l.model("m", firstFails, 1)}, BackoffMin: backoff}, 100*time.Millisecond)
	url := p.edge()
	post := func() *http.Response {
		t.Helper()
		res, err := http.Post(url+"/v1/chat/completions", "application/json", strings.NewReader(`{"model":"m","messages":[{"role":"user","content":"hi"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
		res.Body.Close()
		return res
	}
	id := p.start("m", onSlice(0))
	if r := p.reach(id, pool.Failed); !strings.Contains(r.Error, "cannot load the model") {
		t.Errorf("failed with %q, want the engine's last words", r.Error)
	} else if in := r.Retry.Sub(r.Since); in <= 0 || in > backoff {
		t.Errorf("starts again %v after it failed, want %v", in, backoff)
	}
	res := post()
	if after, _ := strconv.Atoi(res.Header.Get("Retry-After")); res.StatusCode != 503 || after < 1 || res.Header.Get("X-Aloft-Reason") != "no_replica" {
		t.Errorf("while it is down: %d, Retry-After %q, reason %q", res.StatusCode, res.Header.Get("Retry-After"), res.Header.Get("X-Aloft-Reason"))
	}
	if r := p.reach(id, pool.Ready); r.Restarts != 1 || !r.Retry.IsZero() {
		t.Errorf("ready after %d restarts, want 1; starts again %v, want never", r.Restarts, r.Retry)
	}
	if res := post(); res.StatusCode != 200 {
		t.Errorf("after it came up: %d", res.StatusCode)
	}
}

// edge serves the plant's models over HTTP.
func (p *plant) edge() string {
	p.t.Helper()
	s, err := gateway.New(gateway.Options{}, gateway.Deps{Catalog: catalog{}, Submitter: p.batchers["m"], Observer: nobody{}}, slog.New(slog.DiscardHandler))
	p.must(err)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	p.must(err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, ln) }()
	p.t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			p.t.Errorf("serve: %v", err)
		}
	})
	return "http://" + ln.Addr().String()
}

type nobody struct{}

func (nobody) Observe(gateway.Outcome) {}

type catalog struct{}

func (catalog) Models() []gateway.Model {
	return []gateway.Model{{Name: "m", EngineModel: "m", Endpoints: []backends.Endpoint{backends.Chat}, Created: time.Unix(1700000000, 0), Usable: true}}
}
func (c catalog) Lookup(name string) (gateway.Model, bool) { return c.Models()[0], name == "m" }

// F12: what a crashed or stopped engine held comes back late; the next start on
// the slice waits for that and then works.
func TestF12MemoryComesBackLate(t *testing.T) {
	const late = 700 * time.Millisecond
	l := ledger(t.TempDir())
	mem := &memory{ledger: l, total: engineBytes * 3 / 2, late: late, dead: map[string]time.Time{}}
	m := l.model("m", "", 1)
	m.Bytes = engineBytes
	p := newPlant(t, l, pool.Options{Models: []pool.Model{m}, Free: mem.free, Launcher: measured{}}, stuck)
	id := p.start("m", onSlice(0))
	p.reach(id, pool.Ready)
	began := time.Now()
	mem.crash()
	p.reach(id, pool.Failed)
	if !p.ask("m", 1) { // waits for the restart
		t.Error("a request that waited for the restart was refused")
	}
	if took := time.Since(began); took < late {
		t.Errorf("back %v after the crash, its memory was back after %v", took, late)
	}
	p.reach(id, pool.Ready)
	p.must(p.Stop(id))
	p.reach(id, pool.Stopped)
	began = time.Now()
	p.reach(p.start("m", onSlice(0)), pool.Ready)
	if took := time.Since(began); took < late/2 { // it was counted from the process's end, a little before
		t.Errorf("ready %v after the stop, its memory was back after %v", took, late)
	}
}

// F12: an engine answers sleep with 200 and holds its memory. Whoever is to
// start on the slice fails in time and says why; the sleeper can still wake.
func TestF12SleeperHoldsItsMemory(t *testing.T) {
	for _, c := range []struct {
		script string
		within time.Duration
		want   pool.State
		reason string
	}{
		{"", stuck, pool.Ready, ""},
		{greedy, 8 * time.Second, pool.Failed, "slice g0/s0 has 500 bytes free, n needs 1000: waited"},
	} {
		t.Run(cmp.Or(c.script, "sleeps well"), func(t *testing.T) {
			l := ledger(t.TempDir())
			mem := &memory{ledger: l, total: engineBytes * 3 / 2, dead: map[string]time.Time{}}
			m, n := l.model("m", c.script, 1), l.model("n", "", 1)
			m.Bytes, n.Bytes = engineBytes, engineBytes
			p := newPlant(t, l, pool.Options{Models: []pool.Model{m, n}, Free: mem.free, Launcher: measured{}, StartTimeout: c.within}, stuck)
			sleeper := p.start("m", onSlice(0))
			p.reach(sleeper, pool.Ready)
			p.must(p.Sleep(sleeper))
			p.reach(sleeper, pool.Sleeping)
			guest, err := p.Start("n", onSlice(0), "job_1")
			p.must(err)
			if r := p.reach(guest, c.want); !strings.Contains(r.Error, c.reason) {
				t.Errorf("guest is %s: %q, want %q", r.State, r.Error, c.reason)
			}
			p.must(p.Stop(guest))
			p.reach(guest, pool.Stopped)
			p.must(p.Wake(sleeper))
			p.reach(sleeper, pool.Ready)
			if !p.ask("m", 1) {
				t.Error("the sleeper woke and does not serve")
			}
		})
	}
}
