package batcher

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"aloft/backends"
	"aloft/backends/openai"
	"aloft/backends/openaihttp"
)

// shaped is an engine over real TCP that answers in one engine's shape. An item
// says of which texts it is.
type shaped struct {
	shape       string
	calls, rows atomic.Int64
	refused     atomic.Int64
	tokens      atomic.Int64
}

func (e *shaped) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var in struct {
		Input any `json:"input"`
		One   any `json:"text_1"`
		Two   any `json:"text_2"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	e.calls.Add(1)
	time.Sleep(2 * time.Millisecond) // while others come
	texts, many := list(in.Input)
	if in.One != nil {
		var other []string
		texts, many = list(in.One)
		other, _ = list(in.Two)
		for i := range texts {
			texts[i] += "|" + other[i]
		}
	}
	w.Header().Set("Content-Type", "application/json")
	if strings.Contains(string(body), "bad") || e.shape == "strings only" && many {
		e.refused.Add(1)
		w.WriteHeader(http.StatusUnprocessableEntity)
		fmt.Fprintf(w, `{"error":{"message":"cannot take %d texts"}}`, len(texts))
		return
	}
	e.rows.Add(int64(len(texts)))
	reply, tokens := e.answer(texts)
	e.tokens.Add(int64(tokens))
	_, _ = w.Write(reply)
}

func list(v any) (out []string, many bool) {
	switch v := v.(type) {
	case string:
		return []string{v}, false
	case []any:
		for _, s := range v {
			out = append(out, s.(string))
		}
	}
	return out, true
}

func (e *shaped) answer(texts []string) (reply []byte, tokens int) {
	type item map[string]any
	var items []item
	for i, s := range texts {
		tokens += 2 * len(s)
		switch e.shape {
		case "vllm classify", "sglang classify", "one short", "strings only":
			items = append(items, item{"index": i, "label": s, "probs": []float64{1, 0}, "num_classes": 2})
		case "vllm score", "sglang score":
			items = append(items, item{"index": i, "object": "score", "score": 0.5, "of": s})
		case "moderations":
			items = append(items, item{"flagged": false, "categories": item{"of": s}, "category_scores": item{}})
		}
	}
	out := map[string]any{"id": "engine-1", "object": "list", "created": 1, "model": "e", "data": items,
		"usage": item{"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0, "prompt_tokens_details": nil}}
	switch e.shape {
	case "moderations":
		out, tokens = map[string]any{"id": "modr-1", "model": "e", "results": items}, 0
	case "sglang score":
		out = map[string]any{"scores": texts, "model": "e"}
	case "one short":
		if len(items) > 1 {
			out["data"] = items[1:]
		}
	}
	if e.shape == "vllm classify" || e.shape == "vllm score" { // order is said by index
		rand.Shuffle(len(items), func(i, j int) { items[i], items[j] = items[j], items[i] })
	}
	reply, err := json.Marshal(out)
	if err != nil {
		panic(err)
	}
	return reply, tokens
}

// scanned is a request as the gateway makes it of body; every byte of text is a token.
func scanned(t *testing.T, e backends.Endpoint, id, body string) *backends.Request {
	t.Helper()
	s, err := openai.ScanRequest(e, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	r := &backends.Request{ID: id, Endpoint: e, Model: "m", Body: []byte(body), Inputs: s.Inputs, MergeKey: s.MergeKey, Class: backends.Interactive}
	for _, row := range s.Inputs {
		r.InputTokens = append(r.InputTokens, len(row))
		r.Tokens += len(row)
	}
	return r
}

// TestSharedCallsOfEveryShape sends many clients' requests at once through one
// replica: calls are shared, nobody gets another's items, one bad text is found and its
// caller alone refused, and engines that cannot share still answer everybody.
func TestSharedCallsOfEveryShape(t *testing.T) {
	for _, tt := range []struct {
		shape    string
		endpoint backends.Endpoint
		alone    bool // the engine cannot share
	}{
		{"vllm classify", backends.Classify, false},
		{"sglang classify", backends.Classify, false},
		{"moderations", backends.Moderations, false},
		{"vllm score", backends.Score, false},
		{"strings only", backends.Classify, true},
		{"one short", backends.Classify, true},
		{"sglang score", backends.Score, true},
	} {
		t.Run(tt.shape, func(t *testing.T) {
			t.Parallel()
			e := &shaped{shape: tt.shape}
			s := httptest.NewServer(e)
			defer s.Close()
			c := openaihttp.New(openaihttp.Options{BaseURL: s.URL})
			defer c.Close()
			b := start(t, Options{Model: "m", Merge: true}, rep("a", c))
			defer stop(t, b)
			const clients, each = 24, 8
			var wg sync.WaitGroup
			var usage atomic.Int64
			for i := range clients {
				wg.Go(func() {
					for n := range each {
						id := fmt.Sprintf("%d-%d", i, n)
						texts := []string{"t" + id, "u" + id}[:1+(i+n)%2]
						if tt.alone && tt.shape == "strings only" {
							texts = texts[:1]
						}
						bad := !tt.alone && i == 5 && n%3 == 0
						if bad {
							texts[0] = "bad" + id
						}
						got, err := b.Submit(t.Context(), scanned(t, tt.endpoint, id, bodyOf(tt.endpoint, texts)))
						if err != nil {
							t.Errorf("%s: %v", id, err)
							continue
						}
						text, err := io.ReadAll(got.Body)
						got.Body.Close()
						if bad != (got.Status == 422) || !bad && got.Status != 200 || err != nil {
							t.Errorf("%s: status %d, %v: %s", id, got.Status, err, text)
							continue
						}
						if !bad {
							usage.Add(int64(ownItems(t, tt.shape, id, text, texts)))
						}
					}
				})
			}
			wg.Wait()
			if calls := e.calls.Load(); !tt.alone && calls >= clients*each {
				t.Errorf("%d calls for %d requests: nothing was shared", calls, clients*each)
			} else if strings.HasPrefix(tt.shape, "sglang score") && calls > clients*each+5*clients {
				t.Errorf("%d calls for %d requests: it went on sharing", calls, clients*each)
			}
			if got, want := usage.Load(), e.tokens.Load(); !tt.alone && got != want {
				t.Errorf("callers were told of %d tokens, the engine counted %d", got, want)
			}
			sig := b.Signals(time.Now())
			if refused := sig.Class[0].Refused; !tt.alone && refused != 3 {
				t.Errorf("%d refused, want the three bad ones alone", refused)
			}
			if ratio := sig.Calls.TokenRatio; tt.endpoint == backends.Classify && !tt.alone && (ratio < 0.4 || ratio > 0.8) {
				t.Errorf("token ratio %v, want a little more than a half: quotes", ratio)
			}
		})
	}
}

func bodyOf(e backends.Endpoint, texts []string) string {
	raw, _ := json.Marshal(texts)
	if len(texts) == 1 {
		raw, _ = json.Marshal(texts[0])
	}
	if e == backends.Score {
		return fmt.Sprintf(`{"model":"m","text_1":%s,"text_2":%s}`, raw, strings.ToUpper(string(raw)))
	}
	return fmt.Sprintf(`{"model":"m","input":%s,"user":"someone"}`, raw)
}

// ownItems checks that an answer holds exactly the items of texts, and returns its
// prompt tokens.
func ownItems(t *testing.T, shape, id string, answer []byte, texts []string) int {
	var got struct {
		ID, Object, Model string
		Data              []struct {
			Index     int
			Label, Of string
		}
		Results []struct{ Categories struct{ Of string } }
		Scores  []string
		Usage   struct {
			Prompt int `json:"prompt_tokens"`
			Total  int `json:"total_tokens"`
		}
	}
	if err := json.Unmarshal(answer, &got); err != nil {
		t.Errorf("%s: %v: %s", id, err, answer)
		return 0
	}
	found := map[int]string{}
	for _, d := range got.Data {
		found[d.Index] = d.Label + d.Of
	}
	for i, r := range got.Results {
		found[i] = r.Categories.Of
	}
	for i, s := range got.Scores {
		found[i] = s
	}
	if len(found) != len(texts) || len(got.Data)+len(got.Results)+len(got.Scores) != len(texts) {
		// An engine that drops an item does so to a caller alone too: as it came.
		if shape != "one short" || len(texts) == 1 {
			t.Errorf("%s: %d items for %d texts: %s", id, len(found), len(texts), answer)
		}
		return got.Usage.Prompt
	}
	for i, s := range texts {
		if strings.HasSuffix(shape, "score") {
			s += "|" + strings.ToUpper(s)
		}
		if found[i] != s {
			t.Errorf("%s: item %d is %q, want %q", id, i, found[i], s)
		}
	}
	if got.Usage.Prompt != got.Usage.Total {
		t.Errorf("%s: usage %+v", id, got.Usage)
	}
	if got.ID != id && got.ID != "engine-1" && got.ID != "modr-1" && shape != "sglang score" {
		t.Errorf("%s: id %q", id, got.ID)
	}
	return got.Usage.Prompt
}

// A refused call of n requests, k of them bad, costs at most 2k·log2(n) more calls, on
// one replica or several; every bad one is found, and nobody else refused.
func TestBisectIsBounded(t *testing.T) {
	for _, tt := range []struct {
		bad  []int
		most int
	}{
		{nil, 1}, {[]int{0}, 11}, {[]int{31}, 11}, {[]int{13, 14}, 21}, {[]int{0, 31}, 21},
	} {
		synctest.Test(t, func(t *testing.T) {
			e := &engine{alpha: 10 * time.Millisecond, beta: time.Microsecond}
			e.fault = func(_ int, inputs []string) (*backends.Reply, error) {
				for _, s := range inputs {
					if strings.HasPrefix(s, "bad") {
						return reply(400, `{"error":{"message":"bad text"}}`), nil
					}
				}
				return nil, nil
			}
			b := start(t, Options{Model: "m", Merge: true, MaxBatchRows: 64}, rep("a", e))
			defer stop(t, b)
			var wg sync.WaitGroup
			submit := func(text string) {
				wg.Go(func() {
					got, err := b.Submit(t.Context(), embedding(text))
					if err != nil {
						t.Errorf("%s: %v", text, err)
						return
					}
					defer got.Body.Close()
					if want := strings.HasPrefix(text, "bad"); (got.Status == 400) != want {
						t.Errorf("%v: %s got %d", tt.bad, text, got.Status)
					}
				})
				synctest.Wait()
			}
			submit("first") // the others wait for its end, and share a call
			for i := range 32 {
				text := fmt.Sprint("text", i)
				if slices.Contains(tt.bad, i) {
					text = fmt.Sprint("bad", i)
				}
				submit(text)
			}
			wg.Wait()
			if n := len(e.sizes()) - 1; n > tt.most || n == 0 {
				t.Errorf("%v bad: %d calls, want at most %d", tt.bad, n, tt.most)
			}
			if s := b.Signals(time.Now()).Class[0]; int(s.Refused) != len(tt.bad) || int(s.Done) != 33-len(tt.bad) {
				t.Errorf("%v bad: %+v", tt.bad, s)
			}
		})
	}
}

// A call that broke is sent once more, whole, to another replica.
func TestBrokenCallGoesElsewhereOnce(t *testing.T) {
	for _, broken := range []func(int, []string) (*backends.Reply, error){
		func(int, []string) (*backends.Reply, error) { return reply(500, `{}`), nil },
		func(int, []string) (*backends.Reply, error) { return nil, fmt.Errorf("reset: %w", backends.ErrConnect) },
	} {
		synctest.Test(t, func(t *testing.T) {
			ill := &engine{alpha: 10 * time.Millisecond, fault: broken}
			well := &engine{alpha: 10 * time.Millisecond}
			b := start(t, Options{Model: "m", Merge: true, MaxBatchRows: 64}, rep("ill", ill))
			defer stop(t, b)
			var wg sync.WaitGroup
			for i := range 9 {
				wg.Go(func() {
					got, err := b.Submit(t.Context(), embedding(fmt.Sprint("text", i)))
					if i == 0 { // alone, while there was nobody else
						if got != nil && got.Status == 200 {
							t.Errorf("first: %v, %v", got, err)
						}
						return
					}
					if err != nil || check(got, false, fmt.Sprint("text", i)) != nil {
						t.Errorf("%d: %v, %v", i, got, err)
					}
				})
				synctest.Wait()
			}
			time.Sleep(15 * time.Millisecond) // the eight are at the ill one
			b.SetReplicas([]Replica{rep("ill", ill), rep("well", well)})
			wg.Wait()
			if a, b := fmt.Sprint(ill.sizes()), fmt.Sprint(well.sizes()); a != "[1 8]" || b != "[8]" {
				t.Errorf("calls of %s and %s rows, want [1 8] and [8]", a, b)
			}
		})
	}
}
