package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"aloft/gpu/proc"
)

// stage is where the gateways stand: all in front of one stub, which Aloft has
// started as a replica.
type stage struct {
	l       *lab
	self    string // this program
	server  *child // Aloft
	key     string // that Aloft takes
	targets []*target
	stops   []func()
}

// The targets' names, in the order of the columns.
const (
	straight = "straight"
	bare     = "bare proxy"
	nginx    = "nginx"
	through  = "aloft"
	portkey  = "portkey"
)

// build starts everything. What an operator may not have, nginx and Portkey, is
// absent instead.
func (l *lab) build(ctx context.Context) (*stage, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	s := &stage{l: l, self: self}
	if err := s.fill(ctx); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *stage) fill(ctx context.Context) error {
	if err := s.aloft(ctx); err != nil {
		return fmt.Errorf("aloft: %w", err)
	}
	var stub string
	err := s.server.await(ctx, "the stub has announced itself", func() (ok bool) {
		base, err := announced(filepath.Join(s.server.dir, "logs", stubModel+"-1.log"))
		stub = strings.TrimPrefix(base, "http://")
		return err == nil
	})
	if err != nil {
		return err
	}
	for name, start := range map[string]func(context.Context, string) (*target, error){bare: s.bare, nginx: s.nginx, portkey: s.portkey} {
		t, err := start(ctx, stub)
		var missing *missingError
		if errors.As(err, &missing) {
			t, err = &target{absent: missing.why}, nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		t.name = name
		s.targets = append(s.targets, t)
	}
	s.targets = append(s.targets, &target{name: straight, addr: stub, pids: childrenOf(s.server.PID())}, s.front())
	return nil
}

// front is the target that Aloft is.
func (s *stage) front() *target {
	return &target{name: through, addr: strings.TrimPrefix(s.server.base, "http://"), pids: []int{s.server.PID()},
		fields: "Authorization: Bearer " + s.key + "\r\n"}
}

func (s *stage) named(name string) *target {
	for _, t := range s.targets {
		if t.name == name {
			return t
		}
	}
	panic("BUG: no target " + name)
}

func (s *stage) close() {
	for i := len(s.stops) - 1; i >= 0; i-- {
		s.stops[i]()
	}
}

// missingError says what is not installed here.
type missingError struct{ why string }

func (e *missingError) Error() string { return e.why }

// limitedKey is the API key of the benchmark's requests, with limits that are
// never reached.
const limitedKey = "sk-aloft-0000000000000000-limited"

// keyFile has the key with every limit that is kept for each request.
func keyFile() []byte {
	return fmt.Appendf(nil, "keys:\n  - {id: bench, sha256: %s, tenant: bench, requests_per_minute: 1000000000, tokens_per_minute: 1000000000000, "+
		"parallel: 1000000, tokens_per_month: 1000000000000}\n", hashOf(limitedKey))
}

func hashOf(secret string) string {
	hash := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(hash[:])
}

// gatewayConfig fills in the configuration of `aloft serve`.
func gatewayConfig(text []byte, self, keys string) []byte {
	return []byte(strings.NewReplacer("[BENCH,", "["+strconv.Quote(self)+",", ": KEYFILE", ": "+strconv.Quote(keys)).Replace(string(text)))
}

// aloft starts the server with tracing on: every request has its ids made and
// sent on, one in ten is recorded and exported to a sink.
func (s *stage) aloft(ctx context.Context) error {
	text, err := os.ReadFile(filepath.Join("cmd", "bench", "servers", "gateway.yaml"))
	if err != nil {
		return err
	}
	file, keys := filepath.Join(s.l.dir, "gateway.yaml"), filepath.Join(s.l.dir, "gateway-keys.yaml")
	if err := errors.Join(os.WriteFile(keys, keyFile(), 0o600), os.WriteFile(file, gatewayConfig(text, s.self, keys), 0o600)); err != nil {
		return err
	}
	sink, err := s.sink()
	if err != nil {
		return err
	}
	traced := *s.l
	traced.env = append(slices.Clone(s.l.env), "OTEL_EXPORTER_OTLP_ENDPOINT="+sink, "OTEL_TRACES_SAMPLER=parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG=0.1")
	if s.server, err = traced.startServer(ctx, file); err != nil {
		return err
	}
	s.stops = append(s.stops, s.server.stop)
	s.key = limitedKey
	return nil
}

// sink takes what is exported by OTLP and forgets it.
func (s *stage) sink() (base string, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // whoever sends has his own error
		w.Header().Set("Content-Type", "application/x-protobuf")
	})}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = srv.Serve(l) }() // returns when it is closed
	s.stops = append(s.stops, func() { srv.Close(); <-ended })
	return "http://" + l.Addr().String(), nil
}

// spawn runs a program with its output in a file.
func (s *stage) spawn(ctx context.Context, name, path string, args ...string) (*child, error) {
	dir, err := os.MkdirTemp(s.l.dir, name+"-")
	if err != nil {
		return nil, err
	}
	out, err := os.Create(filepath.Join(dir, "output"))
	if err != nil {
		return nil, err
	}
	defer out.Close()
	c := &child{began: time.Now(), dir: dir}
	c.Process, err = proc.Start(ctx, proc.Spec{Name: name, Path: path, Args: args, Dir: dir, Env: append(proc.BaseEnv(), s.l.env...), Stdout: out, Stderr: out})
	if err == nil {
		s.stops = append(s.stops, c.stop)
	}
	return c, err
}

