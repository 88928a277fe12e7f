package variants

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"aloft/backends"
	"aloft/backends/openai"
)

func TestPick(t *testing.T) {
	s := &Split{Model: "m", By: Base, Shares: []Share{{Name: "a", Share: 0.25}, {Name: "b", Share: 0.5}}}
	name := func(key uint64) string {
		if side := s.Pick(key); side != nil {
			return side.Name
		}
		return Base
	}
	const whole = 1 << 63
	for _, c := range []struct {
		key  uint64
		want string
	}{{0, "a"}, {whole/2 - 1<<12, "a"}, {whole / 2, "b"}, {whole, "b"}, {whole + whole/2 - 1<<12, "b"}, {whole + whole/2, Base}, {math.MaxUint64, Base}} {
		if got := name(c.key); got != c.want {
			t.Errorf("%#x is served by %s, want %s", c.key, got, c.want)
		}
	}
	all := &Split{Shares: []Share{{Name: "a", Share: 1}}}
	if all.Pick(math.MaxUint64) == nil {
		t.Error("a share of 1 leaves somebody out")
	}
	if none := (&Split{Shares: []Share{{Name: "a"}}}); none.Pick(0) != nil {
		t.Error("a share of 0 serves somebody")
	}
}

func p(v float64) *float64 { return &v }

func TestJudge(t *testing.T) {
	rule := Rule{Promote: &PromoteIf{Samples: 100, Agreement: p(0.98), P99Ratio: p(1.2), QualityDrop: p(0.01)},
		Drop: &DropIf{Samples: 50, ErrorRate: p(0.02), P99Ratio: p(2)}}
	good := Comparison{Base: Numbers{Requests: 200, P99: 100}, Variant: Numbers{Requests: 150, P99: 110},
		Agreement: Agreement{Samples: 40, Mean: 0.99}, Quality: &Quality{Base: 0.8, Variant: 0.796}}
	for _, c := range []struct {
		name   string
		change func(r *Rule, c *Comparison)
		want   Action
		says   string
	}{
		{"all met", func(*Rule, *Comparison) {}, Promote, "agreement 0.99 (>= 0.98)"},
		{"no rule", func(r *Rule, _ *Comparison) { *r = Rule{} }, Wait, ""},
		{"few samples", func(_ *Rule, c *Comparison) { c.Variant.Requests = 99 }, Wait, "samples of each side 99 (not >= 100)"},
		{"few samples of the model", func(_ *Rule, c *Comparison) { c.Base.Requests = 99 }, Wait, "p99 ratio not known yet, want <= 1.2"},
		{"few compared", func(_ *Rule, c *Comparison) { c.Agreement.Samples = 19 }, Wait, "agreement not known yet"},
		{"more must be compared", func(r *Rule, _ *Comparison) { x := *r.Promote; x.Compared = 41; r.Promote = &x }, Wait, "agreement not known yet"},
		{"they disagree", func(_ *Rule, c *Comparison) { c.Agreement.Mean = 0.97 }, Wait, "agreement 0.97 (not >= 0.98)"},
		{"slow", func(_ *Rule, c *Comparison) { c.Variant.P99 = 121 }, Wait, "p99 ratio 1.21 (not <= 1.2)"},
		{"worse", func(_ *Rule, c *Comparison) { c.Quality = &Quality{Base: 0.8, Variant: 0.78} }, Wait, "quality drop 0.025 (not <= 0.01)"},
		{"better", func(_ *Rule, c *Comparison) { c.Quality = &Quality{Base: 0.8, Variant: 0.9} }, Promote, "quality drop -0.125"},
		{"perplexity", func(_ *Rule, c *Comparison) { c.Quality = &Quality{Base: 20, Variant: 21, Lower: true} }, Wait, "quality drop 0.05"},
		{"not evaluated", func(_ *Rule, c *Comparison) { c.Quality = nil }, Wait, "quality drop not known yet"},
		{"fails", func(_ *Rule, c *Comparison) { c.Variant.Failed = 4 }, Drop, "error rate 0.02597 (> 0.02)"},
		{"fails at once", func(_ *Rule, c *Comparison) { c.Variant = Numbers{Failed: 50} }, Drop, "error rate 1"},
		{"too few fail", func(_ *Rule, c *Comparison) { c.Variant = Numbers{Failed: 49} }, Wait, "error rate not known yet"},
		{"far too slow", func(_ *Rule, c *Comparison) { c.Variant.P99 = 201 }, Drop, "p99 ratio 2.01 (> 2)"},
		{"a model that took no time", func(_ *Rule, c *Comparison) { c.Base.P99 = 0 }, Wait, "p99 ratio not known yet"},
		{"disagree", func(r *Rule, c *Comparison) {
			r.Drop, c.Agreement.Mean = &DropIf{Samples: 1, Agreement: p(0.5)}, 0.4
		}, Drop, "agreement 0.4 (< 0.5)"},
	} {
		r, x := rule, good
		c.change(&r, &x)
		if v := Judge(r, x); v.Action != c.want || !strings.Contains(v.String(), c.says) {
			t.Errorf("%s: %s: %q, want %s: %q", c.name, v.Action, v, c.want, c.says)
		}
	}
}

