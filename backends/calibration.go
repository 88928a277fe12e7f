package backends

import (
	"math"
	"sync"
)

// Calibration is what a model's Counter does not know of its vocabulary: what an
// engine adds to prompts, and how our counts compare with the engines'. The zero
// value is ready.
type Calibration struct {
	Around int // tokens that the engine puts around each prompt; set before use

	mu            sync.Mutex
	message       float64 // tokens that the model's template adds to each text of a chat, learned
	learned       bool
	ours, engines float64 // recent tokens
}

const (
	// calibrationWeight forgets slowly, as Ratio does.
	calibrationWeight = 0.05
	// calibrationTokens is over about how many of the last tokens Ratio is taken.
	calibrationTokens = 1 << 20
	// A template adds a few tokens, or, joining texts, saves one. What is outside is
	// an image, or tools.
	fewestOfTemplate, mostOfTemplate = -4, 64
)

// Chat is how many tokens a chat of so many texts comes to, which have counted
// tokens together.
func (c *Calibration) Chat(counted, texts int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return max(counted+int(math.Round(c.message*float64(texts))), min(counted, 1))
}

// LearnChat takes what an engine says of a chat.
func (c *Calibration) LearnChat(counted, texts, engine int) {
	if texts == 0 || engine <= 0 {
		return
	}
	each := float64(engine-counted) / float64(texts)
	if each < fewestOfTemplate || each > mostOfTemplate {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.learned {
		c.message, c.learned = each, true
		return
	}
	c.message += calibrationWeight * (each - c.message)
}

// Observe compares a prompt's tokens as we said with what the engine says.
func (c *Calibration) Observe(ours, engine int) {
	if ours <= 0 || engine <= 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ours += float64(ours)
	c.engines += float64(engine)
	if c.engines > calibrationTokens {
		c.ours, c.engines = c.ours/2, c.engines/2
	}
}

// Ratio is our count over the engines', 1 = exact; 0 = no engine has said yet.
func (c *Calibration) Ratio() float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.engines == 0 {
		return 0
	}
	return c.ours / c.engines
}
