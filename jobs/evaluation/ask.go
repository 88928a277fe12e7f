package evaluation

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
	"time"

	"aloft/loadgen"
)

// Subject is a model that is asked.
type Subject struct {
	Name  string // as the result calls it
	Model string // as requests call it
	Bytes int64  // of a candidate's file; 0 = not known
	URL   string // base of an OpenAI-compatible server, without /v1
	Key   string // "" = none
	Roots *x509.CertPool
}

// outcome is the answer to one row, as it is kept on disk.
type outcome struct {
	Row    int     `json:"row"`
	Side   int     `json:"side,omitempty"` // 1 = the model that is compared with
	Text   string  `json:"text,omitempty"`
	Right  bool    `json:"right,omitempty"`
	Nats   float64 `json:"nats,omitempty"` // that the held-out text costs
	Bytes  int     `json:"bytes,omitempty"`
	Tokens int     `json:"tokens,omitempty"`
	Vector []byte  `json:"vector,omitempty"` // of length 1, float32, little-endian
	First  float64 `json:"first_ms,omitempty"`
	Total  float64 `json:"total_ms,omitempty"`
	Error  string  `json:"error,omitempty"`
}

const (
	tries    = 6 // of a request that fails for a reason that may pass
	firstTry = 200 * time.Millisecond
	mostTry  = 10 * time.Second
	maxError = 300 // bytes of a kept error
)

// asker asks one subject, from one goroutine.
type asker struct {
	*loadgen.Asker
	subject Subject
	opt     Options
}

// ask answers one row. It returns an error only when ctx has ended.
func (a *asker) ask(ctx context.Context, row Row) (outcome, error) {
	route, body, stream := a.request(row)
	for try, pause := 1, firstTry; ; try, pause = try+1, min(2*pause, mostTry) {
		once, cancel := context.WithTimeout(ctx, a.opt.Timeout)
		got, err := a.Ask(once, route, body, stream)
		cancel()
		if ctx.Err() != nil {
			return outcome{}, context.Cause(ctx)
		}
		var o outcome
		if err == nil && got.Status == http.StatusOK {
			o, err = read(row, got)
			if err == nil {
				o.First, o.Total = ms(got.First), ms(got.Total)
				return o, nil
			}
			return outcome{Error: clip(err.Error())}, nil // it would say the same again
		}
		if err == nil {
			err = fmt.Errorf("HTTP %d: %s", got.Status, problem(got.Body))
			if got.Status < 500 && got.Status != http.StatusTooManyRequests {
				return outcome{Error: clip(err.Error())}, nil
			}
		}
		if try == tries {
			return outcome{Error: clip(err.Error())}, nil
		}
		select {
		case <-time.After(max(pause, min(got.Again, mostTry))):
		case <-ctx.Done():
			return outcome{}, context.Cause(ctx)
		}
	}
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func clip(s string) string {
	if len(s) > maxError {
		s = strings.ToValidUTF8(s[:maxError], "") + "…"
	}
	return s
}

// problem is the message of an error's body, or the body.
func problem(body []byte) string {
	var e struct{ Error struct{ Message string } }
	if json.Unmarshal(body, &e) == nil && e.Error.Message != "" {
		return e.Error.Message
	}
	return string(bytes.TrimSpace(body))
}

// request is what a row asks.
func (a *asker) request(row Row) (route string, body []byte, stream bool) {
	in := map[string]any{"model": a.subject.Model}
	switch {
	case row.Text != "":
		route = "/v1/completions" // one token more than the text, which every server takes
		in["prompt"], in["echo"], in["logprobs"], in["max_tokens"], in["temperature"] = row.Text, true, 0, 1, 0
	case row.Query != "" || row.Document != "":
		route = "/v1/embeddings"
		in["input"] = row.Query + row.Document
	default:
		stream = true
		in["stream"], in["temperature"], in["max_tokens"] = true, 0, row.MaxTokens
		if row.MaxTokens == 0 {
			in["max_tokens"] = a.opt.MaxTokens
		}
		if row.Stop != nil {
			in["stop"] = row.Stop
		}
		if route = "/v1/completions"; row.Messages == nil {
			in["prompt"] = row.Prompt
		} else {
			route, in["messages"] = "/v1/chat/completions", row.Messages
		}
	}
	body, err := json.Marshal(in)
	if err != nil {
		panic("BUG: a request does not marshal: " + err.Error())
	}
	return route, body, stream
}

// read makes an outcome of an answer.
func read(row Row, got loadgen.Asked) (o outcome, err error) {
	switch {
	case row.Text != "":
		o.Nats, o.Tokens, o.Bytes, err = scored(row.Text, got.Body)
	case row.Query != "" || row.Document != "":
		o.Vector, err = vector(got.Body)
	default:
		o.Text, o.Right = got.Text, row.right(got.Text)
	}
	return o, err
}

// scored adds up what the tokens of an echoed text cost. The first has no
// probability unless a begin token comes before it, and its bytes do not count.
func scored(text string, body []byte) (nats float64, tokens, size int, err error) {
	var in struct {
		Choices []struct {
			Logprobs struct {
				Tokens        []string   `json:"tokens"`
				TokenLogprobs []*float64 `json:"token_logprobs"`
			} `json:"logprobs"`
		} `json:"choices"`
		Usage struct {
			Completion int `json:"completion_tokens"`
		} `json:"usage"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return 0, 0, 0, fmt.Errorf("answer is no completion: %w", err)
	}
	if len(in.Choices) != 1 || len(in.Choices[0].Logprobs.Tokens) != len(in.Choices[0].Logprobs.TokenLogprobs) {
		return 0, 0, 0, errors.New("answer has no log-probabilities: the server does not score prompts (echo with logprobs)")
	}
	l := in.Choices[0].Logprobs
	size = len(text)
	for i := range max(len(l.Tokens)-in.Usage.Completion, 0) {
		switch p := l.TokenLogprobs[i]; {
		case p != nil:
			nats -= *p
			tokens++
		case strings.HasPrefix(text, l.Tokens[i]) && i == 0:
			size -= len(l.Tokens[i])
		}
	}
	if tokens == 0 || size <= 0 {
		return 0, 0, 0, errors.New("text is a single token: nothing to predict")
	}
	return nats, tokens, size, nil
}

// vector reads an embedding, scaled to length 1.
func vector(body []byte) ([]byte, error) {
	var in struct {
		Data []struct {
			Embedding []float64 `json:"embedding"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, fmt.Errorf("answer is no embedding: %w", err)
	}
	if len(in.Data) != 1 || len(in.Data[0].Embedding) == 0 {
		return nil, fmt.Errorf("answer has %d embeddings, want 1", len(in.Data))
	}
	sum := 0.0
	for _, x := range in.Data[0].Embedding {
		sum += x * x
	}
	if !(sum > 0) || math.IsInf(sum, 0) {
		return nil, errors.New("embedding has no direction")
	}
	var out []byte
	for _, x := range in.Data[0].Embedding {
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(float32(x/math.Sqrt(sum))))
	}
	return out, nil
}