func (s *stage) bare(ctx context.Context, upstream string) (*target, error) {
	c, err := s.spawn(ctx, "proxy", s.self, "as", "proxy", "127.0.0.1:0", upstream)
	if err != nil {
		return nil, err
	}
	t := &target{pids: []int{c.PID()}}
	err = c.await(ctx, "it listens", func() bool {
		base, err := announced(filepath.Join(c.dir, "output"))
		t.addr = strings.TrimPrefix(base, "http://")
		return err == nil
	})
	return t, err
}

const nginxWorkers = 2

// nginxConfig is a plain proxy with connections kept on both sides.
const nginxConfig = `daemon off;
worker_processes %[4]d;
pid %[1]s/pid;
error_log %[1]s/error.log;
events { worker_connections 4096; }
http {
  access_log off;
  keepalive_requests 1000000000;
  keepalive_timeout 600s;
  client_body_temp_path %[1]s/client;
  proxy_temp_path %[1]s/proxy;
  fastcgi_temp_path %[1]s/fastcgi;
  uwsgi_temp_path %[1]s/uwsgi;
  scgi_temp_path %[1]s/scgi;
  upstream stub { server %[3]s; keepalive 256; keepalive_requests 1000000000; keepalive_timeout 600s; }
  server {
    listen %[2]s;
    location / { proxy_pass http://stub; proxy_http_version 1.1; proxy_set_header Connection ""; }
  }
}
`

func (s *stage) nginx(ctx context.Context, upstream string) (*target, error) {
	path, err := exec.LookPath("nginx")
	if err != nil {
		path = "/usr/sbin/nginx" // Debian's place, which users' PATHs leave out
		if _, err := os.Stat(path); err != nil {
			return nil, &missingError{"nginx is not installed"}
		}
	}
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(s.l.dir, "nginx-conf-")
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(file, fmt.Appendf(nil, nginxConfig, dir, addr, upstream, nginxWorkers), 0o600); err != nil {
		return nil, err
	}
	c, err := s.spawn(ctx, "nginx", path, "-e", filepath.Join(dir, "error.log"), "-c", file)
	if err != nil {
		return nil, err
	}
	if err := c.awaitAddr(ctx, addr); err != nil {
		return nil, err
	}
	// The master listens before it has its workers, which do all the work.
	workers := childrenOf(c.PID())
	for end := time.Now().Add(5 * time.Second); len(workers) < nginxWorkers; workers = childrenOf(c.PID()) {
		if time.Now().After(end) {
			return nil, fmt.Errorf("nginx has %d workers after 5 s, want %d", len(workers), nginxWorkers)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return &target{addr: addr, pids: workers}, nil
}

// portkey runs the version that the lock file names, fetched once into the
// user's cache.
func (s *stage) portkey(ctx context.Context, upstream string) (*target, error) {
	dir, err := nodePackages(ctx, filepath.Join("cmd", "bench", "portkey"))
	if err != nil {
		return nil, &missingError{"not installed: " + err.Error()}
	}
	node, err := exec.LookPath("node")
	if err != nil {
		return nil, &missingError{"node is not installed"}
	}
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(addr)
	quiet := *s
	quiet.l = &lab{dir: s.l.dir, env: []string{"NODE_ENV=production", "TRUSTED_CUSTOM_HOSTS=127.0.0.1"}}
	c, err := quiet.spawn(ctx, "portkey", node, filepath.Join(dir, "node_modules", "@portkey-ai", "gateway", "build", "start-server.js"), "--port="+port, "--headless")
	s.stops = quiet.stops
	if err != nil {
		return nil, err
	}
	if err := c.awaitAddr(ctx, addr); err != nil {
		return nil, err
	}
	return &target{addr: addr, pids: []int{c.PID()},
		fields: "Authorization: Bearer none\r\nx-portkey-provider: openai\r\nx-portkey-custom-host: http://" + upstream + "/v1\r\n"}, nil
}

// nodePackages returns a folder with what the lock file in source names.
func nodePackages(ctx context.Context, source string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "aloft", "bench-"+filepath.Base(source))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	want, err := os.ReadFile(filepath.Join(source, "package-lock.json"))
	if err != nil {
		return "", err
	}
	done := filepath.Join(dir, "fetched.json")
	if have, err := os.ReadFile(done); err == nil && bytes.Equal(have, want) {
		return dir, nil
	}
	for _, name := range []string{"package.json", "package-lock.json"} {
		b, err := os.ReadFile(filepath.Join(source, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), b, 0o644)
		}
		if err != nil {
			return "", err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--omit=dev")
	cmd.Dir, cmd.WaitDelay = dir, time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm ci: %w: %.200s", err, out)
	}
	return dir, os.WriteFile(done, want, 0o644)
}

// freeAddr is an address that nobody listened on just now.
func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// awaitAddr waits until somebody listens.
func (c *child) awaitAddr(ctx context.Context, addr string) error {
	return c.await(ctx, "it listens", func() bool {
		conn, err := net.DialTimeout("tcp", addr, time.Second)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
}

// childrenOf lists the processes that a process has started.
func childrenOf(parent int) []int {
	var out []int
	stats, _ := filepath.Glob("/proc/[0-9]*/stat") // none where there is no /proc
	for _, file := range stats {
		if pid, p, _ := readStat(file); p == parent {
			out = append(out, pid)
		}
	}
	return out
}

// cpuTime is the CPU time in seconds that the target's processes have used.
func (t *target) cpuTime() float64 {
	var sum float64
	for _, pid := range t.pids {
		_, _, used := readStat(fmt.Sprintf("/proc/%d/stat", pid))
		sum += used
	}
	return sum
}