func TestRuleValidate(t *testing.T) {
	for _, c := range []struct {
		rule Rule
		want string // "" = valid
	}{
		{Rule{}, ""},
		{Rule{Promote: &PromoteIf{Samples: 1, Agreement: p(1)}, Drop: &DropIf{Samples: 1, ErrorRate: p(0)}}, ""},
		{Rule{Promote: &PromoteIf{}}, "promote_if.samples is 0"},
		{Rule{Promote: &PromoteIf{Samples: 3000}}, "want 1 to 2048"},
		{Rule{Promote: &PromoteIf{Samples: 1, Agreement: p(1.1)}}, "promote_if.agreement is 1.1"},
		{Rule{Promote: &PromoteIf{Samples: 1, P99Ratio: p(math.NaN())}}, "promote_if.p99_ratio is NaN"},
		{Rule{Promote: &PromoteIf{Samples: 1, Compared: 1000}}, "promote_if.compared is 1000"},
		{Rule{Drop: &DropIf{Samples: 1}}, "names no reason"},
		{Rule{Drop: &DropIf{Samples: 1, ErrorRate: p(2)}}, "drop_if.error_rate is 2"},
	} {
		err := c.rule.Validate()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.rule, err, c.want)
		}
	}
}

func chat(text string) []byte {
	return fmt.Appendf(nil, `{"choices":[{"message":{"content":%q}}]}`, text)
}

func floats(v ...float32) string {
	var b []byte
	for _, f := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(f))
	}
	return `"` + base64.StdEncoding.EncodeToString(b) + `"`
}

func vectors(rows ...string) []byte {
	var b bytes.Buffer
	for i, r := range rows {
		fmt.Fprintf(&b, `%s{"index":%d,"embedding":%s}`, strings.Repeat(",", min(i, 1)), i, r)
	}
	return fmt.Appendf(nil, `{"object":"list","data":[%s]}`, b.Bytes())
}

func TestAgree(t *testing.T) {
	for _, c := range []struct {
		name  string
		e     backends.Endpoint
		rows  int
		a, b  []byte
		alike float64
		exact bool
		ok    bool
	}{
		{"same text", backends.Chat, 0, chat("a b c"), chat("a b c"), 1, true, true},
		{"ends otherwise", backends.Chat, 0, chat("a b c d"), chat("a b c e"), 0.75, false, true},
		{"is shorter", backends.Chat, 0, chat("a b c d"), chat("a b"), 0.5, false, true},
		{"other text", backends.Chat, 0, chat("a b"), chat("b a"), 0, false, true},
		{"both empty", backends.Chat, 0, chat(""), chat(""), 1, true, true},
		{"completions", backends.Completions, 0, []byte(`{"choices":[{"text":"x y"}]}`), []byte(`{"choices":[{"text":"x z"}]}`), 0.5, false, true},
		{"no answer", backends.Chat, 0, chat("a"), []byte(`{"error":{}}`), 0, false, false},
		{"same vectors", backends.Embeddings, 2, vectors("[1,0]", "[0,2]"), vectors("[1,0]", "[0,1]"), 1, true, true},
		{"one turned", backends.Embeddings, 2, vectors("[1,0]", "[0,1]"), vectors("[1,0]", "[1,0]"), 0.5, false, true},
		{"base64", backends.Embeddings, 1, vectors(floats(3, 4)), vectors("[3,4]"), 1, true, true},
		{"other length", backends.Embeddings, 1, vectors("[1,0]"), vectors("[1,0,0]"), 0, false, true},
		{"rows missing", backends.Embeddings, 2, vectors("[1,0]", "[0,1]"), vectors("[1,0]"), 0, false, false},
		{"zeros", backends.Embeddings, 1, vectors("[0,0]"), vectors("[1,0]"), 0, false, true},
	} {
		r := &backends.Request{Endpoint: c.e, Inputs: make([][]byte, c.rows)}
		alike, exact, ok := Agree(r, c.a, c.b)
		if math.Abs(alike-c.alike) > 1e-6 || exact != c.exact || ok != c.ok {
			t.Errorf("%s: %v %v %v, want %v %v %v", c.name, alike, exact, ok, c.alike, c.exact, c.ok)
		}
	}
}

