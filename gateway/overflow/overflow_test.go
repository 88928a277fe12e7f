package overflow

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"aloft/backends"
	"aloft/backends/openaihttp"
)

// queue is the local side: it answers "here" or refuses.
type queue struct {
	err   error
	asked atomic.Int32
}

func (q *queue) Submit(context.Context, *backends.Request) (*backends.Reply, error) {
	q.asked.Add(1)
	if q.err != nil {
		return nil, q.err
	}
	return &backends.Reply{Status: 200, Body: io.NopCloser(strings.NewReader("here"))}, nil
}

// provider is an external server; it keeps what it was sent.
func provider(t *testing.T, status int) (backends.Backend, *atomic.Value) {
	t.Helper()
	var last atomic.Value
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		last.Store(r.Header.Get("Authorization") + " " + r.URL.Path + " " + string(body))
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = w.Write([]byte(`"there"`))
	}))
	t.Cleanup(s.Close)
	return openaihttp.New(openaihttp.Options{BaseURL: s.URL, APIKey: "provider-key"}), &last
}

type world struct {
	*Overflow
	queue  *queue
	route  *Route
	wait   time.Duration
	missed atomic.Int32
}

func build(t *testing.T, b backends.Backend, o Options) *world {
	t.Helper()
	o.Backend, o.Input, o.Output = b, 1, 2
	route, err := NewRoute(o, Spent{})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{queue: &queue{}, route: route}
	w.Overflow = &Overflow{Next: w.queue, Route: func(m string) *Route {
		if m == "m" {
			return route
		}
		return nil
	}, Wait: func(string, int) time.Duration { return w.wait }, Missed: func(*backends.Request) { w.missed.Add(1) }}
	return w
}

func chat() *backends.Request {
	return &backends.Request{Endpoint: backends.Chat, Model: "m", Tokens: 100, MaxTokens: 50, Arrival: time.Now(),
		Place: backends.Placement{Overflow: true}, Body: []byte(`{"model":"m","messages":[]}`)}
}

func answer(t *testing.T, w *world, r *backends.Request) (text, route string) {
	t.Helper()
	reply, err := w.Submit(t.Context(), r)
	if err != nil {
		return err.Error(), ""
	}
	body, err := io.ReadAll(reply.Body)
	if err != nil {
		t.Fatal(err)
	}
	reply.Body.Close()
	return string(body), reply.Timing.Route
}

func TestOverflowGoesAwayOnlyWhenItMust(t *testing.T) {
	target := Options{Budget: 1, Target: time.Second}
	full := &backends.RetryError{Err: backends.ErrOverloaded, Reason: "queue_full"}
	for name, c := range map[string]struct {
		wait   time.Duration
		err    error
		change func(r *backends.Request)
		want   string
		asked  int32
	}{
		"in time":                  {wait: time.Second, want: "here", asked: 1},
		"too late":                 {wait: 1001 * time.Millisecond, want: `"there"`},
		"no replica":               {wait: -1, want: `"there"`},
		"queue full":               {err: full, want: `"there"`, asked: 1},
		"engine broke":             {err: backends.ErrBadReply, want: backends.ErrBadReply.Error(), asked: 1},
		"client gone":              {err: backends.ErrClientGone, want: backends.ErrClientGone.Error(), asked: 1},
		"key did not opt in":       {wait: -1, change: func(r *backends.Request) { r.Place.Overflow = false }, want: "here", asked: 1},
		"row of a batch":           {wait: -1, change: func(r *backends.Request) { r.Class = backends.Offline }, want: "here", asked: 1},
		"adapter of ours":          {wait: -1, change: func(r *backends.Request) { r.Place.Adapter = "x" }, want: "here", asked: 1},
		"model without a provider": {wait: -1, change: func(r *backends.Request) { r.Model = "n" }, want: "here", asked: 1},
	} {
		b, last := provider(t, 200)
		w := build(t, b, target)
		w.wait, w.queue.err = c.wait, c.err
		r := chat()
		if c.change != nil {
			c.change(r)
		}
		got, route := answer(t, w, r)
		if got != c.want || w.queue.asked.Load() != c.asked {
			t.Errorf("%s: %q after %d questions to the queue, want %q after %d", name, got, w.queue.asked.Load(), c.want, c.asked)
		}
		away := c.want == `"there"`
		if away != (route == backends.RouteOverflow) || away != (w.missed.Load() == 1) {
			t.Errorf("%s: route %q, %d noted as missed demand", name, route, w.missed.Load())
		}
		if sent, _ := last.Load().(string); away && sent != `Bearer provider-key /v1/chat/completions {"model":"m","messages":[]}` {
			t.Errorf("%s: provider got %q", name, sent)
		}
	}
}

