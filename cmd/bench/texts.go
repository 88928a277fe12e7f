package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"aloft/configs"
)

// sentences of the demo's text.
func sentences() []string { return strings.Split(strings.TrimSpace(string(configs.Sentences)), "\n") }

const encoder, lm = "aloft-encoder", "aloft-lm"

// textsOf finds n different texts that the engine itself counts as so many
// tokens: openings of sentences spread over the whole text, cut after the word
// with which usage.prompt_tokens says so.
func textsOf(ctx context.Context, c *client, tokens, n int) ([]string, error) {
	all := sentences()
	seen := map[string]bool{}
	var out []string
	// 4 candidates for each text wanted: many openings repeat.
	for i := 0; i < len(all) && len(out) < n; i += max(1, len(all)/(4*n)) {
		words := strings.Fields(all[i])
		// No word takes less than a token, and two tokens mark start and end.
		for w := min(len(words), tokens-2); w > 0; w-- {
			text := strings.Join(words[:w], " ")
			if seen[text] {
				break
			}
			seen[text] = true
			got, err := countTokens(ctx, c, text)
			if err != nil {
				return nil, err
			}
			if got == tokens {
				out = append(out, text)
			}
			if got <= tokens {
				break
			}
		}
	}
	if len(out) < n {
		return nil, fmt.Errorf("found %d texts of %d tokens, want %d", len(out), tokens, n)
	}
	return out, nil
}

func countTokens(ctx context.Context, c *client, text string) (int, error) {
	b, err := c.post(ctx, "/v1/embeddings", embedBody(encoder, text), nil)
	if err != nil {
		return 0, fmt.Errorf("count tokens: %w", err)
	}
	var v struct {
		Usage struct {
			PromptTokens int `json:"prompt_tokens"`
		}
	}
	if err := json.Unmarshal(b, &v); err != nil {
		return 0, fmt.Errorf("count tokens: %w", err)
	}
	return v.Usage.PromptTokens, nil
}

// embedBody is a request for one text or, with more, a ready-made batch.
func embedBody(model string, texts ...string) []byte {
	return mustJSON(map[string]any{"model": model, "input": texts})
}

// chatBody is a request for a streamed answer. A seed makes runs comparable.
func chatBody(model, text string, seed, tokens int) []byte {
	return mustJSON(map[string]any{"model": model, "stream": true, "stream_options": map[string]bool{"include_usage": true},
		"max_tokens": tokens, "seed": seed, "temperature": 0.8,
		"messages": []map[string]string{{"role": "user", "content": text}}})
}

func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic("BUG: a request does not marshal: " + err.Error())
	}
	return b
}
