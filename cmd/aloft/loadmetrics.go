package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	prom "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"aloft/loadgen"
)

// Bounds of the endpoint: a scrape is small, and nobody else should call.
const (
	scrapeTimeout = 5 * time.Second
	scrapeHeader  = 8 << 10
	scrapesAtOnce = 4
)

// loadMetrics serves a run's figures to Prometheus while it goes on. They are
// those of the last snapshot, at most sample_every old; a request costs nothing
// more with them than without.
type loadMetrics struct {
	latest atomic.Pointer[loadgen.Snapshot]
	server *http.Server
	addr   string // that is listened on
	done   chan error
}

// serveLoadMetrics listens on an address; one without a host means the loopback
// interface. nil, for "", serves nothing.
func serveLoadMetrics(ctx context.Context, address string) (*loadMetrics, error) {
	if address == "" {
		return nil, nil
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("--metrics: %w", err)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", net.JoinHostPort(host, port))
	if err != nil {
		return nil, fmt.Errorf("--metrics: %w", err)
	}
	m := &loadMetrics{addr: ln.Addr().String(), done: make(chan error, 1)}
	registry := prom.NewRegistry()
	registry.MustRegister(m)
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: scrapesAtOnce}))
	m.server = &http.Server{
		Handler: mux, MaxHeaderBytes: scrapeHeader,
		ReadHeaderTimeout: scrapeTimeout, ReadTimeout: scrapeTimeout, WriteTimeout: scrapeTimeout, IdleTimeout: time.Minute,
	}
	go func() { m.done <- m.server.Serve(ln) }()
	return m, nil
}

// show takes the figures so far.
func (m *loadMetrics) show(s loadgen.Snapshot) {
	if m != nil {
		m.latest.Store(&s)
	}
}

// close lets a scrape that is under way end, and no longer than its deadline.
func (m *loadMetrics) close() error {
	if m == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	err := m.server.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, m.server.Close())
	}
	if served := <-m.done; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	if err != nil {
		return fmt.Errorf("--metrics: %w", err)
	}
	return nil
}

var byPhase = []string{"workload", "phase"}

var (
	loadRequests = prom.NewDesc("aloft_load_requests_total", "Requests that have ended, by how; outcome ok alone is good.", append(byPhase, "outcome"), nil)
	loadRetries  = prom.NewDesc("aloft_load_retries_total", "Attempts after the first of a request: load in addition.", byPhase, nil)
	loadLatency  = prom.NewDesc("aloft_load_latency_seconds", "Time to the end of the answer, from the intended start and from the actual send, of requests that were answered or given up.", append(byPhase, "from"), nil)
	loadFirst    = prom.NewDesc("aloft_load_time_to_first_token_seconds", "Time to the first content of a stream, from the intended start and from the actual send.", append(byPhase, "from"), nil)
	loadPerToken = prom.NewDesc("aloft_load_time_per_output_token_seconds", "Mean time of each token after the first, one value a request.", byPhase, nil)
	loadLag      = prom.NewDesc("aloft_load_send_lag_seconds", "From intended start to actual send: the generator's own delay.", byPhase, nil)
	loadPlanned  = prom.NewDesc("aloft_load_planned_requests_per_second", "Rate that the plan of a phase has.", byPhase, nil)
	loadOpen     = prom.NewDesc("aloft_load_in_flight_requests", "Requests that were sent and have not ended.", nil, nil)
	loadElapsed  = prom.NewDesc("aloft_load_elapsed_seconds", "Time since the start of the first phase.", nil, nil)
)

// Describe implements prometheus.Collector.
func (m *loadMetrics) Describe(out chan<- *prom.Desc) {
	for _, d := range []*prom.Desc{loadRequests, loadRetries, loadLatency, loadFirst, loadPerToken, loadLag, loadPlanned, loadOpen, loadElapsed} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (m *loadMetrics) Collect(out chan<- prom.Metric) {
	s := m.latest.Load()
	if s == nil {
		return
	}
	out <- prom.MustNewConstMetric(loadOpen, prom.GaugeValue, float64(s.InFlight))
	out <- prom.MustNewConstMetric(loadElapsed, prom.GaugeValue, s.Elapsed.Seconds())
	for i := range s.Results {
		r := &s.Results[i]
		by := func(more ...string) []string { // a label that is no UTF-8 would be a panic
			return append([]string{strings.ToValidUTF8(r.Name, "?"), strings.ToValidUTF8(r.Phase, "?")}, more...)
		}
		counts := map[loadgen.Outcome]int{loadgen.OK: r.OK, loadgen.Late: r.Late, loadgen.Shed: r.Shed}
		maps.Copy(counts, r.FailedBy)
		for outcome, n := range counts {
			out <- prom.MustNewConstMetric(loadRequests, prom.CounterValue, float64(n), by(string(outcome))...)
		}
		out <- prom.MustNewConstMetric(loadRetries, prom.CounterValue, float64(r.Retries), by()...)
		if r.Closed == 0 {
			out <- prom.MustNewConstMetric(loadPlanned, prom.GaugeValue, r.Planned, by()...)
		}
		for _, h := range []struct {
			desc *prom.Desc
			q    *loadgen.Quantiles
			from []string
		}{
			{loadLatency, &r.Quantiles, []string{"intended"}}, {loadLatency, &r.FromSend, []string{"send"}},
			{loadFirst, r.TTFT, []string{"intended"}}, {loadFirst, r.TTFTFromSend, []string{"send"}},
			{loadPerToken, r.TPOT, nil}, {loadLag, &r.SendLag, nil},
		} {
			if h.q != nil && h.q.Coarse != nil {
				out <- constHistogram(h.desc, h.q.Coarse, by(h.from...))
			}
		}
	}
}

// constHistogram is a distribution as Prometheus counts: each bucket with all
// below it.
func constHistogram(desc *prom.Desc, c *loadgen.Coarse, labels []string) prom.Metric {
	below, total := map[float64]uint64{}, uint64(0)
	bounds := loadgen.CoarseBounds()
	for i, n := range c.Counts {
		total += uint64(n)
		if i < len(bounds) {
			below[bounds[i]] = total
		}
	}
	return prom.MustNewConstHistogram(desc, total, c.Sum, below, labels...)
}
