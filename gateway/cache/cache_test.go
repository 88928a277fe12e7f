package cache

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/tidwall/gjson"

	"aloft/backends"
	"aloft/backends/openai"
)

// lengths is an engine whose vector of a text is its length and first letter;
// it counts one token a letter and keeps the bodies it was asked.
type lengths struct {
	mu     sync.Mutex
	bodies []string
	fail   int
}

func (l *lengths) Submit(_ context.Context, r *backends.Request) (*backends.Reply, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bodies = append(l.bodies, string(r.Body))
	if l.fail > 0 {
		return &backends.Reply{Status: l.fail, Body: io.NopCloser(strings.NewReader("{}"))}, nil
	}
	var rows [][]byte
	tokens := 0
	for _, row := range r.Inputs {
		text := strings.Trim(string(row), `"`)
		rows = append(rows, fmt.Appendf(nil, "[%d,%d]", len(text), text[0]))
		tokens += len(text)
	}
	body, err := openai.AppendEmbeddings(nil, rows, openai.EmbeddingsReply{Model: r.Model, PromptTokens: tokens, Base64: r.Base64})
	return &backends.Reply{Status: 200, ContentType: "application/json", Body: io.NopCloser(strings.NewReader(string(body)))}, err
}

func request(t *testing.T, tenant, body string) *backends.Request {
	t.Helper()
	s, err := openai.ScanRequest(backends.Embeddings, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	r := &backends.Request{Endpoint: backends.Embeddings, Model: "m", Tenant: tenant, Body: []byte(body), Inputs: s.Inputs, MergeKey: s.MergeKey, Vectors: s.Vectors}
	for _, in := range s.Inputs {
		r.InputTokens = append(r.InputTokens, len(in)-2)
		r.Tokens += len(in) - 2
	}
	return r
}

func ask(t *testing.T, c *Cache, r *backends.Request) (string, string) {
	t.Helper()
	reply, err := c.Submit(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(reply.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text), reply.Timing.Route
}

func TestCacheAnswersWhatItKnows(t *testing.T) {
	engine := &lengths{}
	c, err := New(engine, 1<<20, always)
	if err != nil {
		t.Fatal(err)
	}
	first, route := ask(t, c, request(t, "a", `{"model":"m","input":["one","three"]}`))
	if route != "" {
		t.Errorf("first route %q, want the engine", route)
	}
	again, route := ask(t, c, request(t, "a", `{"model":"m","input":["one","three"]}`))
	if again != first || route != backends.RouteCache {
		t.Errorf("second answer %q by %q, want %q by cache", again, route, first)
	}
	// In part: only the new text is asked for, indices are the caller's.
	mixed, _ := ask(t, c, request(t, "a", `{"input":["three","seventh","one","seventh"],"model":"m"}`))
	want := `{"object":"list","data":[{"object":"embedding","index":0,"embedding":[5,116]},{"object":"embedding","index":1,"embedding":[7,115]},` +
		`{"object":"embedding","index":2,"embedding":[3,111]},{"object":"embedding","index":3,"embedding":[7,115]}],"model":"m","usage":{"prompt_tokens":22,"total_tokens":22}}`
	if mixed != want {
		t.Errorf("mixed answer\n%s\nwant\n%s", mixed, want)
	}
	if got := gjson.Get(engine.bodies[1], "input").Raw; len(engine.bodies) != 2 || got != `["seventh","seventh"]` {
		t.Errorf("engine was asked %d times, the second time %s", len(engine.bodies), got)
	}
	if hits, misses, _ := c.Stats(); hits != 4 || misses != 4 {
		t.Errorf("%d hits, %d misses, want 4 and 4", hits, misses)
	}
}

func TestCacheKeepsApart(t *testing.T) {
	for name, second := range map[string]func(t *testing.T) *backends.Request{
		"tenants": func(t *testing.T) *backends.Request { return request(t, "b", `{"model":"m","input":"one"}`) },
		"options": func(t *testing.T) *backends.Request {
			return request(t, "a", `{"model":"m","input":"one","dimensions":2}`)
		},
		"adapters": func(t *testing.T) *backends.Request {
			r := request(t, "a", `{"model":"m","input":"one"}`)
			r.Place.Adapter = "x"
			return r
		},
		"models": func(t *testing.T) *backends.Request {
			r := request(t, "a", `{"model":"m","input":"one"}`)
			r.Model = "n"
			return r
		},
		"ids": func(t *testing.T) *backends.Request { return request(t, "a", `{"model":"m","input":[[1,2,3]]}`) },
	} {
		engine := &lengths{}
		c, _ := New(engine, 1<<20, always)
		ask(t, c, request(t, "a", `{"model":"m","input":"one"}`))
		ask(t, c, second(t))
		if len(engine.bodies) != 2 {
			t.Errorf("%s: engine was asked %d times, want 2", name, len(engine.bodies))
		}
	}
}

func TestCacheEncodings(t *testing.T) {
	c, _ := New(&lengths{}, 1<<20, always)
	ask(t, c, request(t, "a", `{"model":"m","input":"one"}`))
	got, route := ask(t, c, request(t, "a", `{"model":"m","input":"one","encoding_format":"base64"}`))
	if v := gjson.Get(got, "data.0.embedding").String(); v != "AABAQAAA3kI=" || route != backends.RouteCache {
		t.Errorf("base64 of a remembered list is %s by %q", v, route)
	}
}

func TestCacheBound(t *testing.T) {
	const most = 10 * (entryOverhead + len("[9,116]"))
	c, _ := New(&lengths{}, int64(most), always)
	for i := range 1000 {
		ask(t, c, request(t, "a", fmt.Sprintf(`{"model":"m","input":"text %04d"}`, i)))
		if _, _, bytes := c.Stats(); bytes > int64(most) || bytes < 0 {
			t.Fatalf("%d bytes held, at most %d are allowed", bytes, most)
		}
	}
	if c.rows.Len() != 10 {
		t.Errorf("%d rows held, want 10", c.rows.Len())
	}
	c.Purge()
	if _, _, bytes := c.Stats(); bytes != 0 {
		t.Errorf("%d bytes held after a purge", bytes)
	}
}

func always(string) bool { return true }

// While a model's engines are renewed nothing is remembered or looked up, and an
// answer that was asked for before a purge is not remembered after it.
func TestCacheOfAModelThatChanges(t *testing.T) {
	engine, sure := &lengths{}, false
	c, _ := New(engine, 1<<20, func(string) bool { return sure })
	for range 2 {
		ask(t, c, request(t, "a", `{"model":"m","input":"one"}`))
	}
	if _, _, bytes := c.Stats(); bytes != 0 || len(engine.bodies) != 2 {
		t.Errorf("%d bytes held, %d questions, want none and 2", bytes, len(engine.bodies))
	}
	sure = true
	r := request(t, "a", `{"model":"m","input":"one"}`)
	a := c.look(r)
	c.Purge()
	c.learn(a, [][]byte{[]byte("[1]")}, []int{1})
	if _, _, bytes := c.Stats(); bytes != 0 || string(a.rows[0].vector) != "[1]" {
		t.Errorf("%d bytes held of before the purge, row %q", bytes, a.rows[0].vector)
	}
}

func TestCacheForgetsFailures(t *testing.T) {
	engine := &lengths{fail: 500}
	c, _ := New(engine, 1<<20, always)
	if got, _ := ask(t, c, request(t, "a", `{"model":"m","input":"one"}`)); got != "{}" {
		t.Errorf("a failure is answered with %q", got)
	}
	engine.fail = 0
	if got, _ := ask(t, c, request(t, "a", `{"model":"m","input":"one"}`)); gjson.Get(got, "data.#").Int() != 1 {
		t.Errorf("after the failure: %q", got)
	}
}

func TestCacheTogether(t *testing.T) {
	c, _ := New(&lengths{}, 5000, always)
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			for i := range 200 {
				n := (g + i) % 40
				text, _ := ask(t, c, request(t, "a", fmt.Sprintf(`{"model":"m","input":["%s","b"]}`, strings.Repeat("a", n+1))))
				if got := gjson.Get(text, "data.0.embedding.0").Int(); got != int64(n+1) || gjson.Get(text, "data.1.embedding.1").Int() != 'b' {
					t.Errorf("text of %d letters has %s", n+1, text)
				}
			}
		})
	}
	all.Wait()
}

