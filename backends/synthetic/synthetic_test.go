package synthetic

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"aloft/backends"
	"aloft/backends/openai"
	"aloft/backends/serve"
	"aloft/backends/synthetic/law"
)

// roundLaw has times that are easy to add up.
func roundLaw() law.Law {
	return law.Law{AlphaMs: 10, BetaMsPerToken: 1, StepMs: 10, StepMsPerSeq: 1, PrefillTokensPerS: 1000, Slots: 2, KVTokens: 64, BlockTokens: 16,
		SleepMs: 5, WakeMs: 7}
}

// inBubble runs f with an engine on the bubble's clock.
func inBubble(t *testing.T, o Options, f func(t *testing.T, e *engine)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(o, timer)
		ctx, stop := context.WithCancel(t.Context())
		go e.decode(ctx)
		f(t, e)
		stop()
		<-e.over
	})
}

func texts(s ...string) *serve.EmbedRequest {
	req := &serve.EmbedRequest{}
	for _, text := range s {
		req.Inputs = append(req.Inputs, serve.Input{Text: text})
	}
	return req
}

func TestBatchesComputeInTurn(t *testing.T) {
	inBubble(t, Options{Model: "m", Law: roundLaw()}, func(t *testing.T, e *engine) {
		start := time.Now()
		ended := make(chan time.Duration, 3)
		for _, rows := range []int{1, 2, 3} { // one token a row: 11, 12, 13 ms
			time.Sleep(time.Millisecond)
			go func() {
				if _, err := e.Embed(t.Context(), texts(slices.Repeat([]string{"abcd"}, rows)...)); err != nil {
					t.Error(err)
				}
				ended <- time.Since(start)
			}()
			synctest.Wait()
		}
		for _, want := range []time.Duration{12, 24, 37} {
			if got := <-ended; got != want*time.Millisecond {
				t.Errorf("batch ended after %v, want %dms", got, want)
			}
		}
		// After a pause the clock starts anew.
		time.Sleep(time.Second)
		start = time.Now()
		if _, err := e.Embed(t.Context(), texts("abcd")); err != nil || time.Since(start) != 11*time.Millisecond {
			t.Errorf("batch after a pause took %v, %v", time.Since(start), err)
		}
	})
}

func TestCancelledBatchFreesTheEngine(t *testing.T) {
	inBubble(t, Options{Model: "m", Law: roundLaw()}, func(t *testing.T, e *engine) {
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Millisecond)
		defer cancel()
		if _, err := e.Embed(ctx, texts(strings.Repeat("x", 400))); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
		if _, err := e.Embed(t.Context(), texts("abcd")); err != nil || time.Since(start) != 14*time.Millisecond {
			t.Errorf("next batch ended after %v, %v, want 14ms", time.Since(start), err)
		}
	})
}

