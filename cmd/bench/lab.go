package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"aloft/gpu/proc"
)

// lab is where benchmarks run: the binary under test and a folder that goes away.
type lab struct {
	bin   string
	dir   string
	quick bool
	env   []string // of what is started, besides proc.BaseEnv

	setRounds int           // 0 = as many as there should be
	setSpan   time.Duration // of a cell; 0 = likewise
}

// newLab builds the binary from the tree as it stands, so that the commit that a
// report names is the one that was measured.
func newLab(ctx context.Context, bin string, quick bool) (*lab, error) {
	if _, err := os.Stat("cmd/bench/servers"); err != nil {
		return nil, fmt.Errorf("run this in the repository's root: %w", err)
	}
	dir, err := os.MkdirTemp("", "aloft-bench-")
	if err != nil {
		return nil, err
	}
	l := &lab{bin: bin, dir: dir, quick: quick}
	if bin == "" {
		l.bin = filepath.Join(dir, "aloft")
		build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", l.bin, "./cmd/aloft")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if text, err := build.CombinedOutput(); err != nil {
			l.close()
			return nil, fmt.Errorf("build aloft: %w\n%s", err, text)
		}
	}
	return l, nil
}

func (l *lab) close() { os.RemoveAll(l.dir) }

// rounds is how often everything is measured. Noise of a shared machine only
// ever makes things slower, so that the best round is the least disturbed one.
func (l *lab) rounds() int {
	switch {
	case l.setRounds > 0:
		return l.setRounds
	case l.quick:
		return 2
	}
	return 5
}

// span is how long one cell of a round is measured.
func (l *lab) span(d time.Duration) time.Duration {
	switch {
	case l.setSpan > 0:
		return l.setSpan
	case l.quick:
		return d / 4
	}
	return d
}

func (l *lab) say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// child is one running aloft process and the folder that holds its data and output.
type child struct {
	*proc.Process
	*client
	began time.Time
	dir   string
}

// pollEvery is how exactly the time of a start is known.
const pollEvery = time.Millisecond

// start runs the binary in a fresh data folder.
func (l *lab) start(ctx context.Context, args ...string) (*child, error) {
	dir, err := os.MkdirTemp(l.dir, args[0]+"-")
	if err != nil {
		return nil, err
	}
	return l.startIn(ctx, dir, args...)
}

// startIn runs the binary in a data folder that may hold something.
func (l *lab) startIn(ctx context.Context, dir string, args ...string) (*child, error) {
	out, err := os.Create(filepath.Join(dir, "output"))
	if err != nil {
		return nil, err
	}
	defer out.Close() // the child has its own copy
	env := append(append(proc.BaseEnv(), l.env...), "ALOFT_DATA="+dir)
	if lib := os.Getenv("ALOFT_ENGINE_LIB"); lib != "" {
		env = append(env, "ALOFT_ENGINE_LIB="+lib)
	}
	c := &child{began: time.Now(), dir: dir}
	c.Process, err = proc.Start(ctx, proc.Spec{Name: "aloft " + args[0], Path: l.bin, Args: args, Env: env, Stdout: out, Stderr: out})
	return c, err
}

// serve starts a server with one of the configurations in servers/ and waits
// until it is ready and every model has a warm replica.
func (l *lab) serve(ctx context.Context, config string) (*child, error) {
	c, err := l.startServer(ctx, filepath.Join("cmd", "bench", "servers", config))
	if err != nil {
		return nil, err
	}
	err = c.await(ctx, "every model is ready", func() bool {
		s, err := c.status(ctx)
		for _, m := range s.Models {
			if m.State != "ready" {
				return false
			}
		}
		return err == nil
	})
	if err != nil {
		c.stop()
		return nil, err
	}
	return c, nil
}

// startServer starts a server and waits until /readyz answers 200. No file is
// the quick start.
func (l *lab) startServer(ctx context.Context, file string) (*child, error) {
	dir, err := os.MkdirTemp(l.dir, "serve-")
	if err != nil {
		return nil, err
	}
	return l.startServerIn(ctx, dir, file)
}

// startServerIn does so in a data folder that may hold something.
func (l *lab) startServerIn(ctx context.Context, dir, file string) (*child, error) {
	args := []string{"serve", "--listen", "127.0.0.1:0"}
	if file != "" {
		args = append(args, "--config", file)
	}
	c, err := l.startIn(ctx, dir, args...)
	if err != nil {
		return nil, err
	}
	err = c.await(ctx, "it is ready", func() bool {
		if c.client == nil {
			b, err := os.ReadFile(filepath.Join(c.dir, "run", "address"))
			if err != nil {
				return false
			}
			c.client = newClient(strings.TrimSpace(string(b)))
		}
		return c.get(ctx, "/readyz", nil) == nil
	})
	if err != nil {
		c.stop()
		return nil, err
	}
	return c, nil
}

// startEngine starts an engine of our own and waits until it is healthy.
func (l *lab) startEngine(ctx context.Context, args ...string) (*child, error) {
	c, err := l.start(ctx, append([]string{"engine"}, args...)...)
	if err != nil {
		return nil, err
	}
	err = c.await(ctx, "the engine is healthy", func() bool {
		if c.client == nil {
			base, err := announced(filepath.Join(c.dir, "output"))
			if err != nil {
				return false
			}
			c.client = newClient(base)
		}
		return c.get(ctx, "/health", nil) == nil
	})
	if err != nil {
		c.stop()
		return nil, err
	}
	return c, nil
}

// announced reads where an engine listens from the first line of its output.
func announced(file string) (base string, err error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	var v struct{ Listening string }
	if err := json.NewDecoder(io.LimitReader(f, 4096)).Decode(&v); err != nil {
		return "", fmt.Errorf("%s: %w", file, err)
	}
	if v.Listening == "" {
		return "", fmt.Errorf("%s: no engine announced itself", file)
	}
	return "http://" + v.Listening, nil
}

// await polls until ok, the child's end or ctx's.
func (c *child) await(ctx context.Context, what string, ok func() bool) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-c.Done():
			return fmt.Errorf("waiting until %s: the process ended (%v): %s", what, c.Wait(), c.tail())
		case <-ctx.Done():
			return fmt.Errorf("waiting until %s: %w: %s", what, context.Cause(ctx), c.tail())
		}
	}
	return nil
}

// tail is the end of the child's output, for an error message.
func (c *child) tail() string {
	b, _ := os.ReadFile(filepath.Join(c.dir, "output"))
	return strings.TrimSpace(string(b[max(0, len(b)-600):]))
}

func (c *child) stop() {
	c.Stop(30 * time.Second)
	if c.client != nil {
		c.http.CloseIdleConnections()
	}
}

// status is what benchmarks read of /aloft/v1/status.
type status struct {
	Models []struct{ State string }
}

func (c *child) status(ctx context.Context) (status, error) {
	var s status
	err := c.get(ctx, "/aloft/v1/status", &s)
	if err == nil && len(s.Models) == 0 {
		err = errors.New("the server has no models")
	}
	return s, err
}
