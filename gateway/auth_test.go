package gateway

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"aloft/backends"
	"aloft/jobs"

	"github.com/valyala/fasthttp"
)

// withKeys is a gateway with one key of each kind.
func withKeys(t *testing.T, play script, change ...func(*Options, *Deps)) (*edge, *ring) {
	r := newRing(t, "u", &Grant{Tenant: "red"}, "few", &Grant{Tenant: "blue", Models: []string{"only-embeds"}}, "a", &Grant{Tenant: "ops", Admin: true})
	return start(t, play, append(change, func(_ *Options, d *Deps) {
		d.Keys, d.Status, d.Decisions = r, fixed{}, fixed{}
		d.Metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "m 1\n") })
	})...), r
}

type fixed struct{}

func (fixed) Status() any                          { return map[string]int{"slices": 7} }
func (fixed) Decisions(Filter) ([]Decision, error) { return nil, nil }

func TestRoles(t *testing.T) {
	for _, tt := range []struct {
		path    string
		private bool
		want    map[string]int // status by key
	}{
		{"/v1/models", false, map[string]int{"": 401, "nope": 401, "u": 200, "a": 403}},
		{"/aloft/v1/status", false, map[string]int{"": 401, "u": 403, "a": 200}},
		{"/aloft/v1/decisions", false, map[string]int{"": 401, "u": 403, "a": 200}},
		{"/metrics", false, map[string]int{"": 200, "u": 200}},
		{"/metrics", true, map[string]int{"": 401, "u": 403, "a": 200}},
		{"/healthz", false, map[string]int{"": 200, "nope": 200}},
	} {
		e, _ := withKeys(t, answer(200, "{}"), func(o *Options, _ *Deps) { o.Telemetry.PrivateMetrics = tt.private })
		for key, want := range tt.want {
			for name, value := range map[string]string{"Authorization": "Bearer " + key, "X-Api-Key": key} {
				resp, body := e.get(t, tt.path, name, value)
				if resp.StatusCode != want {
					t.Errorf("%s with %s %q: %d %s, want %d", tt.path, name, key, resp.StatusCode, body, want)
				}
				if want == 403 && (!strings.Contains(body, `"permission_error"`) || resp.Header.Get("X-Aloft-Reason") != "not_allowed") {
					t.Errorf("%s with %q: %v %s, want a permission error", tt.path, key, resp.Header, body)
				}
			}
		}
	}
}

// A model that a key may not use is forbidden to ask and not there to see.
func TestModelsOfAKey(t *testing.T) {
	e, _ := withKeys(t, answer(200, "{}"))
	few := []string{"Authorization", "bearer few"}
	if resp, body := e.post(t, "/v1/embeddings", embedBody, few...); resp.StatusCode != 403 || !strings.Contains(body, `"model_not_allowed"`) {
		t.Errorf("a foreign model: %d %s, want 403 model_not_allowed", resp.StatusCode, body)
	}
	if o := e.ledger.wait(t); o.Reason != "not_allowed" || o.Key != "id-few" {
		t.Errorf("observed %+v, want not_allowed of id-few", o)
	}
	if resp, _ := e.get(t, "/v1/models/tiny", few...); resp.StatusCode != 404 {
		t.Errorf("a foreign model's page: %d, want 404", resp.StatusCode)
	}
	if _, body := e.get(t, "/v1/models", few...); strings.Contains(body, "tiny") || !strings.Contains(body, "only-embeds") {
		t.Errorf("list %s, want only-embeds alone", body)
	}
	if resp, _ := e.post(t, "/v1/embeddings", strings.Replace(embedBody, "tiny", "only-embeds", 1), few...); resp.StatusCode != 200 {
		t.Errorf("its own model: %d", resp.StatusCode)
	}
}

