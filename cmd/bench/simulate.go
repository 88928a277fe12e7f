package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"

	"aloft/configs"
)

// A day of 64 GPUs at 50 requests/s is the day scenario with less to do: its
// models' share of the knee, by what each has there. It has 4.3 million requests.
var calmDay = strings.NewReplacer("mean_utilization: 0.45", "mean_utilization: 0.105", "mean_utilization: 0.25", "mean_utilization: 0.058")

// What simulating that day may take.
const (
	dayCPU    = 60.0 // s, on one core
	dayMemory = 500.0
)

var requestsSaid = regexp.MustCompile(`(\d+) requests`)

// simulations measures `aloft simulate` as a process that has one core.
func simulations(ctx context.Context, l *lab) (*result, error) {
	r := &result{title: "Simulating a day of 64 GPUs",
		how: "`aloft simulate` on the day scenario (`configs/scenarios/day-64gpu-mixed.yaml`, seed 1), once with 50 requests/s on the whole day and once as it stands, with `GOMAXPROCS=1`: the process's own processor time, drawing the world included, and its largest resident memory. " +
			"*ours* also runs static, to be held against it, and learns from three other days before: those two are in its row.",
		head: []string{"day", "policy", "requests of one run", "processor time", "per million requests", "memory"}}
	text, err := configs.Scenarios.ReadFile("scenarios/day-64gpu-mixed.yaml")
	if err != nil {
		return nil, err
	}
	calm := calmDay.Replace(string(text))
	if !strings.Contains(calm, ": 0.105") || !strings.Contains(calm, ": 0.058") {
		return nil, errors.New("simulate: the day scenario has other loads than it had, want mean_utilization 0.45 and 0.25")
	}
	for i, of := range []struct{ day, text, policy string }{
		{"50 requests/s", calm, "static"},
		{"50 requests/s", calm, "ours"},
		{"as it stands", string(text), "static"},
	} {
		if l.quick && i > 0 {
			break
		}
		file := filepath.Join(l.dir, "day.yaml")
		if err := os.WriteFile(file, []byte(of.text), 0o600); err != nil {
			return nil, err
		}
		c := exec.CommandContext(ctx, l.bin, "simulate", file, "--policy", of.policy, "--seed", "1", "--workers", "1")
		c.Env = append(os.Environ(), "GOMAXPROCS=1")
		var failed strings.Builder
		c.Stderr = &failed
		said, err := c.Output()
		if err != nil {
			return nil, fmt.Errorf("simulate: %w\n%s", err, failed.String())
		}
		requests := 0.0
		for _, m := range requestsSaid.FindAllSubmatch(said, -1) {
			n, _ := strconv.Atoi(string(m[1]))
			requests += float64(n)
		}
		cpu := (c.ProcessState.UserTime() + c.ProcessState.SystemTime()).Seconds()
		memory := float64(c.ProcessState.SysUsage().(*syscall.Rusage).Maxrss) * 1024 / 1e6
		r.row(of.day, of.policy, fmt.Sprintf("%.1f million", requests/1e6), fmt.Sprintf("%.1f s", cpu), fmt.Sprintf("%.1f s", cpu/requests*1e6), fmt.Sprintf("%.0f MB", memory))
		if of.policy == "static" && of.text == calm {
			r.atMost("a day at 50 requests/s, s of one core", cpu, dayCPU)
			r.atMost("a day at 50 requests/s, MB", memory, dayMemory)
		}
	}
	return r, nil
}