func TestGreedy(t *testing.T) {
	for _, c := range []struct {
		in, out string
		already bool
	}{
		{`{"model":"m"}`, `{"temperature":0,"model":"m"}`, false},
		{` { "model":"m"}`, `{"temperature":0,"model":"m"}`, false},
		{`{"temperature": 0, "model":"m"}`, `{"temperature": 0, "model":"m"}`, true},
		{`{"a":1,"temperature": 0.75,"b":2}`, `{"a":1,"temperature": 0,"b":2}`, false},
		{`{"temperature":null}`, `{"temperature":0}`, false},
		{`{}`, ``, false},
		{`[]`, ``, false},
		{``, ``, false},
	} {
		if out, already := greedy([]byte(c.in)); string(out) != c.out || already != c.already {
			t.Errorf("%s: %s, %v; want %s, %v", c.in, out, already, c.out, c.already)
		}
	}
}

func TestCompare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, at := NewBook(), time.Now()
		b.Served("m", Base, at, time.Second) // nobody compares yet
		b.Begin("m", "q8", at)
		b.Begin("m", "q4", at)
		for i := range 100 {
			b.Served("m", Base, at.Add(time.Minute), time.Duration(i+1)*time.Millisecond)
		}
		b.Served("m", "q8", at.Add(time.Minute), 7*time.Millisecond)
		b.Served("m", "q8", at.Add(2*time.Hour), 9*time.Millisecond)
		b.Served("m", "gone", at, time.Second)
		b.Served("other", Base, at, time.Second)
		time.Sleep(time.Minute)
		b.Failed("m", "q8")
		b.FellBack("m", "q8")
		b.Compared("m", "q8", 0.5, false)
		b.Compared("m", "q8", 1, true)
		c := b.Compare("m", "q8", at.Add(time.Hour), 2*time.Hour)
		want := Comparison{Since: at, Base: Numbers{Requests: 100, P50: 50, P90: 90, P99: 99}, Variant: Numbers{Requests: 2, Failed: 1, P50: 7, P90: 9, P99: 9},
			FellBack: 1, Agreement: Agreement{Samples: 2, Mean: 0.75, Exact: 0.5}}
		if c != want {
			t.Errorf("%+v, want\n%+v", c, want)
		}
		c = b.Compare("m", "q8", at.Add(2*time.Hour), time.Hour)
		if c.Base.Requests != 0 || c.Variant.Requests != 1 || c.Variant.Failed != 0 || c.Agreement.Samples != 0 {
			t.Errorf("an hour later: %+v", c)
		}
		if c := b.Compare("m", "q4", at.Add(time.Hour), 2*time.Hour); c.Base.Requests != 100 || c.Variant.Requests != 0 {
			t.Errorf("the other variant: %+v", c)
		}
		b.End("m", "q8")
		b.End("m", "q4")
		if c := b.Compare("m", "q8", at.Add(time.Hour), 2*time.Hour); c.Base.Requests != 0 || len(b.pages) != 0 {
			t.Errorf("after the end: %+v", c)
		}
	})
}

// Where the busier side's requests of the whole window are not kept, the other's
// of that time do not count.
func TestCompareSameWindow(t *testing.T) {
	b, at := NewBook(), time.Now()
	b.Begin("m", "q8", at)
	for i := range keptRequests + 1000 {
		b.Served("m", Base, at.Add(time.Duration(i)*time.Millisecond), time.Millisecond)
		if i%10 == 0 {
			b.Served("m", "q8", at.Add(time.Duration(i)*time.Millisecond), time.Millisecond)
		}
	}
	c := b.Compare("m", "q8", at.Add(time.Minute), time.Hour)
	if c.Base.Requests != keptRequests || c.Variant.Requests != 205 || !c.Since.Equal(at.Add(time.Second)) {
		t.Errorf("%+v", c)
	}
}

