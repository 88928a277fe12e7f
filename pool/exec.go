package pool

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"aloft/backends"
	"aloft/gpu/proc"
)

// Profile describes how a kind of engine is started, and how it sleeps.
type Profile struct {
	// Command is the argument list; {port}, {slots}, {name}, the slice's
	// {compute} and {memory} (its MIG compute and memory slices) and the keys
	// of Vars are filled in. No shell reads it.
	Command []string
	Vars    map[string]string
	Env     []string
	// Announces: the engine is started with {port} 0 and prints one JSON line
	// {"listening":"host:port"} (ours). Else a free port is picked for it.
	Announces bool
	Sleep     SleepMode
	// WarmUp is sent once to Path before the replica counts as ready.
	Path   string
	WarmUp []byte
}

// SleepMode is how an engine of a profile goes to sleep.
type SleepMode string

// The sleep modes. HTTP is vLLM's: POST /sleep?level=1 and /wake_up.
const (
	SleepHTTP  SleepMode = "http"
	SleepPause SleepMode = "pause" // SIGSTOP: keeps all memory, gives up the CPU
)

// Exec launches engines as processes of their own; it implements Launcher. Each
// Model's Spec must be a Profile.
type Exec struct {
	Dial   func(baseURL string) backends.Backend
	Nice   func(Launch) int
	RunDir string // pid files
	LogDir string // one file a replica, one a slice for what is lent; cut at maxLog
}

const (
	maxLog      = 4 << 20 // bytes
	pollEvery   = 20 * time.Millisecond
	pollTimeout = 5 * time.Second // of one look; the engine may hang in it

	probeEvery   = 3 * time.Second // between health checks of a running engine
	probeTimeout = 8 * time.Second // generous: a lent engine runs at a low CPU share
	probeMisses  = 2
)

// Launch implements Launcher.
func (x Exec) Launch(ctx context.Context, l Launch) (Engine, error) {
	profile, ok := l.Model.Spec.(Profile)
	if !ok {
		return nil, fmt.Errorf("launch %s: no engine profile", l.Replica)
	}
	log, err := openLog(filepath.Join(x.LogDir, logName(l)))
	if err != nil {
		return nil, fmt.Errorf("launch %s: %w", l.Replica, err)
	}
	out := &announcement{addr: make(chan string, 1), log: log}
	port := "0"
	if !profile.Announces {
		if port, err = freePort(); err != nil {
			log.close()
			return nil, fmt.Errorf("launch %s: %w", l.Replica, err)
		}
		out.addr <- net.JoinHostPort("127.0.0.1", port)
	}
	argv := profile.argv(l, port)
	p, err := proc.Start(ctx, proc.Spec{
		Name: "replica " + l.Replica, Path: argv[0], Args: argv[1:], Nice: x.Nice(l), RunDir: x.RunDir,
		Env:    append(append(proc.BaseEnv(), profile.Env...), "CUDA_VISIBLE_DEVICES="+l.Slice.UUID, "ALOFT_SLICE="+l.Slice.ID),
		Stdout: out, Stderr: log,
	})
	if err != nil {
		log.close()
		return nil, err
	}
	e := &process{Process: p, profile: profile, log: log, adapters: l.Model.Adapters, has: l.Has}
	if err := e.reach(ctx, out.addr, x.Dial); err != nil {
		e.Stop(0)
		return nil, fmt.Errorf("launch %s: %w%s", l.Replica, err, log.tail())
	}
	e.probes.Go(e.probe)
	if l.Said != nil {
		r := reader{url: e.base + "/metrics", asleep: e.asleep.Load, said: l.Said, every: readEvery, timeout: readTimeout, silence: readSilence, rarely: readRarely}
		e.probes.Go(func() { r.run(e.Process.Done()) })
	}
	return e, nil
}

// logName is a file of its own for each serving replica. Loans come and go, so
// those of one model on one slice follow each other in one file. Models are
// often called OWNER/NAME.
func logName(l Launch) string {
	name := l.Replica
	if l.Offline {
		name = l.Model.Name + "@" + l.Slice.ID
	}
	return strings.ReplaceAll(name, "/", "-") + ".log"
}

func (p Profile) argv(l Launch, port string) []string {
	pairs := []string{"{port}", port, "{name}", l.Model.Name, "{slots}", strconv.Itoa(l.Model.Slots),
		"{compute}", strconv.Itoa(l.Slice.Shape.ComputeSlices), "{memory}", strconv.Itoa(l.Slice.Shape.MemorySlices)}
	for k, v := range p.Vars {
		pairs = append(pairs, "{"+k+"}", v)
	}
	fill := strings.NewReplacer(pairs...)
	argv := make([]string, len(p.Command))
	for i, a := range p.Command {
		argv[i] = fill.Replace(a)
	}
	return argv
}

// process is an engine in an OS process.
type process struct {
	*proc.Process
	profile Profile
	base    string
	backend backends.Backend
	log     *logFile

	adapters []string // to look for
	has      func([]string)

	asleep atomic.Bool
	probes sync.WaitGroup
}

