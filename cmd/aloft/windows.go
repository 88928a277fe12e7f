package main

import (
	"cmp"
	"context"
	"slices"
	"time"

	"aloft/gpu"
)

// windowsEvery is how often the server looks at which maintenance windows are open.
const windowsEvery = time.Second

// title is what a window is called in logs and in the status.
func (w *WindowConfig) title() string { return cmp.Or(w.Name, w.Cron, w.From) }

// decideBy makes the arbiter decide by the newest configuration as it is at a
// moment: windows open and close.
func (s *server) decideBy(now time.Time) error {
	c := s.current.Load()
	open := c.openWindows(now)
	s.serving.open.Store(&open)
	return s.arbiter.SetPolicy(c.policy(now))
}

// tendWindows tells the arbiter when a window opens or closes, until ctx ends.
func (s *server) tendWindows(ctx context.Context) {
	tick := time.NewTicker(windowsEvery)
	defer tick.Stop()
	var known []string
	for {
		now := time.Now()
		var open []string
		for _, w := range s.current.Load().openWindows(now) {
			open = append(open, w.title())
		}
		if !slices.Equal(open, known) {
			s.log.Info("maintenance windows", "open", open, "before", known)
			known = open
			if err := s.decideBy(now); err != nil {
				s.log.Error("policy not taken", "error", err)
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// unknownSlices are those that a configuration names and no device has now; a
// reshape may bring them.
func (c *Config) unknownSlices(devices []gpu.Device) (out []string) {
	known := map[string]bool{}
	for _, d := range devices {
		for _, sl := range d.Slices {
			known[sl.ID] = true
		}
	}
	named := []string{}
	for _, m := range c.Models {
		named = append(named, m.Pin...)
	}
	for _, w := range c.Arbiter.Windows {
		named = append(named, w.Slices...)
	}
	for _, id := range named {
		if !known[id] && !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	return out
}
