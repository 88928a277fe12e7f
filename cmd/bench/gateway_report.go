package main

import (
	"fmt"
	"slices"
	"strings"
)

// pair is a mark on the ratio of two targets' rates in one round.
type pair struct {
	kind string
	to   string
	mark float64 // 0 = shown, not promised
}

// pairs are the ratios of Aloft to others that the report shows; the marks are
// issue 3's.
var pairs = []pair{
	{unaries.name, bare, 0.7}, {unaries.name, nginx, 0.8}, {unaries.name, portkey, 8},
	{streams.name, bare, 0}, {streams.name, nginx, 0.9}, {streams.name, portkey, 8},
}

const (
	maxP50  = 150  // µs added to straight
	maxP99  = 1000 // likewise
	maxIdle = 32   // KiB of an idle stream
)

func (g *gatewayRun) report() *result {
	checks := "key check, the key's limits, metrics and tracing on (one request in ten recorded)"
	if !g.limits {
		checks = "key check, metrics and tracing on (one request in ten recorded), **but without limits: this build reads no key file**"
	}
	r := &result{title: "Gateway: throughput, latency and memory",
		how: "`aloft serve` with " + checks + " (OTLP to a local sink that forgets it), beside other ways to the very same engine: straight, " +
			"a bare fasthttp reverse proxy (`cmd/bench/stub.go`), nginx with 2 workers and kept connections, Portkey's gateway on Node (`cmd/bench/portkey`). " +
			"**The engine is modelled**: a stub that answers at once, 1 KB or an SSE stream of 100 events and [DONE], each event written on its own; Aloft runs it as a replica (`cmd/bench/servers/gateway.yaml`). " +
			"Stub, gateways and clients share the machine's cores. Closed loop: each connection sends its next request when the last one is answered; ways take turns, and change their order, in every round. " +
			"Rates are per second and the best of the rounds; ratios are of rates in the same round, as median (best) of the rounds, and marks on them are held by the median.",
		head: []string{"per second", "connections", straight, bare, nginx, through, portkey, "aloft / bare", "aloft / nginx", "aloft / portkey"}}
	for _, k := range []string{unaries.name, streams.name} {
		for _, n := range connections {
			g.rateRow(r, k, n)
		}
	}
	r.note("%d rounds; a cell of a round is measured for %v after %v of running in. Portkey waits 25 ms before the first event of every stream, by its own code.", g.l.rounds(), g.l.span(cellTime), lead)
	for _, t := range g.absent {
		r.note("%s was not measured: %s.", t.name, t.absent)
	}
	g.costNote(r)
	g.latency(r)
	g.idleNote(r)
	return r
}

func (g *gatewayRun) rateRow(r *result, k string, n int) {
	row := []string{k, fmt.Sprint(n)}
	for _, name := range []string{straight, bare, nginx, through, portkey} {
		row = append(row, best(g.rates[cell{k, name, n}]))
	}
	for _, p := range pairs {
		if p.kind != k {
			continue
		}
		other := g.rates[cell{k, p.to, n}]
		if len(other) == 0 {
			row = append(row, "")
			continue
		}
		s := spreadOf(each(g.rates[cell{k, through, n}], other, ratio))
		row = append(row, fmt.Sprintf("%.2f (%.2f)", s.median, s.max))
		name := fmt.Sprintf("%s/s over %d connections: aloft / %s", k, n, p.to)
		if p.mark > 0 {
			r.atLeast(name, s.median, p.mark)
		} else {
			r.measured(name, s.median)
		}
	}
	r.row(row...)
}

func best(v []float64) string {
	if len(v) == 0 {
		return ""
	}
	return fmt.Sprintf("%.0f", slices.Max(v))
}

// costNote tells the CPU time of one request, which other work on the machine
// hardly changes.
func (g *gatewayRun) costNote(r *result) {
	for _, k := range []string{unaries.name, streams.name} {
		var parts []string
		for _, t := range g.targets {
			name := t.name
			if name == straight {
				name = "stub"
			}
			c := g.cost[cell{k, t.name, costAt}]
			us := 1e6 * c.cpu / c.done
			parts = append(parts, fmt.Sprintf("%s %.1f", name, us))
			r.measured(fmt.Sprintf("CPU time of one of the %s over %d connections, us: %s", k, costAt, name), us)
		}
		r.note("CPU time of one of the %s over %d connections in µs, of the process in question alone: %s.", k, costAt, strings.Join(parts, ", "))
	}
}

// latency reports the open loop. What Aloft adds is the difference between its
// best round and straight's: in a single round a disturbed baseline would make it
// look small, or negative.
func (g *gatewayRun) latency(r *result) {
	var b strings.Builder
	fmt.Fprintf(&b, "Open loop, %d requests/s (unary) over %d connections, latency in µs from when each request was due: the round that is best for Aloft, and the others in the same round. "+
		"Aloft adds its best round less the best of straight.", g.rate, pacers)
	if g.rate < wantedRate {
		fmt.Fprintf(&b, " **%d requests/s were asked for; this machine did not keep up with them.**", wantedRate)
	}
	b.WriteString("\n\n")
	head := []string{"quantile"}
	for _, t := range g.targets {
		if t.name != portkey {
			head = append(head, t.name)
		}
	}
	head = append(head, "straight, best", "bare proxy adds", "aloft adds", "aloft less straight, of each round")
	var rows [][]string
	for q, name := range []string{"p50", "p99"} {
		base, own := column(g.late[straight], q), column(g.late[through], q)
		least := slices.Min(base)
		at := slices.Index(own, slices.Min(own))
		row := []string{name}
		for _, t := range g.targets {
			if t.name != portkey {
				row = append(row, fmt.Sprintf("%.0f", g.late[t.name][at][q]))
			}
		}
		added := own[at] - least
		rows = append(rows, append(row, fmt.Sprintf("%.0f", least), fmt.Sprintf("%.0f", slices.Min(column(g.late[bare], q))-least),
			fmt.Sprintf("%.0f", added), spreadOf(each(own, base, difference)).show("%.0f")))
		r.atMost(fmt.Sprintf("added %s at %d requests/s, µs", name, g.rate), added, []float64{maxP50, maxP99}[q])
	}
	writeTable(&b, head, rows)
	r.note("%s", strings.TrimSuffix(b.String(), "\n"))
}

func column(v [][2]float64, i int) []float64 {
	out := make([]float64, len(v))
	for j := range v {
		out[j] = v[j][i]
	}
	return out
}

func (g *gatewayRun) idleNote(r *result) {
	for _, s := range g.idle {
		text := fmt.Sprintf("%d idle SSE streams through a fresh `aloft serve`: %d failed, %.1f KiB of resident memory each (gateway process, less what it had when warm).", s.streams, s.failed, s.kib)
		if s.why != nil {
			text += fmt.Sprintf(" The first failure: %v.", s.why)
		}
		r.note("%s", text)
		switch s.streams {
		case idleCounted:
			r.atMost(fmt.Sprintf("KiB of each of %d idle streams", s.streams), s.kib, maxIdle)
		case idleOpen:
			r.measured(fmt.Sprintf("KiB of each of %d idle streams", s.streams), s.kib)
			r.atLeast("idle streams open without a failure", float64(s.streams-s.failed), idleOpen)
		}
	}
}
