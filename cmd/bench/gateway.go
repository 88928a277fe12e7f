package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// connections are how many clients there are at once.
var connections = []int{1, 16, 64, 256}

// cellTime is how long a cell of a round is measured, unless the command line
// says otherwise.
const cellTime = time.Second

// costAt is the number of connections at which CPU time is read.
const costAt = 64

// cell is one figure of a round.
type cell struct {
	kind, target string
	conns        int
}

// series are the rounds of every cell, in the order of the rounds.
type series map[cell][]float64

// gatewayRun is what the gateway benchmark has found so far.
type gatewayRun struct {
	l       *lab
	targets []*target // that are there, in the order of the columns
	absent  []*target
	rates   series                  // per second
	cost    map[cell]*costOf        // at costAt connections
	late    map[string][][2]float64 // p50 and p99 in µs of every round, by target
	rate    int                     // requests a second of the open loop
	idle    []idleStep
	limits  bool // the key has some
}

// costOf is CPU time in seconds against what was done with it.
type costOf struct{ cpu, done float64 }

func gateways(ctx context.Context, l *lab) (*result, error) {
	s, err := l.build(ctx)
	if err != nil {
		return nil, err
	}
	defer s.close()
	g := &gatewayRun{l: l, limits: s.key == limitedKey, rates: series{}, cost: map[cell]*costOf{}, late: map[string][][2]float64{}}
	for _, name := range []string{straight, bare, nginx, through, portkey} {
		t := s.named(name)
		if t.absent == "" {
			if err := t.serves(ctx); err != nil {
				return nil, err
			}
			g.targets = append(g.targets, t)
		} else {
			g.absent = append(g.absent, t)
		}
	}
	if err := g.findRate(ctx); err != nil {
		return nil, err
	}
	for round := range l.rounds() {
		if err := g.round(ctx, round); err != nil {
			return nil, err
		}
		l.say("gateway, round %d of %d: aloft %.0f requests/s and %.0f events/s over 64 connections, p50 %.0f us at %d requests/s", round+1, l.rounds(),
			g.rates[cell{unaries.name, through, 64}][round], g.rates[cell{streams.name, through, 64}][round], g.late[through][round][0], g.rate)
	}
	if err := g.idleStreams(ctx, s); err != nil {
		return nil, err
	}
	return g.report(), nil
}

// serves sends one request of each kind and wants the right answers.
func (t *target) serves(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var err error
	for _, k := range []kind{unaries, streams} {
		// A gateway may still be on its way up although it listens.
		for err = t.once(k); err != nil && pause(limited, 100*time.Millisecond); err = t.once(k) {
		}
		if err != nil {
			return fmt.Errorf("%s does not serve %s: %w", t.name, k.name, err)
		}
	}
	return nil
}

func (t *target) once(k kind) error {
	w, err := dial(t.addr)
	if err != nil {
		return err
	}
	defer w.Close()
	if err := w.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	got, err := w.call(t.request(k.body), nil)
	if err != nil {
		return err
	}
	return k.check(got)
}

// turn is the order of the targets in a cell: each is first, and last, as often
// as the others.
func (g *gatewayRun) turn(i int) []*target {
	i %= len(g.targets)
	return append(slices.Clone(g.targets[i:]), g.targets[:i]...)
}

// round measures every cell once, those that are compared right after each other.
func (g *gatewayRun) round(ctx context.Context, round int) error {
	for i, n := range connections {
		for _, k := range []kind{unaries, streams} {
			for _, t := range g.turn(round + i) {
				if err := g.measure(ctx, t, k, n); err != nil {
					return err
				}
			}
		}
	}
	for _, t := range g.turn(round) {
		if t.name == portkey {
			continue // it is not held to any latency, and does not last at this rate
		}
		took, err := t.paced(ctx, g.rate, 2*g.l.span(cellTime))
		if err != nil {
			return err
		}
		g.late[t.name] = append(g.late[t.name], [2]float64{quantile(took, 0.5), quantile(took, 0.99)})
	}
	return nil
}

