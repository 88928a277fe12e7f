package batcher

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"aloft/backends"
)

// engine is a scripted Backend: it answers embeddings after alpha + beta*tokens
// with a vector that only the row's text can give, and generations with a body.
type engine struct {
	alpha, beta time.Duration

	mu    sync.Mutex
	calls [][]string // inputs of each call, in order of arrival
	fault func(call int, inputs []string) (*backends.Reply, error)
}

func reply(status int, text string) *backends.Reply {
	return &backends.Reply{Status: status, ContentType: "application/json", Body: io.NopCloser(bytes.NewReader([]byte(text)))}
}

// tokens of a test text: one a byte.
func tokens(inputs []string) (n int) {
	for _, s := range inputs {
		n += len(s)
	}
	return n
}

func vector(text string) []float32 {
	h := fnv.New32a()
	h.Write([]byte(text))
	return []float32{float32(h.Sum32() % 65521), float32(len(text))}
}

func (e *engine) Do(ctx context.Context, call *backends.Call) (*backends.Reply, error) {
	var body struct {
		Model    string          `json:"model"`
		Encoding string          `json:"encoding_format"`
		Input    json.RawMessage `json:"input"`
	}
	if err := json.Unmarshal(call.Body, &body); err != nil {
		return nil, err
	}
	var inputs []string
	if err := json.Unmarshal(body.Input, &inputs); err != nil {
		inputs = make([]string, 1)
		if err := json.Unmarshal(body.Input, &inputs[0]); err != nil {
			return nil, err
		}
	}
	e.mu.Lock()
	e.calls = append(e.calls, inputs)
	n, fault := len(e.calls), e.fault
	e.mu.Unlock()
	select {
	case <-time.After(e.alpha + time.Duration(tokens(inputs))*e.beta):
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if fault != nil {
		if r, err := fault(n, inputs); r != nil || err != nil {
			return r, err
		}
	}
	type row struct {
		Object    string `json:"object"`
		Index     int    `json:"index"`
		Embedding any    `json:"embedding"`
	}
	rows := make([]row, len(inputs))
	for i, s := range inputs {
		rows[i] = row{"embedding", i, any(vector(s))}
		if body.Encoding == "base64" {
			var raw []byte
			for _, f := range vector(s) {
				raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(f))
			}
			rows[i].Embedding = base64.StdEncoding.EncodeToString(raw)
		}
	}
	text, err := json.Marshal(map[string]any{
		"object": "list", "data": rows, "model": body.Model,
		"usage": map[string]int{"prompt_tokens": tokens(inputs), "total_tokens": tokens(inputs)},
	})
	return reply(200, string(text)), err
}

func (e *engine) sizes() (n []int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range e.calls {
		n = append(n, len(c))
	}
	return n
}

// embedding builds a request as the gateway does after its scan.
func embedding(texts ...string) *backends.Request {
	r := &backends.Request{ID: "r", Endpoint: backends.Embeddings, Model: "m", Class: backends.Interactive, MergeKey: "k"}
	for _, s := range texts {
		raw, _ := json.Marshal(s)
		r.Inputs = append(r.Inputs, raw)
		r.InputTokens = append(r.InputTokens, len(s))
		r.Tokens += len(s)
	}
	r.Body, _ = json.Marshal(map[string]any{"model": "m", "input": texts})
	return r
}

