package gateway

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"aloft/backends"
)

// A model whose tokens are counted adds what the engine puts around each prompt of
// its own, learns what a template adds to chats, and compares itself with the engine.
func TestCalibratedCounts(t *testing.T) {
	c := &backends.Calibration{Around: 2}
	var got *backends.Request
	usage := 0
	e := start(t, func(_ context.Context, req *backends.Request) (*backends.Reply, error) {
		got = req
		return whole200(200, fmt.Sprintf(`{"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":1}}`, usage)), nil
	}, func(_ *Options, d *Deps) {
		m := testModels()[0]
		m.Calibration, m.Context = c, 100
		d.Catalog = shelf{m}
	})
	e.post(t, "/v1/embeddings", `{"model":"tiny","input":["abc","\u00e9\ud83d\ude42\n"]}`)
	if !slices.Equal(got.InputTokens, []int{5, 9}) || got.Tokens != 14 {
		t.Errorf("rows of %v tokens, want 5 and 9", got.InputTokens)
	}
	if e.post(t, "/v1/embeddings", `{"model":"tiny","input":[1,2,3]}`); got.Tokens != 3 {
		t.Errorf("3 token ids count as %d", got.Tokens)
	}
	if e.post(t, "/v1/completions", `{"model":"tiny","prompt":["abc","de"]}`); got.Tokens != 9 {
		t.Errorf("two prompts are %d tokens, want 5 and 4", got.Tokens)
	}
	usage = 20
	chat := `{"model":"tiny","messages":[{"role":"system","content":"abcd"},{"role":"user","content":"efgh"}]}`
	if e.post(t, "/v1/chat/completions", chat); got.Tokens != 8 {
		t.Errorf("a chat is %d tokens before its template is known, want 8", got.Tokens)
	}
	if e.post(t, "/v1/chat/completions", chat); got.Tokens != 20 {
		t.Errorf("then it is %d, want 20 as the engine says", got.Tokens)
	}
	if r := c.Ratio(); r != 28./40 {
		t.Errorf("ratio %v, want 28 of 40", r)
	}
	got = nil
	long := strings.Repeat("x", 101)
	if resp, body := e.post(t, "/v1/completions", `{"model":"tiny","prompt":"`+long+`"}`); resp.StatusCode != 400 || got != nil || !strings.Contains(string(body), "103 tokens") {
		t.Errorf("too long a prompt: %d %s", resp.StatusCode, body)
	}
	if e.post(t, "/v1/embeddings", `{"model":"tiny","input":"`+long+`","truncate_prompt_tokens":-1}`); got == nil || got.Tokens != 100 {
		t.Errorf("one that the engine shall cut: %+v, want a request of 100 tokens", got)
	}
	if e.post(t, "/v1/completions", `{"model":"tiny","prompt":["`+long[:60]+`","`+long[:60]+`"]}`); got.Tokens != 124 {
		t.Errorf("two prompts that fit each: %d tokens, want 124", got.Tokens)
	}
}
