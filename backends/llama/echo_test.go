package llama

import (
	"math"
	"strings"
	"sync"
	"testing"

	"aloft/backends/serve"
)

// echoed returns the echoed pieces and the generated ones.
func echoed(t *testing.T, e *Engine, req *serve.GenerateRequest) (prompt, made []serve.Piece) {
	t.Helper()
	_, err := e.Generate(t.Context(), req, func(p serve.Piece) error {
		if p.Prompt {
			prompt = append(prompt, p)
		} else {
			made = append(made, p)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	return prompt, made
}

// What was generated with its probabilities has the same ones when it is scored,
// alone or among others, in steps of any size.
func TestEchoScoresAsGeneration(t *testing.T) {
	begin := "And God said, Let there be"
	for _, opt := range []Options{{Slots: 4}, {Slots: 2, BatchTokens: 8}} {
		opt.Model = shipped(t, "aloft-lm.gguf")
		e := open(t, opt)
		req := story(30)
		req.Prompt, req.Logprobs = begin, 2
		_, made := echoed(t, e, req)
		text := begin
		for _, p := range made {
			text += p.Text
		}
		var wg sync.WaitGroup
		for i := range 3 {
			wg.Go(func() {
				again := story(1)
				again.Prompt, again.Logprobs, again.Echo = strings.Repeat(text, i)+text, 1, true
				prompt, more := echoed(t, e, again)
				var said string
				for _, p := range prompt {
					said += p.Text
				}
				if said != again.Prompt || len(more) != 1 || !prompt[0].First || prompt[1].First {
					t.Errorf("echo of %q is %q, %d more", again.Prompt, said, len(more))
				}
				if i > 0 {
					return
				}
				for k, p := range prompt[len(prompt)-len(made):] {
					if p.Text != made[k].Text || math.Abs(p.Logprob-made[k].Logprob) > 0.02 || p.Top[0].Text != made[k].Top[0].Text {
						t.Errorf("token %d: scored %+v, generated %+v", k, p, made[k])
					}
				}
			})
		}
		wg.Wait()
		plain := story(1)
		plain.Prompt, plain.Echo = begin, true // without logprobs
		if prompt, more := echoed(t, e, plain); len(more) != 1 || len(prompt) < 3 {
			t.Errorf("%d echoed, %d made", len(prompt), len(more))
		}
	}
}