func TestOverflowNamesTheProvidersModel(t *testing.T) {
	b, last := provider(t, 200)
	w := build(t, b, Options{Budget: 1, Model: "vendor/large"})
	w.wait = -1
	answer(t, w, chat())
	if sent := last.Load().(string); !strings.HasSuffix(sent, `{"model":"vendor/large","messages":[]}`) {
		t.Errorf("provider got %q", sent)
	}
}

func TestOverflowOfAForm(t *testing.T) {
	b, last := provider(t, 200)
	w := build(t, b, Options{Budget: 1, Model: "vendor/ear"})
	w.wait = -1
	const form = "--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n%s\r\n--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n\x00\xff\r\n--b--\r\n"
	r := chat()
	r.Endpoint, r.ContentType, r.Body = backends.Transcriptions, "multipart/form-data; boundary=b", fmt.Appendf(nil, form, "m")
	answer(t, w, r)
	if sent := last.Load().(string); !strings.HasSuffix(sent, "/v1/audio/transcriptions "+fmt.Sprintf(form, "vendor/ear")) {
		t.Errorf("provider got %q", sent)
	}
}

// A provider that fails must not cost the request its place in our queue.
func TestOverflowComesBack(t *testing.T) {
	for _, status := range []int{401, 404, 429, 500} {
		b, _ := provider(t, status)
		w := build(t, b, Options{Budget: 1})
		w.wait = -1
		if got, _ := answer(t, w, chat()); got != "here" {
			t.Errorf("after the provider's %d: %q, want the queue's answer", status, got)
		}
		if w.route.reserved != 0 {
			t.Errorf("after the provider's %d: $%v stay reserved", status, w.route.reserved)
		}
	}
	b, _ := provider(t, 400) // the request's own fault
	w := build(t, b, Options{Budget: 1})
	w.wait = -1
	if got, route := answer(t, w, chat()); got != `"there"` || route != backends.RouteOverflow {
		t.Errorf("the provider's 400 became %q by %q", got, route)
	}
}

func TestOverflowBudget(t *testing.T) {
	b, _ := provider(t, 200)
	// A call is reserved at (100*1 + 50*2)/1e6 = 0.0002 USD: ten fit at once.
	w := build(t, b, Options{Budget: 0.00205})
	w.wait = -1
	var away atomic.Int32
	var mu sync.Mutex
	var open []io.Closer
	var all sync.WaitGroup
	for range 40 {
		all.Go(func() {
			reply, err := w.Submit(t.Context(), chat())
			if err != nil {
				t.Error(err)
				return
			}
			if reply.Timing.Route == backends.RouteOverflow {
				away.Add(1)
				mu.Lock()
				open = append(open, reply.Body)
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if away.Load() != 10 {
		t.Errorf("%d calls went away together, want 10", away.Load())
	}
	for _, c := range open {
		c.Close()
		c.Close() // closing twice must not give back twice
	}
	if r := w.route.reserved; r > 1e-12 || r < -1e-12 {
		t.Errorf("$%v stay reserved", r)
	}
	now := time.Date(2026, 11, 30, 23, 59, 0, 0, time.UTC)
	w.route.month = "2026-11"
	for range 10 {
		w.route.Charge(now, 100, 50)
	}
	if w.route.reserve(now, 0.0002) {
		t.Error("the budget is spent, yet a call was let through")
	}
	if got := fmt.Sprintf("%s %.4f", w.route.Spent(now).Month, w.route.Spent(now).Dollars); got != "2026-11 0.0020" {
		t.Errorf("spent %s", got)
	}
	if !w.route.reserve(now.Add(2*time.Minute), 0.0002) {
		t.Error("a new month has begun, yet the call was refused")
	}
	if got := w.route.Spent(now); got.Month != "2026-12" { // the clock stepped back
		t.Errorf("%+v: a month began anew", got)
	}
}

func TestOptionsValidate(t *testing.T) {
	for want, o := range map[string]Options{
		"overflow: budget is 0, want the US dollars that a month may cost":             {Input: 1},
		"overflow: input_price and output_price are 0: the budget would bound nothing": {Budget: 1},
		"overflow: output_price is -1, want 0 or more":                                 {Budget: 1, Input: 1, Output: -1},
	} {
		if _, err := NewRoute(o, Spent{}); err == nil || err.Error() != want {
			t.Errorf("%+v: %v, want %s", o, err, want)
		}
	}
}