func TestVectors(t *testing.T) {
	inBubble(t, Options{Model: "m", Law: roundLaw(), Dim: 8, Context: 4}, func(t *testing.T, e *engine) {
		a, err := e.Embed(t.Context(), texts("one", "two", "one"))
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(a.Vectors[0], a.Vectors[2]) || reflect.DeepEqual(a.Vectors[0], a.Vectors[1]) || a.PromptTokens != 3 {
			t.Errorf("%+v", a)
		}
		for _, dims := range []int{0, 3, 8} {
			req := texts("one")
			req.Dimensions = dims
			r, err := e.Embed(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			norm := 0.0
			for _, f := range r.Vectors[0] {
				norm += float64(f) * float64(f)
			}
			if want := map[int]int{0: 8, 3: 3, 8: 8}[dims]; len(r.Vectors[0]) != want || math.Abs(norm-1) > 1e-5 {
				t.Errorf("dimensions %d: %d long, norm %v", dims, len(r.Vectors[0]), norm)
			}
		}
		req := texts("one")
		req.Dimensions = 9
		var wire *openai.Error
		if _, err := e.Embed(t.Context(), req); !errors.As(err, &wire) || wire.Param != "dimensions" {
			t.Errorf("too many dimensions: %v", err)
		}
		if _, err := e.Embed(t.Context(), texts(strings.Repeat("x", 17))); !errors.Is(err, backends.ErrTooLong) {
			t.Errorf("too long: %v", err)
		}
		if _, err := e.Embed(t.Context(), &serve.EmbedRequest{Inputs: []serve.Input{{Tokens: []int{1, 2, 3, 4, 5}}}}); !errors.Is(err, backends.ErrTooLong) {
			t.Errorf("too many ids: %v", err)
		}
	})
}

// tokens generates n tokens from a prompt of 10 and returns when each came.
func tokens(t *testing.T, ctx context.Context, e *engine, n int) (at []time.Duration, err error) {
	start := time.Now()
	_, err = e.Generate(ctx, &serve.GenerateRequest{Prompt: strings.Repeat("abc ", 10), MaxTokens: n}, func(serve.Piece) error {
		at = append(at, time.Since(start))
		return nil
	})
	return at, err
}

func millis(ms ...int) (out []time.Duration) {
	for _, m := range ms {
		out = append(out, time.Duration(m)*time.Millisecond)
	}
	return out
}

func TestContinuousBatching(t *testing.T) {
	inBubble(t, Options{Model: "m", Law: roundLaw(), OutputTokens: 1000}, func(t *testing.T, e *engine) {
		type result struct{ at []time.Duration }
		results := make([]chan result, 3)
		for i := range results {
			results[i] = make(chan result, 1)
			go func() {
				at, err := tokens(t, t.Context(), e, 2+i)
				if err != nil {
					t.Error(err)
				}
				results[i] <- result{at}
			}()
			synctest.Wait()
			time.Sleep(time.Millisecond)
		}
		// First: prefill 10 + step 11 alone; the second joins then (10 + 12).
		// The third waits for a slot, which the first leaves at 43.
		for i, want := range [][]time.Duration{millis(21, 43), millis(42, 42+22, 42+34), millis(63, 63+12, 63+23, 63+34)} {
			if got := (<-results[i]).at; !reflect.DeepEqual(got, want) {
				t.Errorf("sequence %d: tokens at %v, want %v", i, got, want)
			}
		}
	})
}

func TestKVBoundsTheBatch(t *testing.T) {
	inBubble(t, Options{Model: "m", Law: roundLaw(), OutputTokens: 1000}, func(t *testing.T, e *engine) {
		// 10 + 30 tokens are 48 of 64 with blocks of 16: the second must wait for the first.
		first := make(chan time.Duration, 1)
		go func() {
			at, _ := tokens(t, t.Context(), e, 30)
			first <- at[29]
		}()
		synctest.Wait()
		at, err := tokens(t, t.Context(), e, 30)
		if err != nil || at[0] != <-first+21*time.Millisecond {
			t.Errorf("second sequence's first token at %v, %v", at[0], err)
		}
		if _, err := tokens(t, t.Context(), e, 60); !errors.Is(err, backends.ErrTooLong) {
			t.Errorf("more than the whole cache: %v", err)
		}
	})
}

func TestCancelledSequenceLeavesItsSlot(t *testing.T) {
	inBubble(t, Options{Model: "m", Law: roundLaw(), OutputTokens: 1000}, func(t *testing.T, e *engine) {
		ctx, cancel := context.WithCancelCause(t.Context())
		gone := errors.New("gone")
		time.AfterFunc(30*time.Millisecond, func() { cancel(gone) })
		if at, err := tokens(t, ctx, e, 40); !errors.Is(err, gone) || len(at) != 1 {
			t.Errorf("cancelled: %v, %v", at, err)
		}
		// Cancelled at 30; the step under way ends at 32 and frees the cache.
		if at, err := tokens(t, t.Context(), e, 1); err != nil || at[0] != 23*time.Millisecond {
			t.Errorf("next: %v, %v", at, err)
		}
	})
}

func TestSleepAndWakeTakeTheirTime(t *testing.T) {
	inBubble(t, Options{Model: "m", Law: roundLaw()}, func(t *testing.T, e *engine) {
		start := time.Now()
		if err := errors.Join(e.Wake(t.Context()), e.Sleep(t.Context()), e.Sleep(t.Context()), e.Wake(t.Context())); err != nil || time.Since(start) != 12*time.Millisecond {
			t.Errorf("%v, %v", time.Since(start), err)
		}
	})
}

func TestAnswers(t *testing.T) {
	e := newEngine(Options{Model: "m", Law: roundLaw(), OutputTokens: 6, Context: 20}, timer)
	in := serve.Input{Text: "red green blue"}
	whole, reason := e.answer(&serve.GenerateRequest{}, in, 20)
	if again, _ := e.answer(&serve.GenerateRequest{}, in, 20); !reflect.DeepEqual(whole, again) || reason != "stop" || len(whole) != 6 {
		t.Errorf("%q, %q", whole, reason)
	}
	text := strings.Join(whole, "")
	if cut, reason := e.answer(&serve.GenerateRequest{MaxTokens: 4}, in, 20); !reflect.DeepEqual(cut, whole[:4]) || reason != "length" {
		t.Errorf("max_tokens: %q %q", cut, reason)
	}
	if cut, reason := e.answer(&serve.GenerateRequest{}, in, 2); len(cut) != 2 || reason != "length" {
		t.Errorf("context: %q %q", cut, reason)
	}
	for from := range text { // every substring as stop string
		for to := from + 1; to <= len(text); to++ {
			stop := text[from:to]
			cut, reason := e.answer(&serve.GenerateRequest{Stop: []string{stop}}, in, 20)
			if got := strings.Join(cut, ""); got != text[:strings.Index(text, stop)] || reason != "stop" {
				t.Fatalf("stop %q: %q, %q", stop, got, reason)
			}
		}
	}
}

// start serves a timed engine on a real socket until the test ends.
func start(t *testing.T, o Options) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, ln, o, slog.New(slog.DiscardHandler)) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return "http://" + ln.Addr().String()
}

