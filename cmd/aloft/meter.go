package main

import (
	"sync"
	"time"

	"aloft/backends"
	"aloft/gateway"
)

// meter sums the replica time that a model's requests cost a full replica
// (knee work), by what became of them.
type meter struct {
	mu                 sync.Mutex
	rate               float64 // seconds of a replica that one token of demand costs
	useful, late, rows time.Duration
}

// charge sets the rate of the requests to come.
func (m *meter) charge(rate float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rate = rate
}

func (m *meter) totals() (useful, late, rows time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.useful, m.late, m.rows
}

// book charges the knee work of one request. Merged calls cost their tokens at
// the rate of the knee; a generation costs its share of a full replica's slots.
func (m *served) book(r *gateway.Outcome) {
	if r.Status >= 400 && r.Status != 499 {
		return // refused: no replica spent time on it
	}
	m.meter.mu.Lock()
	defer m.meter.mu.Unlock()
	var spent, latency time.Duration
	if m.merges() {
		spent, latency = time.Duration(float64(r.PromptTokens)*m.meter.rate*float64(time.Second)), r.Total
	} else {
		spent, latency = max(0, r.Total-r.Timing.Queue)/time.Duration(m.Slots), r.FirstToken
	}
	switch {
	case r.Class == backends.Offline:
		m.meter.rows += spent
	case r.Status == 499 || latency > m.Target:
		m.meter.late += spent
	default:
		m.meter.useful += spent
	}
}
