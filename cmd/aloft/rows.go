package main

// limitRows bounds a model's rows of batches in flight on ready replicas: a whole
// batch on each, or half of each one's slots, so that a batch spreads over all
// of them. How long a row may hold up a request is the batcher's to see to.
func (s *serving) limitRows(model string) {
	m := s.model(model)
	if m == nil {
		return // removed meanwhile
	}
	each := max(1, m.Slots/2)
	if m.merges() {
		each = m.maxRows()
	}
	s.mu.Lock()
	n := 0
	if s.rows[model] {
		n = max(1, s.shared[model])
	}
	s.mu.Unlock()
	m.batcher.SetOfflineLimit(n * each)
}

// concurrency is how many rows of batches may be under way for a model now,
// each per replica. A model that does not exist has no queue to spare: its rows
// are let through to their refusals.
func (s *serving) concurrency(model string, each int) int {
	m := s.named(model)
	if m == nil {
		return each
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.offline[m.Name]
	if s.rows[m.Name] {
		n += max(1, s.shared[m.Name])
	}
	return n * each
}
