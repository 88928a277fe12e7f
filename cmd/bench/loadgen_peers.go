package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// vegetaVersion is fetched by the go command; hey and wrk are what the system has.
const vegetaVersion = "v12.12.0"

func (s *stalling) url() string { return "http://" + s.child.Addr + "/v1/chat/completions" }

// tool runs a generator and returns what it prints.
func (s *stalling) tool(ctx context.Context, stdin string, name string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, s.span+30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin = strings.NewReader(stdin)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %.300s", filepath.Base(name), err, errs.Bytes())
	}
	return out, nil
}

// absent is a row for what is not installed.
func absent(tool, why string) ([]*view, error) { return []*view{{tool: tool, absent: why}}, nil }

// hey holds each of its workers to a rate; a worker waits for its answer.
func (s *stalling) hey(ctx context.Context) ([]*view, error) {
	path, err := exec.LookPath("hey")
	if err != nil {
		return absent("hey", "not installed")
	}
	out, err := s.tool(ctx, "", path, "-z", s.span.String(), "-c", fmt.Sprint(stallConns), "-q", fmt.Sprint(stallRate/stallConns),
		"-m", "POST", "-T", "application/json", "-d", string(unaries.body), "-o", "csv", s.url())
	if err != nil {
		return nil, err
	}
	took, err := heyTimes(out)
	if err != nil {
		return nil, err
	}
	return []*view{{tool: fmt.Sprintf("hey, %d workers of %d/s", stallConns, stallRate/stallConns), from: "send", requests: len(took), seconds: s.span.Seconds(),
		q: [4]float64{quantile(took, 0.5), quantile(took, 0.95), quantile(took, 0.99), quantile(took, 1)}}}, nil
}

// heyTimes reads the response times in ms from hey's CSV.
func heyTimes(text []byte) ([]float64, error) {
	rows, err := csv.NewReader(bytes.NewReader(text)).ReadAll()
	if err != nil || len(rows) < 2 {
		return nil, fmt.Errorf("hey wrote %d rows: %w", len(rows), err)
	}
	var took []float64
	for _, row := range rows[1:] {
		seconds, err := strconv.ParseFloat(row[0], 64)
		if err != nil {
			return nil, fmt.Errorf("hey: response time %q: %w", row[0], err)
		}
		took = append(took, 1000*seconds)
	}
	return took, nil
}

// vegeta starts as many workers as its rate needs.
func (s *stalling) vegeta(ctx context.Context) ([]*view, error) {
	return s.attack(ctx, "vegeta, as many workers as it wants")
}

// vegetaFew is bound to as many connections as the others have.
func (s *stalling) vegetaFew(ctx context.Context) ([]*view, error) {
	return s.attack(ctx, fmt.Sprintf("vegeta, %d workers", stallConns), "-max-workers", fmt.Sprint(stallConns))
}

func (s *stalling) attack(ctx context.Context, name string, more ...string) ([]*view, error) {
	path, err := vegetaBin(ctx)
	if err != nil {
		return absent(name, "not installed: "+err.Error())
	}
	body := filepath.Join(s.l.dir, "vegeta-body")
	if err := os.WriteFile(body, unaries.body, 0o600); err != nil {
		return nil, err
	}
	args := append([]string{"attack", "-rate", fmt.Sprint(stallRate), "-duration", s.span.String(), "-body", body}, more...)
	hits, err := s.tool(ctx, "POST "+s.url()+"\n", path, args...)
	if err != nil {
		return nil, err
	}
	out, err := s.tool(ctx, string(hits), path, "report", "-type", "json")
	if err != nil {
		return nil, err
	}
	var v struct {
		Requests  int
		Duration  time.Duration
		Latencies map[string]float64 // ns
	}
	if err := json.Unmarshal(out, &v); err != nil {
		return nil, fmt.Errorf("vegeta: %w", err)
	}
	ns := func(key string) float64 { return v.Latencies[key] / float64(time.Millisecond) }
	return []*view{{tool: name, from: "send", requests: v.Requests, seconds: v.Duration.Seconds(), q: [4]float64{ns("50th"), ns("95th"), ns("99th"), ns("max")}}}, nil
}

// vegetaBin is the pinned version, built once into the user's cache.
func vegetaBin(ctx context.Context) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "aloft", "bench-vegeta-"+vegetaVersion)
	path := filepath.Join(dir, "vegeta")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "install", "github.com/tsenart/vegeta/v12@"+vegetaVersion)
	cmd.Env = append(os.Environ(), "GOBIN="+dir)
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", errors.Join(errors.New("go install fails"), fmt.Errorf("%w: %.100s", err, text))
	}
	return path, nil
}

// wrkStall prints in one line what wrk measured, in µs.
const wrkStall = `wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '%s'
function done(summary, latency, requests)
  io.write(string.format("ALOFT %%d %%d %%d %%d %%d %%d\n", summary.requests, summary.duration, latency:percentile(50), latency:percentile(95), latency:percentile(99), latency.max))
end
`

// wrk is a closed loop: it sends as fast as its connections are answered.
func (s *stalling) wrk(ctx context.Context) ([]*view, error) {
	path, err := exec.LookPath("wrk")
	if err != nil {
		return absent("wrk", "not installed")
	}
	script := filepath.Join(s.l.dir, "stall.lua")
	if err := os.WriteFile(script, fmt.Appendf(nil, wrkStall, unaries.body), 0o600); err != nil {
		return nil, err
	}
	seconds := max(1, int(s.span/time.Second)) // it knows whole ones
	// With its own timeout of 2 s it would leave those out that waited for longer.
	out, err := s.tool(ctx, "", path, "--timeout", "30s", "-t1", fmt.Sprintf("-c%d", stallConns), fmt.Sprintf("-d%ds", seconds), "-s", script, s.url())
	if err != nil {
		return nil, err
	}
	v, err := wrkView(out)
	if err != nil {
		return nil, err
	}
	v.tool = fmt.Sprintf("wrk, %d connections", stallConns)
	return []*view{v}, nil
}

// wrkView reads the line of wrkStall.
func wrkView(text []byte) (*view, error) {
	v := &view{from: "send, then corrected by its mean gap"}
	_, line, ok := strings.Cut(string(text), "ALOFT ")
	us := 0.0
	if _, err := fmt.Sscan(line, &v.requests, &us, &v.q[0], &v.q[1], &v.q[2], &v.q[3]); !ok || err != nil {
		return nil, fmt.Errorf("wrk wrote %.200q: %w", text, err)
	}
	v.seconds = us / 1e6
	for i := range v.q {
		v.q[i] /= 1000
	}
	return v, nil
}