func TestLimits(t *testing.T) {
	const usage = `{"usage":{"prompt_tokens":5,"completion_tokens":6,"total_tokens":11}}`
	tests := []struct {
		name       string
		set        limits
		kind, code string
		reason     string
		after      string
		retry      string
	}{
		{"requests", limits{requests: 1}, "requests", "rate_limit_exceeded", "rate_limit", "2", ""},
		{"tokens", limits{tokens: 300}, "tokens", "rate_limit_exceeded", "rate_limit", "2", ""},
		{"budget", limits{budget: 300}, "insufficient_quota", "insufficient_quota", "budget", "", "false"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e, r := withKeys(t, answer(200, usage))
			l := &tt.set
			r.limits["id-u"] = l
			u := []string{"Authorization", "Bearer u"}
			for range 5 { // the estimate of 258 fits once; what is used fits more often
				resp, body := e.post(t, "/v1/chat/completions", chatBody, u...)
				if tt.set.tokens > 0 && resp.Header.Get("X-Ratelimit-Limit-Tokens") != "300" || tt.set.requests > 0 && resp.Header.Get("X-Ratelimit-Limit-Requests") != "1" {
					t.Fatalf("%d %v, want the limit", resp.StatusCode, resp.Header)
				}
				if resp.StatusCode == 200 {
					continue
				}
				want := map[string]string{"Retry-After": tt.after, "X-Should-Retry": tt.retry, "X-Aloft-Reason": tt.reason}
				for k, v := range want {
					if resp.Header.Get(k) != v {
						t.Errorf("%s is %q, want %q", k, resp.Header.Get(k), v)
					}
				}
				if resp.StatusCode != 429 || !strings.Contains(body, `"type":"`+tt.kind+`"`) || !strings.Contains(body, `"code":"`+tt.code+`"`) {
					t.Errorf("%d %s, want a 429 of %s", resp.StatusCode, body, tt.kind)
				}
				for _, n := range l.settled {
					if n != 11 {
						t.Errorf("settled %v, want 11 each", l.settled)
					}
				}
				return
			}
			t.Error("the limit never held")
		})
	}
}

// What a reservation comes to: the usage, what had been generated, or nothing.
func TestSettle(t *testing.T) {
	for _, tt := range []struct {
		name, body string
		script     script
		want       int
	}{
		{"unary", chatBody, answer(200, `{"usage":{"prompt_tokens":5,"completion_tokens":6,"total_tokens":11}}`), 11},
		{"stream", streamBody, plays(io.EOF, frameHel, frameFinish, frameUsage, frameDone), 9},
		{"broken stream", streamBody, plays(io.EOF, frameHel, frameLo), 4}, // our count of the prompt and two events
		{"refused", chatBody, fails(backends.ErrOverloaded), 0},
		{"refused stream", streamBody, fails(backends.ErrOverloaded), 0},
		{"engine's error", chatBody, answer(500, "no"), 0},
	} {
		e, r := withKeys(t, tt.script)
		r.limits["id-u"].requests = 10
		resp, _ := e.post(t, "/v1/chat/completions", tt.body, "X-Api-Key", "u")
		if resp.Header.Get("X-Ratelimit-Remaining-Requests") != "9" || resp.Header.Get("X-Ratelimit-Reset-Requests") != "1s" {
			t.Errorf("%s: headers %v, want the quota", tt.name, resp.Header)
		}
		e.ledger.wait(t)
		r.mu.Lock()
		if got := r.limits["id-u"].settled; !slices.Equal(got, []int{tt.want}) {
			t.Errorf("%s: settled %v, want once %d", tt.name, got, tt.want)
		}
		r.mu.Unlock()
	}
}

// Rows run on the key of their batch: its models and its budget hold for them.
func TestRowsOfAKey(t *testing.T) {
	e, r := withKeys(t, answer(200, `{"usage":{"prompt_tokens":3,"total_tokens":3}}`))
	row := func(key string) jobs.Row {
		return jobs.Row{ID: "r", Tenant: "red", Key: key, Endpoint: backends.Embeddings, Body: []byte(embedBody)}
	}
	r.limits["id-u"].requests = 1 // not for rows
	for key, want := range map[string]int{"id-u": 200, "id-gone": 401, "id-few": 403} {
		for range 2 {
			if got, err := e.Call(t.Context(), row(key)); err != nil || got.Status != want {
				t.Errorf("row of %s: %d %s, %v; want %d", key, got.Status, got.Body, err, want)
			}
		}
	}
	r.limits["id-u"].budget = 1
	if got, err := e.Call(t.Context(), row("id-u")); err != nil || got.Status != 429 || !got.Final || !strings.Contains(string(got.Body), "insufficient_quota") {
		t.Errorf("row over the budget: %+v, %v; want a 429 that stays", got, err)
	}
	r.limits["id-u"].running++ // a request that may leave some of it
	busy, err := e.Call(t.Context(), row("id-u"))
	if again := new(backends.RetryError); !errors.As(err, &again) || again.After < time.Second {
		t.Errorf("row over what is held of the budget: %+v, %v; want to be asked again", busy, err)
	}
	r.limits["id-u"].running--
	r.limits["id-u"].budget = 0
	held := start(t, func(ctx context.Context, _ *backends.Request) (*backends.Reply, error) {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}, func(_ *Options, d *Deps) { d.Keys = r })
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(10*time.Millisecond, func() { cancel(backends.ErrDraining) })
	if _, err := held.Call(ctx, row("id-u")); !errors.Is(err, backends.ErrDraining) {
		t.Errorf("ended: %v", err)
	}
}

