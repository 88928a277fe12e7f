package llama

import (
	"strings"

	"aloft/backends/serve"
)

// holdback keeps back the pieces that may turn out to be the start of a stop
// string. It releases whole pieces, so that each keeps its own logprob.
type holdback struct {
	stops []string
	held  []serve.Piece
}

// push takes the next piece and emits what can no longer be part of a stop
// string. It returns true when a stop string is complete; then the text before
// it has been emitted and the rest dropped.
func (h *holdback) push(p serve.Piece, emit func(serve.Piece)) bool {
	if len(h.stops) == 0 {
		emit(p)
		return false
	}
	h.held = append(h.held, p)
	text := h.text()
	found := -1
	for _, stop := range h.stops {
		if at := strings.Index(text, stop); at >= 0 && (found < 0 || at < found) {
			found = at
		}
	}
	if found >= 0 {
		h.release(found, emit)
		if found -= len(text) - len(h.text()); found > 0 {
			cut := h.held[0]
			cut.Text = cut.Text[:found]
			emit(cut)
		}
		h.held = nil
		return true
	}
	h.release(len(text)-h.suspect(text), emit)
	return false
}

// flush emits what is held: the text has ended without a stop string.
func (h *holdback) flush(emit func(serve.Piece)) {
	for _, p := range h.held {
		emit(p)
	}
	h.held = nil
}

func (h *holdback) text() string {
	var b strings.Builder
	for _, p := range h.held {
		b.WriteString(p.Text)
	}
	return b.String()
}

// release emits the held pieces that lie wholly within the first n bytes.
func (h *holdback) release(n int, emit func(serve.Piece)) {
	for len(h.held) > 0 && len(h.held[0].Text) <= n {
		n -= len(h.held[0].Text)
		emit(h.held[0])
		h.held = h.held[1:]
	}
}

// suspect returns the length of the longest end of text that begins a stop string.
func (h *holdback) suspect(text string) int {
	longest := 0
	for _, stop := range h.stops {
		for n := min(len(stop)-1, len(text)); n > longest; n-- {
			if strings.HasSuffix(text, stop[:n]) {
				longest = n
			}
		}
	}
	return longest
}