// check reads a reply and reports what is not exactly the vectors of texts.
func check(r *backends.Reply, b64 bool, texts ...string) error {
	text, err := io.ReadAll(r.Body)
	r.Body.Close()
	if err != nil || r.Status != 200 {
		return fmt.Errorf("status %d, %s, %v", r.Status, text, err)
	}
	var got struct {
		Data []struct {
			Index     int             `json:"index"`
			Embedding json.RawMessage `json:"embedding"`
		} `json:"data"`
		Usage struct {
			Prompt int `json:"prompt_tokens"`
		} `json:"usage"`
	}
	if err := json.Unmarshal(text, &got); err != nil {
		return fmt.Errorf("%s: %w", text, err)
	}
	if len(got.Data) != len(texts) {
		return fmt.Errorf("%d rows, want %d: %s", len(got.Data), len(texts), text)
	}
	for i, d := range got.Data {
		var v []float32
		if b64 {
			var raw []byte
			if err := json.Unmarshal(d.Embedding, &raw); err != nil {
				return err
			}
			for ; len(raw) >= 4; raw = raw[4:] {
				v = append(v, math.Float32frombits(binary.LittleEndian.Uint32(raw)))
			}
		} else if err := json.Unmarshal(d.Embedding, &v); err != nil {
			return err
		}
		if want := vector(texts[i]); d.Index != i || len(v) != 2 || v[0] != want[0] || v[1] != want[1] {
			return fmt.Errorf("row %d is index %d %v, want %v of %q", i, d.Index, v, want, texts[i])
		}
	}
	if got.Usage.Prompt != tokens(texts) || r.Timing.PromptTokens != tokens(texts) {
		return fmt.Errorf("usage %d, timing %d, want %d", got.Usage.Prompt, r.Timing.PromptTokens, tokens(texts))
	}
	return nil
}

func start(t *testing.T, o Options, rs ...Replica) *Batcher {
	t.Helper()
	b, err := New(o, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	b.SetReplicas(rs)
	return b
}

func stop(t *testing.T, b *Batcher) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := b.Close(ctx); err != nil {
		t.Errorf("close: %v", err)
	}
}

func rep(id string, e backends.Backend) Replica {
	return Replica{ID: id, Backend: e, Slots: 1, Shape: "s"}
}

func TestMergesWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{alpha: 10 * time.Millisecond, beta: 100 * time.Microsecond}
		b := start(t, Options{Model: "m", Merge: true, Target: time.Second}, rep("a", e))
		defer stop(t, b)
		var wg sync.WaitGroup
		begin := time.Now()
		for i := range 20 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * time.Microsecond)
				text := fmt.Sprintf("text%02d", i)
				r := embedding(text)
				r.Base64 = i%2 == 0
				got, err := b.Submit(t.Context(), r)
				if err != nil {
					t.Error(err)
				} else if err := check(got, r.Base64, text); err != nil {
					t.Error(err)
				} else if i > 0 && (got.Timing.BatchRows != 19 || got.Timing.Replica != "a") {
					t.Errorf("timing %+v, want 19 rows on a", got.Timing)
				}
			})
		}
		wg.Wait()
		if got, want := e.sizes(), []int{1, 19}; fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("calls of %v rows, want %v", got, want)
		}
		// 10.6 ms for one row of 6 tokens, 21.4 ms for nineteen
		if got, want := time.Since(begin), 32*time.Millisecond; got != want {
			t.Errorf("took %v, want %v", got, want)
		}
		s := b.Signals(time.Now())
		if s.Class[backends.Interactive].Done != 20 || s.First.Samples != 20 || s.Calls.Reasons[Idle] != 2 {
			t.Errorf("signals %+v", s)
		}
	})
}

func TestOffSendsOneRequestACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{alpha: time.Millisecond}
		b := start(t, Options{Model: "m", Merge: true, Off: true}, rep("a", e))
		defer stop(t, b)
		var wg sync.WaitGroup
		for i := range 5 {
			wg.Go(func() {
				texts := []string{fmt.Sprint("x", i), fmt.Sprint("y", i)}
				got, err := b.Submit(t.Context(), embedding(texts...))
				if err != nil {
					t.Error(err)
				} else if err := check(got, false, texts...); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if got := fmt.Sprint(e.sizes()); got != "[2 2 2 2 2]" {
			t.Errorf("calls of %v rows", got)
		}
	})
}

func TestEtaWaitsForTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{alpha: 10 * time.Millisecond, beta: 0}
		b := start(t, Options{Model: "m", Merge: true, Target: 200 * time.Millisecond}, rep("a", e))
		*b.core.fits["s"] = *NewFit(0.010, 1e-6)
		defer stop(t, b)
		for range coldSamples + 10 { // a fit that knows the engine is what may wait
			if _, err := b.Submit(t.Context(), embedding("abc")); err != nil {
				t.Fatal(err)
			}
			time.Sleep(settling / 10)
		}
		time.Sleep(settling)
		b.SetEta(0.5)
		begin := time.Now()
		if _, err := b.Submit(t.Context(), embedding("abc")); err != nil {
			t.Fatal(err)
		}
		// half of what the target leaves: (200 ms - promise of about 12 ms - 2 ms)/2, and 10 ms of work
		if got := time.Since(begin); got < 100*time.Millisecond || got > 105*time.Millisecond {
			t.Errorf("answered after %v, want about 103 ms", got)
		}
		if s := b.Signals(time.Now()); s.Calls.Reasons[Deadline] != 1 {
			t.Errorf("reasons %v, want one deadline", s.Calls.Reasons)
		}
		b.SetEta(0)
		begin = time.Now()
		if _, err := b.Submit(t.Context(), embedding("abc")); err != nil {
			t.Fatal(err)
		}
		if got := time.Since(begin); got != 10*time.Millisecond {
			t.Errorf("eager answered after %v, want 10 ms", got)
		}
	})
}

func TestGenerationHoldsASlotUntilItsBodyEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := scripted(func(ctx context.Context) (*backends.Reply, error) {
			return &backends.Reply{Status: 200, ContentType: "text/event-stream", Body: io.NopCloser(bytes.NewReader([]byte("data: x\n\n")))}, nil
		})
		b := start(t, Options{Model: "m", QueueTimeout: time.Second}, Replica{ID: "a", Backend: e, Slots: 1, Shape: "s"})
		defer stop(t, b)
		req := &backends.Request{ID: "g", Endpoint: backends.Chat, Body: []byte(`{}`), Stream: true, Tokens: 5}
		first, err := b.Submit(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		_, err = b.Submit(t.Context(), req)
		var retry *backends.RetryError
		if !errors.Is(err, backends.ErrOverloaded) || !errors.As(err, &retry) || retry.Reason != "queue_timeout" || retry.After < time.Second {
			t.Fatalf("second got %v, want queue_timeout", err)
		}
		if got := b.Signals(time.Now()); got.BusySlots != 1 || got.Slots != 1 {
			t.Errorf("slots %d of %d busy, want 1 of 1", got.BusySlots, got.Slots)
		}
		io.Copy(io.Discard, first.Body)
		first.Body.Close() // the second end must not free a second slot
		if got := b.Signals(time.Now()); got.BusySlots != 0 {
			t.Errorf("%d slots busy after the end, want 0", got.BusySlots)
		}
		third, err := b.Submit(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		third.Body.Close()
	})
}

// scripted is a Backend that is one function.
type scripted func(ctx context.Context) (*backends.Reply, error)

func (f scripted) Do(ctx context.Context, _ *backends.Call) (*backends.Reply, error) { return f(ctx) }

// Calls name the model as the engine does, answers as the client did.
func TestModelNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked []byte
		e := &engine{}
		b := start(t, Options{Model: "served", Merge: true}, rep("a", spy{e, &asked}))
		defer stop(t, b)
		r := embedding("x")
		r.Body = []byte(`{"model":"engine's","input":"x"}`)
		got, err := b.Submit(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(got.Body)
		if !bytes.Contains(asked, []byte(`"model":"engine's"`)) || !bytes.Contains(text, []byte(`"model":"served"`)) {
			t.Errorf("asked %s, answered %s", asked, text)
		}
	})
}

// spy keeps the last body that its engine was sent.
type spy struct {
	*engine
	body *[]byte
}

func (s spy) Do(ctx context.Context, call *backends.Call) (*backends.Reply, error) {
	*s.body = call.Body
	return s.engine.Do(ctx, call)
}