// engines is a Submitter that plays what a test wants of each model.
type engines map[string]func(r *backends.Request) (*backends.Reply, error)

func (e engines) Submit(_ context.Context, r *backends.Request) (*backends.Reply, error) {
	if f := e[r.Model]; f != nil {
		return f(r)
	}
	return nil, backends.ErrUnknownModel
}

func says(status int, body string) func(*backends.Request) (*backends.Reply, error) {
	return func(*backends.Request) (*backends.Reply, error) {
		return &backends.Reply{Status: status, Body: io.NopCloser(strings.NewReader(body))}, nil
	}
}

func fails(err error) func(*backends.Request) (*backends.Reply, error) {
	return func(*backends.Request) (*backends.Reply, error) { return nil, err }
}

func TestSplitter(t *testing.T) {
	half := &Split{Model: "m", By: Base, Shares: []Share{{Name: "q8", Model: "m@q8", Share: 0.5}}}
	const variant, base = 1, math.MaxUint64 // keys
	for _, c := range []struct {
		name    string
		split   *Split
		req     backends.Request
		engines engines
		unready bool
		want    string // what is answered, by whom; or the error
		failed  int    // of the variant
		fell    int
	}{
		{"not divided", nil, backends.Request{}, engines{"m": says(200, "m")}, false, "m by ", 0, 0},
		{"the variant's", half, backends.Request{Place: backends.Placement{Split: variant}}, engines{"m@q8": says(200, "v")}, false, "v by q8", 0, 0},
		{"the model's", half, backends.Request{Place: backends.Placement{Split: base}}, engines{"m": says(200, "m")}, false, "m by base", 0, 0},
		{"not ready", half, backends.Request{Place: backends.Placement{Split: variant}}, engines{"m": says(200, "m")}, true, "m by fallback", 0, 1},
		{"it fails", half, backends.Request{Place: backends.Placement{Split: variant}}, engines{"m@q8": says(500, "x"), "m": says(200, "m")}, false, "m by fallback", 1, 1},
		{"it cannot be reached", half, backends.Request{Place: backends.Placement{Split: variant}}, engines{"m@q8": fails(backends.ErrConnect), "m": says(200, "m")}, false, "m by fallback", 1, 1},
		{"it is full", half, backends.Request{Place: backends.Placement{Split: variant}}, engines{"m@q8": fails(&backends.RetryError{Err: backends.ErrOverloaded}), "m": says(200, "m")}, false, "m by fallback", 1, 1},
		{"both fail", half, backends.Request{Place: backends.Placement{Split: variant}}, engines{"m@q8": fails(backends.ErrConnect), "m": fails(backends.ErrSilent)}, false, "engine silent", 1, 1},
		{"the client's fault", half, backends.Request{Place: backends.Placement{Split: variant}}, engines{"m@q8": says(400, "no")}, false, "no by q8", 0, 0},
		{"the client's fault, told", half, backends.Request{Place: backends.Placement{Split: variant}}, engines{"m@q8": fails(&openai.Error{Status: 400, Message: "no"})}, false, "no", 0, 0},
		{"a row of a batch", half, backends.Request{Class: backends.Offline, Place: backends.Placement{Split: variant}}, engines{"m": says(200, "m")}, false, "m by base", 0, 0},
		{"an adapter", half, backends.Request{Place: backends.Placement{Split: variant, Adapter: "a"}}, engines{"m": says(200, "m")}, false, "m by base", 0, 0},
		{"promoted", &Split{Model: "m@q8", By: "q8"}, backends.Request{}, engines{"m@q8": says(200, "v")}, false, "v by q8", 0, 0},
	} {
		book := NewBook()
		book.Begin("m", "q8", time.Now())
		s := &Splitter{Next: c.engines, Of: func(string) *Split { return c.split }, Ready: func(string) bool { return !c.unready }, Book: book}
		c.req.Model = "m"
		got := ""
		reply, err := s.Submit(t.Context(), &c.req)
		if err != nil {
			got = err.Error()
		} else {
			body, _ := io.ReadAll(reply.Body)
			got = string(body) + " by " + reply.Timing.Variant
		}
		x := book.Compare("m", "q8", time.Now().Add(time.Second), time.Hour)
		if !strings.Contains(got, c.want) || x.Variant.Failed != c.failed || x.FellBack != c.fell {
			t.Errorf("%s: %s, %d failed, %d fell back; want %s, %d, %d", c.name, got, x.Variant.Failed, x.FellBack, c.want, c.failed, c.fell)
		}
		if c.req.Model != "m" {
			t.Errorf("%s: the request was changed", c.name)
		}
	}
}

