package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"aloft/backends/llama"
)

// These tests run the real binary, with real engines as its children, on a
// machine that may be busy: what must happen is bounded by patience, and no
// test judges speed.
const patience = 3 * time.Minute

// repository is the root of the checkout.
var repository = func() string { p, _ := filepath.Abs("../.."); return p }()

// scratch holds the binary; TestMain removes it.
var scratch string

func TestMain(m *testing.M) {
	var err error
	if scratch, err = os.MkdirTemp("", "aloft-e2e-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(scratch)
	os.Exit(code)
}

// build makes the binary as `make build` does, once and only when a test runs
// it. ALOFT_TEST_BINARY names one that is there already.
var build = sync.OnceValues(func() (string, error) {
	bin := filepath.Join(scratch, "aloft")
	if b := os.Getenv("ALOFT_TEST_BINARY"); b != "" {
		// A copy, away from the checkout: what lies beside a binary is found by it.
		text, err := os.ReadFile(b)
		if err != nil {
			return "", err
		}
		return bin, os.WriteFile(bin, text, 0o755)
	}
	cmd := exec.Command("go", "build", "-trimpath", "-o", bin, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return bin, nil
})

// needLibrary skips a test that needs llama.cpp's shared libraries, and returns
// their folder.
func needLibrary(t *testing.T) string {
	t.Helper()
	for _, dir := range []string{os.Getenv("ALOFT_ENGINE_LIB"), filepath.Join(repository, ".engine")} {
		if dir == "" {
			continue
		}
		if lib, err := llama.LibraryFolder(dir); err == nil {
			lib, _ = filepath.Abs(lib)
			return lib
		}
	}
	t.Skip("no engine library: run `make engine`, or set ALOFT_ENGINE_LIB")
	return ""
}

// command is one run of the binary.
type command struct {
	*exec.Cmd
	out, err output
	home     string        // marks every process of this run: see running
	done     chan struct{} // closed at the end
}

// output is what a process wrote so far.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// aloft starts the binary in an empty environment but for env. HOME is a folder
// of this run alone; the server hands it to its engines, and LANG, which names it
// too, to its jobs, whose home is their own: that is how a test finds them. Whatever
// is left at the test's end is killed.
func aloft(t *testing.T, env []string, args ...string) *command {
	t.Helper()
	bin, err := build()
	if err != nil {
		t.Fatal(err)
	}
	c := &command{Cmd: exec.Command(bin, args...), home: t.TempDir(), done: make(chan struct{})}
	c.Dir, c.Stdout, c.Stderr = c.home, &c.out, &c.err
	c.Env = append([]string{c.path(), "HOME=" + c.home, "TMPDIR=" + c.home}, env...)
	c.WaitDelay = 5 * time.Second
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = c.Cmd.Wait(); close(c.done) }()
	t.Cleanup(func() {
		for _, pid := range c.running() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		<-c.done
	})
	return c
}

// path is what all processes of this run have in their environment, jobs too,
// whose HOME is their own: a search path that ends in its folder.
func (c *command) path() string { return "PATH=" + os.Getenv("PATH") + ":" + c.home }

// running lists the processes of this run: itself and all below it.
func (c *command) running() []int { return processes(c.path()) }

// processes lists those whose environment holds an entry.
func processes(entry string) []int {
	var out []int
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil || !bytes.Contains(append([]byte{0}, b...), []byte("\x00"+entry+"\x00")) {
			continue
		}
		var pid int
		if _, err := fmt.Sscanf(f, "/proc/%d/", &pid); err == nil {
			out = append(out, pid)
		}
	}
	return out
}

// ended waits for the process's end and returns its exit code.
func (c *command) ended(t *testing.T, within time.Duration) int {
	t.Helper()
	select {
	case <-c.done:
	case <-time.After(within):
		t.Fatalf("%v still runs after %v\n%s", c.Args, within, c.err.String())
	}
	return c.ProcessState.ExitCode()
}