func fast() Options {
	l := law.Default()
	l.AlphaMs, l.StepMs, l.StepMsPerSeq, l.SleepMs, l.WakeMs = 0.1, 0.1, 0, 1, 1
	return Options{Model: "m", Law: l, OutputTokens: 10}
}

func do(t *testing.T, url, fault, body string) (status int, reply string, err error) {
	t.Helper()
	req, err := http.NewRequest("POST", url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(faultHeader, fault)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return res.StatusCode, string(b), err
}

const (
	chat   = `{"model":"m","messages":[{"role":"user","content":"fly high"}]}`
	stream = `{"model":"m","messages":[{"role":"user","content":"fly high"}],"stream":true}`
)

func TestServe(t *testing.T) {
	url := start(t, fast())
	if status, reply, err := do(t, url+"/v1/chat/completions", "", chat); status != 200 || err != nil || !strings.Contains(reply, `"completion_tokens":10`) {
		t.Errorf("chat: %d %s %v", status, reply, err)
	}
	if status, reply, err := do(t, url+"/v1/chat/completions", "", stream); status != 200 || err != nil || !strings.HasSuffix(reply, "data: [DONE]\n\n") {
		t.Errorf("stream: %d %s %v", status, reply, err)
	}
	_, reply, err := do(t, url+"/v1/embeddings", "", `{"model":"m","input":["a","b"]}`)
	if items, err2 := openai.Split(backends.Embeddings, []byte(reply), 2); err != nil || err2 != nil || items.Prompt != 2 || len(items.Rows) != 2 {
		t.Errorf("embeddings: %s %v %v", reply, err, err2)
	}
	for _, path := range []string{"/sleep?level=1", "/wake_up"} {
		if status, reply, err := do(t, url+path, "", ""); status != 200 || err != nil {
			t.Errorf("%s: %d %s %v", path, status, reply, err)
		}
	}
	res, err := http.Get(url + "/v1/models")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if card, _ := io.ReadAll(res.Body); !strings.Contains(string(card), "synthetic: timed engine, no model") {
		t.Errorf("model card: %s", card)
	}
}

func TestFaults(t *testing.T) {
	crashed := make(chan struct{}, 1)
	o := fast()
	o.Crash = func() { crashed <- struct{}{}; panic(http.ErrAbortHandler) }
	url := start(t, o)
	if _, _, err := do(t, url+"/v1/chat/completions", "crash", chat); err == nil || len(crashed) != 1 {
		t.Errorf("crash: %v", err)
	}
	if status, reply, err := do(t, url+"/v1/chat/completions", "error500", stream); status != 500 || err != nil || !strings.Contains(reply, `"error"`) {
		t.Errorf("error500: %d %s %v", status, reply, err)
	}
	if status, _, _ := do(t, url+"/v1/chat/completions", "dance", stream); status != 400 {
		t.Errorf("unknown fault: %d", status)
	}
	for _, fault := range []string{"truncate", "reset-mid-stream"} {
		status, reply, err := do(t, url+"/v1/chat/completions", fault, stream)
		// A reset may also drop events that were on their way.
		if status != 200 || err == nil || strings.Contains(reply, "[DONE]") || (fault == "truncate" && strings.Count(reply, "data: ") != faultAfter) {
			t.Errorf("%s: %d %s %v", fault, status, reply, err)
		}
		if status, reply, err = do(t, url+"/v1/chat/completions", fault, chat); status != 200 || err == nil {
			t.Errorf("%s of a whole reply: %d %s %v", fault, status, reply, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, "POST", url+"/v1/embeddings", strings.NewReader(`{}`))
	req.Header.Set(faultHeader, "hang")
	if res, err := http.DefaultClient.Do(req); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("hang: %v %v", res, err)
	}
}

func TestFaultEvery(t *testing.T) {
	o := fast()
	o.Fault, o.FaultEvery = "error500", 3
	url := start(t, o)
	var got []int
	for range 6 {
		status, _, err := do(t, url+"/v1/chat/completions", "", chat)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, status)
	}
	if want := []int{200, 200, 500, 200, 200, 500}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestValidate(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"no model": func(o *Options) { o.Model = "" }, "law": func(o *Options) { o.Law.Slots = -1 },
		"fault": func(o *Options) { o.Fault, o.FaultEvery = "dance", 1 }, "negative": func(o *Options) { o.Dim = -1 },
	} {
		o := fast()
		if change(&o); o.Validate() == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

func TestExactlyIsNeverEarlyAndCanBeCancelled(t *testing.T) {
	for _, d := range []time.Duration{0, 300 * time.Microsecond, 4 * time.Millisecond} {
		until := time.Now().Add(d)
		if err := exactly(t.Context(), until); err != nil || time.Now().Before(until) {
			t.Errorf("wait of %v: %v early, %v", d, time.Until(until), err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	if err := exactly(ctx, time.Now().Add(time.Hour)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("cancelled: %v", err)
	}
}

// BenchmarkWait reports how late waits of 5 ms end, by the runtime's timer and
// by exactly: microseconds at the median and at p99.
func BenchmarkWait(b *testing.B) {
	for name, wait := range map[string]func(context.Context, time.Time) error{"timer": timer, "exactly": exactly} {
		b.Run(fmt.Sprint(name), func(b *testing.B) {
			var late []time.Duration
			for b.Loop() {
				until := time.Now().Add(5 * time.Millisecond)
				if err := wait(b.Context(), until); err != nil {
					b.Fatal(err)
				}
				late = append(late, time.Since(until))
			}
			slices.Sort(late)
			b.ReportMetric(float64(late[len(late)/2].Microseconds()), "p50-us")
			b.ReportMetric(float64(late[len(late)*99/100].Microseconds()), "p99-us")
		})
	}
}