// A request that was on its way while its model was divided otherwise is sent anew.
func TestSplitterMoved(t *testing.T) {
	before, after := &Split{Model: "m", By: Base}, &Split{Model: "m@q8", By: "q8"}
	now := before
	s := &Splitter{Of: func(string) *Split { return now }, Ready: func(string) bool { return true }, Book: NewBook(), Next: engines{
		"m":    func(*backends.Request) (*backends.Reply, error) { now = after; return nil, backends.ErrUnknownModel },
		"m@q8": says(200, "v")}}
	reply, err := s.Submit(t.Context(), &backends.Request{Model: "m"})
	if err != nil || reply.Timing.Variant != "q8" {
		t.Errorf("%+v, %v", reply, err)
	}
	if _, err := s.Submit(t.Context(), &backends.Request{Model: "m"}); err != nil {
		t.Error(err)
	}
	s.Next = engines{}
	if _, err := s.Submit(t.Context(), &backends.Request{Model: "m"}); !errors.Is(err, backends.ErrUnknownModel) {
		t.Errorf("%v, want unknown model", err)
	}
}

// What one side has answered the other is asked, at class offline and in nobody's
// name, and the client gets its answer as it came.
func TestShadow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked []backends.Request
		note := func(body string) func(*backends.Request) (*backends.Reply, error) {
			return func(r *backends.Request) (*backends.Reply, error) {
				asked = append(asked, *r)
				return &backends.Reply{Status: 200, Body: io.NopCloser(strings.NewReader(body))}, nil
			}
		}
		book := NewBook()
		book.Begin("m", "q8", time.Now())
		next := engines{"m": note(string(chat("a b c d"))), "m@q8": note(string(chat("a b c e")))}
		shadow := NewShadow(next, book)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { shadow.Run(ctx); close(done) }()
		split := &Split{Model: "m", By: Base, Shares: []Share{{Name: "q8", Model: "m@q8", Share: 0.5, Shadow: 1}}}
		s := &Splitter{Next: next, Of: func(string) *Split { return split }, Ready: func(string) bool { return true }, Book: book, Shadow: shadow}
		send := func(r backends.Request) string {
			t.Helper()
			r.Model, r.Tenant, r.Endpoint = "m", "acme", backends.Chat
			reply, err := s.Submit(t.Context(), &r)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(reply.Body)
			reply.Body.Close()
			synctest.Wait()
			return string(body)
		}
		if got := send(backends.Request{Body: []byte(`{"temperature":0}`), Place: backends.Placement{Split: 1}}); got != string(chat("a b c e")) {
			t.Errorf("the client got %s", got)
		}
		if len(asked) != 2 || asked[1].Model != "m" || asked[1].Class != backends.Offline || asked[1].Tenant != "" {
			t.Errorf("asked %+v", asked)
		}
		asked = nil
		send(backends.Request{Body: []byte(`{"n":1}`), Place: backends.Placement{Split: math.MaxUint64}}) // with chance: both are asked anew
		if len(asked) != 3 || asked[1].Model != "m" || asked[2].Model != "m@q8" || string(asked[2].Body) != `{"temperature":0,"n":1}` {
			t.Errorf("asked %+v", asked)
		}
		asked = nil
		for _, r := range []backends.Request{{Stream: true}, {Class: backends.Offline}, {Body: make([]byte, shadowBytes+1)}} {
			send(r)
		}
		if len(asked) != 3 {
			t.Errorf("asked %d times, want 3: nothing of these is compared", len(asked))
		}
		if c := book.Compare("m", "q8", time.Now().Add(time.Second), time.Hour); c.Agreement != (Agreement{Samples: 2, Mean: 0.75}) {
			t.Errorf("%+v", c.Agreement)
		}
		stop()
		<-done
	})
}