// gone checks that nothing of this run is left.
func (c *command) gone(t *testing.T) {
	t.Helper()
	var left []int
	if !eventually(10*time.Second, func() bool { left = c.running(); return len(left) == 0 }) {
		for _, pid := range left {
			line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			t.Errorf("process %d is left: %s", pid, bytes.ReplaceAll(line, []byte{0}, []byte{' '}))
		}
	}
}

// call runs the binary to its end, which must be a success, and returns what it
// printed.
func call(t *testing.T, env []string, args ...string) string {
	t.Helper()
	c := aloft(t, env, args...)
	if code := c.ended(t, patience); code != 0 {
		t.Fatalf("aloft %v: exit code %d\n%s%s", args, code, c.out.String(), c.err.String())
	}
	return c.out.String()
}

// eventually asks until ok says so, for at most within.
func eventually(within time.Duration, ok func() bool) bool {
	for limit := time.Now().Add(within); ; time.Sleep(50 * time.Millisecond) {
		if ok() {
			return true
		}
		if time.Now().After(limit) {
			return false
		}
	}
}

// instance is a running server.
type instance struct {
	*command
	data, url string
}

// start starts a server on a port of its own and waits until it is ready.
func start(t *testing.T, data string, env []string, args ...string) *instance {
	t.Helper()
	_ = os.Remove(filepath.Join(data, "run", "address")) // of an earlier server
	args = append([]string{"serve", "--listen", "127.0.0.1:0", "--data", data}, args...)
	s := &instance{command: aloft(t, env, args...), data: data}
	if !s.ready() {
		t.Fatalf("aloft serve is not ready\n%s%s", s.out.String(), s.err.String())
	}
	return s
}

// ready waits until the server says so, and reports whether it did.
func (s *instance) ready() bool {
	ok := false
	eventually(patience, func() bool {
		select {
		case <-s.done:
			return true
		default:
		}
		b, err := os.ReadFile(filepath.Join(s.data, "run", "address"))
		s.url = strings.TrimSpace(string(b))
		ok = err == nil && s.get("/readyz", nil) == nil
		return ok
	})
	return ok
}

// quickStart starts the built-in configuration with real engines.
func quickStart(t *testing.T, args ...string) *instance {
	t.Helper()
	return start(t, t.TempDir(), []string{"ALOFT_ENGINE_LIB=" + needLibrary(t)}, args...)
}

// stop asks the server to end and checks that it does so well.
func (s *instance) stop(t *testing.T) {
	t.Helper()
	_ = s.Process.Signal(syscall.SIGTERM)
	s.stopped(t)
}

// stopped checks that a server that was asked to end does so well.
func (s *instance) stopped(t *testing.T) {
	t.Helper()
	if code := s.ended(t, stopBound+10*time.Second); code != 0 {
		t.Errorf("exit code %d after SIGTERM\n%s", code, s.err.String())
	}
	s.gone(t)
	if strings.Contains(s.err.String(), "panic") {
		t.Errorf("a panic in the log:\n%s", s.err.String())
	}
}

// get decodes an answer into out: a *string takes it as it is, nil drops it.
func (s *instance) get(path string, out any) error {
	return s.ask(http.MethodGet, path, nil, out)
}

func (s *instance) ask(method, path string, in, out any) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, s.url+path, body)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Close = true // an idle connection would live longer than the test
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %s: %.300s", method, path, resp.Status, text)
	}
	switch out := out.(type) {
	case nil:
		return nil
	case *string:
		*out = string(text)
		return nil
	}
	return json.Unmarshal(text, out)
}

// embed asks for one embedding and returns its width.
func (s *instance) embed(model, text string) (int, error) {
	var v struct {
		Data []struct{ Embedding []float64 }
	}
	err := s.ask(http.MethodPost, "/v1/embeddings", map[string]any{"model": model, "input": text}, &v)
	if err == nil && len(v.Data) != 1 {
		err = errors.New("not one row")
	}
	if err != nil {
		return 0, err
	}
	return len(v.Data[0].Embedding), nil
}

// write puts text into a new file and returns its path.
func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}