func (g *gatewayRun) measure(ctx context.Context, t *target, k kind, n int) error {
	at := cell{k.name, t.name, n}
	before := t.cpuTime()
	began := time.Now()
	rate, err := t.throughput(ctx, k, n, g.l.span(cellTime))
	if err != nil {
		return err
	}
	g.rates[at] = append(g.rates[at], rate)
	if n == costAt {
		c := g.cost[at]
		if c == nil {
			c = &costOf{}
			g.cost[at] = c
		}
		c.cpu += t.cpuTime() - before
		c.done += rate * time.Since(began).Seconds()
	}
	return nil
}

// wantedRate is the open loop's, in requests per second (issue 3).
const wantedRate = 1000

// findRate takes the wanted rate, or the next lower one that every target which
// is held to it keeps up with on this machine now.
func (g *gatewayRun) findRate(ctx context.Context) error {
	for g.rate = wantedRate; g.rate > 100; g.rate /= 2 {
		ok := true
		for _, t := range g.targets {
			if t.name == portkey {
				continue
			}
			took, err := t.paced(ctx, g.rate, 500*time.Millisecond)
			if err != nil {
				return err
			}
			// Who falls behind is late by more and more.
			ok = ok && quantile(took[len(took)*3/4:], 0.5) < 20_000
		}
		if ok {
			return nil
		}
	}
	return nil
}

// The marks of issue 3.
const (
	idleCounted = 2000
	idleOpen    = 9000
)

// idleStep is what a number of idle streams came to.
type idleStep struct {
	streams, failed int
	why             error
	kib             float64 // resident memory of each, of the gateway's process
}

// settle is how long a process gets before its memory is read.
const settle = 2 * time.Second

// idleStreams opens streams through a fresh server: in the one that was measured
// memory of earlier requests would hide what streams take.
func (g *gatewayRun) idleStreams(ctx context.Context, old *stage) error {
	fresh := &stage{l: g.l, self: old.self}
	defer fresh.close()
	if err := fresh.aloft(ctx); err != nil {
		return err
	}
	t := fresh.front()
	for _, k := range []kind{unaries, streams} { // warms what is there once
		if _, err := t.throughput(ctx, k, 16, time.Second); err != nil {
			return err
		}
	}
	if !pause(ctx, settle) {
		return context.Cause(ctx)
	}
	before, err := resident(fresh.server.PID())
	if err != nil {
		return err
	}
	var open opened
	defer open.close()
	failed := 0
	for n := 0; n < idleOpen; {
		more := idleCounted
		if n > 0 {
			more = idleOpen - n
		}
		n += more
		missed, why := t.hold(ctx, &open, more)
		failed += missed
		if !pause(ctx, settle) {
			return context.Cause(ctx)
		}
		after, err := resident(fresh.server.PID())
		if err != nil {
			return errors.Join(err, why)
		}
		lost := n - failed - open.alive() // opened, and closed by the other side since
		if lost > 0 && why == nil {
			why = fmt.Errorf("%d were opened and then closed by the server", lost)
		}
		g.idle = append(g.idle, idleStep{streams: n, failed: failed + lost, why: why, kib: (after - before) / float64(n)})
		g.l.say("gateway: %d idle streams, %d failed, %.1f KiB each (%.1f MiB before, %.1f after)", n, failed+lost, (after-before)/float64(n), before/1024, after/1024)
	}
	return nil
}

// resident is the memory in KiB that a process has in RAM.
func resident(pid int) (float64, error) {
	var kib float64
	if _, err := fmt.Sscan(field(fmt.Sprintf("/proc/%d/status", pid), "VmRSS:"), &kib); err != nil {
		return 0, fmt.Errorf("resident memory of process %d: %w", pid, err)
	}
	return kib, nil
}