// probe ends an engine that stops answering its health check, so that its calls
// break and go to another replica instead of waiting for it (docs/failures.md F2).
// A sleeping engine is not asked: it may be paused.
func (e *process) probe() {
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for missed := 0; missed < probeMisses; {
		select {
		case <-tick.C:
		case <-e.Process.Done():
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
		err := e.request(ctx, http.MethodGet, "/health", nil)
		if err == nil {
			_ = e.list(ctx) // what it had before is the best guess
		}
		cancel()
		if missed++; err == nil || e.asleep.Load() {
			missed = 0
		}
	}
	fmt.Fprintf(e.log, "engine silent for %d health checks of %v: ended\n", probeMisses, probeTimeout)
	e.Process.Stop(0)
}

// reach waits for the address and for /health to answer 200.
func (e *process) reach(ctx context.Context, addr <-chan string, dial func(string) backends.Backend) error {
	select {
	case a := <-addr:
		e.base = "http://" + a
	case <-e.Process.Done():
		return fmt.Errorf("engine ended before it listened: %v", e.Wait())
	case <-ctx.Done():
		return fmt.Errorf("engine did not say where it listens: %w", context.Cause(ctx))
	}
	e.backend = dial(e.base)
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		look, cancel := context.WithTimeout(ctx, pollTimeout)
		err := e.request(look, http.MethodGet, "/health", nil)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-e.Process.Done():
			return fmt.Errorf("engine ended while it loaded: %v", e.Wait())
		case <-ctx.Done():
			return fmt.Errorf("engine not healthy in time: %w", context.Cause(ctx))
		}
	}
}

// Backend implements Engine.
func (e *process) Backend() backends.Backend { return e.backend }

// WarmUp implements Engine.
func (e *process) WarmUp(ctx context.Context) error {
	if e.profile.Path != "" {
		if err := e.request(ctx, http.MethodPost, e.profile.Path, e.profile.WarmUp); err != nil {
			return err
		}
	}
	return e.list(ctx)
}

// list tells which of the model's adapters the engine lists.
func (e *process) list(ctx context.Context) error {
	if len(e.adapters) == 0 {
		return nil
	}
	text, err := e.ask(ctx, http.MethodGet, "/v1/models", nil)
	if err != nil {
		return err
	}
	have, err := listed(text, e.adapters)
	if err != nil {
		return fmt.Errorf("GET /v1/models: %w", err)
	}
	e.has(have)
	return nil
}

// listed picks from an engine's list of models those that are wanted.
func listed(text []byte, wanted []string) (have []string, err error) {
	var list struct{ Data []struct{ ID string } }
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, err
	}
	for _, name := range wanted {
		if slices.ContainsFunc(list.Data, func(m struct{ ID string }) bool { return m.ID == name }) {
			have = append(have, name)
		}
	}
	return have, nil
}

// Sleep implements Engine.
func (e *process) Sleep(ctx context.Context, asleep bool) error {
	if asleep {
		e.asleep.Store(true)
	} else {
		defer e.asleep.Store(false)
	}
	switch {
	case e.profile.Sleep == SleepPause && asleep:
		return e.Pause()
	case e.profile.Sleep == SleepPause:
		return e.Resume()
	case asleep:
		return e.request(ctx, http.MethodPost, "/sleep?level=1", nil)
	}
	return e.request(ctx, http.MethodPost, "/wake_up", nil)
}

// Stop implements Engine.
func (e *process) Stop(grace time.Duration) {
	e.Process.Stop(grace)
	e.probes.Wait()
	e.log.close()
}

// request asks the engine for something that is not a client's call; ctx bounds it.
func (e *process) request(ctx context.Context, method, path string, body []byte) error {
	_, err := e.ask(ctx, method, path, body)
	return err
}

// ask is a request whose answer matters, up to 1 MiB of it.
func (e *process) ask(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, e.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if resp.StatusCode >= 300 {
		return nil, fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, bytes.TrimSpace(text[:min(len(text), 300)]))
	}
	return text, err
}

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("pick a port: %w", err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}

// announcement reads an engine's first line of output, and logs the rest.
type announcement struct {
	addr chan string
	log  *logFile
	head []byte
	read bool
}

// Write implements io.Writer.
func (a *announcement) Write(b []byte) (int, error) {
	if !a.read {
		a.head = append(a.head, b[:min(len(b), 4096)]...)
		if line, _, found := bytes.Cut(a.head, []byte("\n")); found || len(a.head) > 4096 {
			a.read = true
			var v struct{ Listening string }
			if json.Unmarshal(line, &v) == nil && v.Listening != "" {
				select {
				case a.addr <- v.Listening:
				default:
				}
			}
		}
	}
	return a.log.Write(b)
}

// logFile is a file that stops growing at maxLog; what follows is dropped.
type logFile struct {
	path string
	mu   sync.Mutex // output and errors are copied by two goroutines
	file *os.File
	left int
}

func openLog(path string) (*logFile, error) {
	f, err := os.Create(path)
	return &logFile{path: path, file: f, left: maxLog}, err
}

// Write implements io.Writer; it never fails, so that a full disk does not end an engine.
func (f *logFile) Write(b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := min(len(b), f.left)
	f.left -= n
	_, _ = f.file.Write(b[:n])
	return len(b), nil
}

func (f *logFile) close() { _ = f.file.Close() }

// tail returns the last line of the log, for an error message.
func (f *logFile) tail() string {
	b, err := os.ReadFile(f.path)
	if err != nil {
		return ""
	}
	sc := bufio.NewScanner(bytes.NewReader(b[max(0, len(b)-4096):]))
	last := ""
	for sc.Scan() {
		if t := strings.TrimSpace(sc.Text()); t != "" {
			last = t
		}
	}
	if last == "" {
		return ""
	}
	return ": " + last
}
