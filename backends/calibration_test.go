package backends

import (
	"math"
	"testing"
)

func TestCalibration(t *testing.T) {
	var c Calibration
	if n := c.Chat(10, 3); n != 10 || c.Ratio() != 0 {
		t.Errorf("before anything is known a chat of 10 is %d, the ratio %v", n, c.Ratio())
	}
	c.LearnChat(10, 2, 18)
	c.LearnChat(10, 2, 18+2000) // an image
	c.LearnChat(10, 0, 18)
	if n := c.Chat(100, 5); n != 120 {
		t.Errorf("a chat of 100 tokens in 5 texts is %d, want 120: 4 are added to each", n)
	}
	for range 200 {
		c.LearnChat(10, 2, 30)
	}
	if n := c.Chat(100, 5); n != 150 {
		t.Errorf("after the template changed it is %d, want 150", n)
	}
	for range 300 {
		c.LearnChat(10, 10, 0+1)
	}
	if n := c.Chat(3, 10); n != 1 {
		t.Errorf("a chat of 3 tokens is %d, want 1 at least", n)
	}
	if n := c.Chat(0, 10); n != 0 {
		t.Errorf("a chat of none is %d", n)
	}
	c.Observe(90, 100)
	c.Observe(0, 5)
	c.Observe(5, -1)
	if r := c.Ratio(); r != 0.9 {
		t.Errorf("ratio %v, want 0.9", r)
	}
	for range 10_000 {
		c.Observe(1000, 1000)
	}
	if r := c.Ratio(); math.Abs(r-1) > 1e-3 {
		t.Errorf("ratio %v after 10 million right tokens, want 1", r)
	}
}
