package known

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"time"
)

// wrkScript has wrk send what the generator sends.
const wrkScript = `wrk.method = "POST"
wrk.path = "/v1/chat/completions"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '{"model":"null","messages":[{"role":"user","content":"What follows a word, and what follows the word after it?"}]}'
`

var wrkRequests = regexp.MustCompile(`(?m)^Requests/sec:\s+([0-9.]+)$`)

// wrk measures the same null server with wrk, where it is installed: what a
// generator in C that keeps no plan and no distributions gets out of it.
func (c *calibrator) wrk(ctx context.Context) error {
	path, err := exec.LookPath("wrk")
	if err != nil {
		if note := "wrk is not installed: no figure of another generator"; !slices.Contains(c.out.Notes, note) {
			c.out.Notes = append(c.out.Notes, note)
		}
		return nil
	}
	dir, err := os.MkdirTemp("", "aloft-wrk-")
	if err != nil {
		return fmt.Errorf("known: %w", err)
	}
	defer os.RemoveAll(dir)
	script := filepath.Join(dir, "post.lua")
	if err := os.WriteFile(script, []byte(wrkScript), 0o600); err != nil {
		return fmt.Errorf("known: %w", err)
	}
	before, err := c.child.Usage(ctx)
	if err != nil {
		return err
	}
	seconds := max(1, int(c.opt.Span.Round(time.Second)/time.Second)) // it knows whole ones
	limited, cancel := context.WithTimeout(ctx, time.Duration(seconds+10)*time.Second)
	defer cancel()
	cmd := exec.CommandContext(limited, path, "-t1", fmt.Sprintf("-c%d", closedClients), fmt.Sprintf("-d%ds", seconds), "-s", script, "http://"+c.child.Addr)
	began := time.Now()
	text, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("known: wrk: %w: %.200s", err, text)
	}
	took := time.Since(began).Seconds()
	after, err := c.child.Usage(ctx)
	if err != nil {
		return err
	}
	m := wrkRequests.FindSubmatch(text)
	if m == nil {
		return fmt.Errorf("known: wrk told no rate: %.200s", text)
	}
	rate, err := strconv.ParseFloat(string(m[1]), 64)
	if err != nil {
		return fmt.Errorf("known: wrk: %w", err)
	}
	own := (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()
	c.add(wrkRate, "requests/s", rate, [2]float64{own / took, (after.CPU - before.CPU) / took})
	return nil
}