func TestResetForm(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0ms", -1: "0ms", time.Microsecond: "1ms", 20 * time.Millisecond: "20ms", time.Second: "1s", 1500 * time.Millisecond: "1.5s",
		6 * time.Minute: "6m0s", 61 * time.Second: "1m1s", time.Hour + time.Second: "1h0m1s",
	} {
		if got := string(appendReset(nil, d)); got != want {
			t.Errorf("%v is %q, want %q", d, got, want)
		}
	}
}

// A request larger than the whole limit is not to be tried again, ever.
func TestLimitThatNoWaitMends(t *testing.T) {
	for _, kind := range []string{"tokens", "budget"} {
		f := limitFault(&LimitError{Kind: kind, Limit: 10, After: -1})
		if !f.final || f.retryAfter() != 0 {
			t.Errorf("%s: final %v, retry after %v", kind, f.final, f.retryAfter())
		}
	}
}

// What a client asks for never counts as less than nothing.
func TestEstimateDoesNotOverflow(t *testing.T) {
	const most = 1<<63 - 1
	for _, tt := range []struct{ max, n, context, want int }{
		{0, 0, 0, 10 + 256}, {5, 2, 0, 10 + 10}, {5, 2, 12, 10 + 4},
		{0, most, 0, 10 + mostTokens}, {2, 1 << 62, 0, 10 + mostTokens}, {most, 1, 0, 10 + mostTokens}, {most, most, 4096, 10 + mostTokens},
		{most, most, 10, 10},
	} {
		req := &backends.Request{Endpoint: backends.Chat, Tokens: 10, MaxTokens: tt.max}
		if got := estimate(req, &Model{Context: tt.context}, tt.n); got != tt.want {
			t.Errorf("max_tokens %d, n %d, context %d: %d, want %d", tt.max, tt.n, tt.context, got, tt.want)
		}
	}
}

// What waits in the pool for its next request holds nothing of the last one's.
func TestIdleExchangeHoldsNoKey(t *testing.T) {
	s, err := New(Options{}, Deps{Catalog: testModels(), Submitter: answer(200, "{}")}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer s.stop(backends.ErrDraining)
	for range 100 { // the pool may give another one
		var c fasthttp.RequestCtx
		c.Request.Header.SetMethod("GET")
		c.Request.SetRequestURI("/healthz")
		c.Request.Header.Set("Authorization", "Bearer secret")
		s.handle(&c)
		x := exchanges.Get().(*exchange)
		if !reflect.ValueOf(*x).IsZero() {
			t.Fatalf("an idle exchange holds %+v", x)
		}
	}
}

// A request without a valid key is in the log and the metrics, too.
func TestNoKeyIsObserved(t *testing.T) {
	e, _ := withKeys(t, answer(200, "{}"))
	for key, want := range map[string]int{"nope": 401, "a": 403} {
		if resp, _ := e.post(t, "/v1/chat/completions", chatBody, "Authorization", "Bearer "+key); resp.StatusCode != want {
			t.Errorf("key %q: %d, want %d", key, resp.StatusCode, want)
		}
		if o := e.ledger.wait(t); o.Status != want || o.Endpoint != backends.Chat {
			t.Errorf("observed %+v, want a %d", o, want)
		}
	}
}