// A request that is counted as a whole is remembered by rows all the same.
func TestCacheOfARequestThatIsNotCountedByRows(t *testing.T) {
	for _, counted := range [][]int{nil, {3}} {
		engine := &lengths{}
		c, err := New(engine, 1<<20, always)
		if err != nil {
			t.Fatal(err)
		}
		uncounted := func(body string) *backends.Request {
			r := request(t, "a", body)
			r.InputTokens = counted
			return r
		}
		ask(t, c, uncounted(`{"model":"m","input":["four","four"]}`))
		part := uncounted(`{"model":"m","input":["four","sixsix","two222"]}`)
		text, _ := ask(t, c, part)
		if got, want := gjson.Get(text, "usage.prompt_tokens").Int(), int64(4+12); got != want || gjson.Get(text, "data.#").Int() != 3 {
			t.Errorf("counted %v: %s, want 3 rows and %d tokens", counted, text, want)
		}
		if got := openai.RowTokens(part); got[0]+got[1]+got[2] != part.Tokens {
			t.Errorf("counted %v: rows of %v tokens, want %d in all", counted, got, part.Tokens)
		}
	}
}

// Whoever gets an answer from here need not split it again to see how long its
// vectors are.
func TestCacheSaysWhatItChecked(t *testing.T) {
	c, _ := New(&lengths{}, 1<<20, always)
	for _, inputs := range []string{`"one"`, `"one"`, `["one","two"]`} { // asked, known, in part
		for _, want := range []int{0, 2} {
			body := `{"model":"m","input":` + inputs
			if want > 0 {
				body += `,"dimensions":2`
			}
			reply, err := c.Submit(t.Context(), request(t, "a", body+"}"))
			if err != nil || reply.Dimensions != want {
				t.Errorf("%s with %d dimensions: %+v, %v", inputs, want, reply, err)
			}
		}
	}
}

// A vector that is longer than it was asked to be is not remembered.
func TestCacheOfAnEngineThatIgnoresDimensions(t *testing.T) {
	c, _ := New(&lengths{}, 1<<20, always)
	r := request(t, "a", `{"model":"m","input":"one","dimensions":1}`)
	if _, err := c.Submit(t.Context(), r); !errors.Is(err, openai.ErrDimensions) {
		t.Errorf("a vector of 2 numbers where 1 was asked for: %v", err)
	}
	if _, _, bytes := c.Stats(); bytes != 0 {
		t.Errorf("%d bytes of it are remembered", bytes)
	}
}
