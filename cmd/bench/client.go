package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// client is a lean HTTP client: connections are kept, bodies are made before the
// clock starts and answers are read but not decoded. It shares the machine with
// what it measures.
type client struct {
	base string
	http http.Client
}

const maxReply = 64 << 20 // bytes

func newClient(base string) *client {
	return &client{base: base, http: http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}}}
}

// do sends a request and reads the whole answer into buf[:0].
func (c *client) do(req *http.Request, buf []byte) ([]byte, error) {
	resp, err := c.open(req)
	if err != nil {
		return buf, err
	}
	defer resp.Body.Close()
	b := bytes.NewBuffer(buf[:0])
	_, err = b.ReadFrom(io.LimitReader(resp.Body, maxReply))
	return b.Bytes(), err
}

// open returns the response of a request that was answered 200.
func (c *client) open(req *http.Request) (*http.Response, error) {
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 300))
		return nil, fmt.Errorf("%s %s: %s: %s", req.Method, req.URL.Path, resp.Status, bytes.TrimSpace(text))
	}
	return resp, nil
}

func (c *client) request(ctx context.Context, path string, body []byte) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+path, bytes.NewReader(body))
	if err == nil {
		req.Header.Set("Content-Type", "application/json")
	}
	return req, err
}

func (c *client) post(ctx context.Context, path string, body, buf []byte) ([]byte, error) {
	req, err := c.request(ctx, path, body)
	if err != nil {
		return buf, err
	}
	return c.do(req, buf)
}

// get decodes an answer into v (nil = only the status counts).
func (c *client) get(ctx context.Context, path string, v any) error {
	body, err := c.getText(ctx, path)
	if err != nil || v == nil {
		return err
	}
	return json.Unmarshal(body, v)
}

func (c *client) getText(ctx context.Context, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path, nil)
	if err != nil {
		return nil, err
	}
	return c.do(req, nil)
}

// loop is a closed loop: each of n clients sends its next request when the last
// one is answered.
type loop struct {
	n    int
	span time.Duration
	// send does the i-th request of all and counts what came of it while the
	// clock runs.
	send func(ctx context.Context, i int, count func(int)) error
}

// lead is how long a closed loop runs before it is measured.
const lead = 150 * time.Millisecond

// rate returns what was counted, per second.
func (l loop) rate(ctx context.Context) (float64, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next, counted atomic.Int64
	var measuring, over atomic.Bool
	count := func(n int) {
		if measuring.Load() {
			counted.Add(int64(n))
		}
	}
	var clients sync.WaitGroup
	for range l.n {
		clients.Go(func() {
			for !over.Load() {
				if err := l.send(ctx, int(next.Add(1)-1), count); err != nil && !over.Load() {
					cancel(err)
					return
				}
			}
		})
	}
	var took time.Duration
	if pause(ctx, lead) {
		measuring.Store(true)
		began := time.Now()
		pause(ctx, l.span)
		took = time.Since(began)
		measuring.Store(false)
	}
	err := context.Cause(ctx)
	over.Store(true)
	clients.Wait()
	if err != nil {
		return 0, err
	}
	return float64(counted.Load()) / took.Seconds(), nil
}

// pause waits and reports whether ctx lasted.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// answer is what one stream delivered.
type answer struct{ events, tokens int }

// stream reads a chat answer and calls event for every piece of text. The
// answer's tokens are those that the server reports at the end.
func (c *client) stream(ctx context.Context, body []byte, event func()) (answer, error) {
	var a answer
	req, err := c.request(ctx, "/v1/chat/completions", body)
	if err != nil {
		return a, err
	}
	resp, err := c.open(req)
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		switch {
		case !ok:
		case bytes.Equal(data, []byte("[DONE]")):
			return a, nil
		case bytes.Contains(data, []byte(`"choices":[]`)):
			var v struct {
				Usage struct {
					CompletionTokens int `json:"completion_tokens"`
				}
			}
			if err := json.Unmarshal(data, &v); err != nil {
				return a, fmt.Errorf("usage frame: %w", err)
			}
			a.tokens = v.Usage.CompletionTokens
		case bytes.HasPrefix(data, []byte(`{"error"`)):
			return a, fmt.Errorf("the stream broke: %s", data)
		case bytes.Contains(data, []byte(`"content":"`)) && !bytes.Contains(data, []byte(`"content":""`)):
			a.events++
			event()
		}
	}
	if err := lines.Err(); err != nil {
		return a, err
	}
	return a, errors.New("the stream ended before [DONE]")
}
