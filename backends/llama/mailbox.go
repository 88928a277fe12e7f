package llama

import (
	"sync"

	"aloft/backends/serve"
)

// mailbox carries pieces from the loop to one caller without ever making the
// loop wait for a slow reader. max_tokens and the context bound what it holds.
type mailbox struct {
	wake   chan struct{} // holds one token while there is something to take
	mu     sync.Mutex
	pieces []serve.Piece
	end    *ending
}

// ending is how a generation ended.
type ending struct {
	finish serve.Finish
	err    error
}

func newMailbox() *mailbox { return &mailbox{wake: make(chan struct{}, 1)} }

func (m *mailbox) put(p serve.Piece) {
	m.mu.Lock()
	m.pieces = append(m.pieces, p)
	m.mu.Unlock()
	m.signal()
}

func (m *mailbox) close(end ending) {
	m.mu.Lock()
	m.end = &end
	m.mu.Unlock()
	m.signal()
}

func (m *mailbox) signal() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// take returns what has come since the last time, and how it ended if it has.
func (m *mailbox) take() ([]serve.Piece, *ending) {
	m.mu.Lock()
	defer m.mu.Unlock()
	pieces := m.pieces
	m.pieces = nil
	return pieces, m.end
}
