package loadgen

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/tidwall/gjson"

	"aloft/loadgen/arrivals"
)

// one makes the body of a request of a workload.
func one(t *testing.T, w Workload, src sources, o order) (string, expect) {
	t.Helper()
	w.Name, w.URL, w.Phases = "w", "http://127.0.0.1:1", steady(1, 1)
	if err := w.validate(); err != nil {
		t.Fatal(err)
	}
	body, want := newStock(&w, 1, src).maker().append(nil, &o)
	return string(body), want
}

// Every kind, as it goes out: these are what the APIs' references show.
func TestBodies(t *testing.T) {
	say := Content{Texts: []string{`say "it"`}}
	in := func(n int) Content { c := say; c.Inputs = n; return c }
	for _, c := range []struct {
		w    Workload
		o    order
		body string
		want expect
	}{
		{Workload{Kind: Embeddings, Model: "e", Content: in(2)}, order{}, `{"model":"e","input":["say \"it\"","say \"it\""]}`, expect{2, 2}},
		{Workload{Kind: Embeddings, Model: "e", Content: Content{Texts: []string{"a"}, Encoding: "base64"}}, order{}, `{"model":"e","input":["a"],"encoding_format":"base64"}`, expect{1, 1}},
		{Workload{Kind: Chat, Model: `a "b"`, Content: say, MaxTokens: 9, Stream: true}, order{}, `{"model":"a \"b\"","messages":[{"role":"user","content":"say \"it\""}],"max_tokens":9,"stream":true,"stream_options":{"include_usage":true}}`, expect{1, 1}},
		{Workload{Kind: Chat, Model: "c", Content: say, MaxTokens: 9}, order{shape: arrivals.Shape{Output: 3}}, `{"model":"c","messages":[{"role":"user","content":"say \"it\""}],"max_tokens":3}`, expect{1, 1}},
		{Workload{Kind: Chat, Model: "c", Content: say}, order{turn: 1, said: []byte(`{"role":"user","content":"a"},{"role":"assistant","content":"b"},`)}, `{"model":"c","messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"say \"it\""}]}`, expect{1, 1}},
		{Workload{Kind: Chat, Model: "c", Content: Content{Texts: []string{"a b"}, Prefix: &Prefix{Pool: 1, Tokens: 2, Share: 1}}}, order{}, `{"model":"c","messages":[{"role":"system","content":"b a b a"},{"role":"user","content":"a b"}]}`, expect{1, 1}},
		{Workload{Kind: Completions, Model: "c", Content: say, Stream: true}, order{}, `{"model":"c","prompt":"say \"it\"","stream":true,"stream_options":{"include_usage":true}}`, expect{1, 1}},
		{Workload{Kind: Completions, Model: "c", Content: Content{Texts: []string{"a b"}, Prefix: &Prefix{Pool: 1, Tokens: 1, Share: 1}}}, order{}, `{"model":"c","prompt":"b a a b"}`, expect{1, 1}},
		{Workload{Kind: Responses, Model: "c", Content: say, MaxTokens: 5, Stream: true}, order{}, `{"model":"c","input":[{"role":"user","content":"say \"it\""}],"max_output_tokens":5,"stream":true}`, expect{1, 1}},
		{Workload{Kind: Rerank, Model: "r", Content: in(2)}, order{}, `{"model":"r","query":"say \"it\"","documents":["say \"it\"","say \"it\""]}`, expect{2, 2}},
		{Workload{Kind: Batch, Model: "e", Content: in(2)}, order{step: 1, file: []byte(`"file-1"`)}, `{"input_file_id":"file-1","endpoint":"/v1/embeddings","completion_window":"24h"}`, expect{1, 1}},
		{Workload{Kind: Job, Content: Content{Template: "train", Params: map[string]string{"steps": "4", "a": "x"}}}, order{}, `{"template":"train","params":{"a":"x","steps":"4"}}`, expect{1, 1}},
	} {
		got, want := one(t, c.w, sources{}, c.o)
		if got != c.body || want != c.want {
			t.Errorf("%s: body %s, want\n%s\nexpects %v, want %v", c.w.Kind, got, c.body, want, c.want)
		}
	}
}

// A batch's file is read as a server reads it.
func TestUploadIsAForm(t *testing.T) {
	w := Workload{Kind: Batch, Model: "c", MaxTokens: 4, Content: Content{Rows: Chat, Inputs: 3}}
	body, _ := one(t, w, sources{}, order{index: 7})
	_, params, err := mime.ParseMediaType(uploadType)
	if err != nil {
		t.Fatal(err)
	}
	form, err := multipart.NewReader(strings.NewReader(body), params["boundary"]).ReadForm(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	if got := form.Value["purpose"]; len(got) != 1 || got[0] != "batch" {
		t.Errorf("purpose is %q", got)
	}
	f, err := form.File["file"][0].Open()
	if err != nil {
		t.Fatal(err)
	}
	text, _ := io.ReadAll(f)
	rows := bytes.Split(bytes.TrimSuffix(text, []byte("\n")), []byte("\n"))
	if len(rows) != 3 {
		t.Fatalf("%d rows, want 3: %s", len(rows), text)
	}
	seen := map[string]bool{}
	for i, row := range rows {
		var v struct {
			ID     string `json:"custom_id"`
			Method string
			URL    string
			Body   json.RawMessage
		}
		if err := json.Unmarshal(row, &v); err != nil {
			t.Fatalf("%v: %s", err, row)
		}
		if v.ID != fmt.Sprint("row-", i) || v.Method != "POST" || v.URL != "/v1/chat/completions" {
			t.Errorf("row %d is %s", i, row)
		}
		if m := gjson.GetBytes(v.Body, "max_tokens").Int(); m != 4 || gjson.GetBytes(v.Body, "stream").Exists() {
			t.Errorf("row's body is %s", v.Body)
		}
		seen[string(v.Body)] = true
	}
	if len(seen) != 3 {
		t.Errorf("rows are the same: %s", text)
	}
}

// What a request says is decided by its place, whatever was made before.
func TestBodiesFollowTheirPlace(t *testing.T) {
	w := Workload{Kind: Chat, Model: "c", Content: Content{Prefix: &Prefix{Pool: 5, Tokens: 20, Share: 0.5}}}
	s := newStock(&w, 3, sources{})
	m := s.maker()
	var forth, back [100]string
	distinct, shared := map[string]bool{}, 0
	for i := range forth {
		body, _ := m.append(nil, &order{index: i, shape: arrivals.Shape{Input: 30}})
		forth[i] = string(body)
		distinct[forth[i]] = true
		if strings.Contains(forth[i], `"system"`) {
			shared++
		}
	}
	m = newStock(&w, 3, sources{}).maker()
	for i := len(back) - 1; i >= 0; i-- {
		body, _ := m.append(nil, &order{index: i, shape: arrivals.Shape{Input: 30}})
		back[i] = string(body)
	}
	if forth != back {
		t.Error("the order in which requests are made changes them")
	}
	if len(distinct) != len(forth) {
		t.Errorf("%d of %d requests differ", len(distinct), len(forth))
	}
	if shared < 35 || shared > 65 { // 50, with a deviation of 5
		t.Errorf("%d of 100 requests have the shared beginning, want half", shared)
	}
	other, _ := newStock(&w, 4, sources{}).maker().append(nil, &order{shape: arrivals.Shape{Input: 30}})
	if string(other) == forth[0] {
		t.Error("another seed makes the same request")
	}
}

// Texts are as long as they are meant to be, within a word, and always the
// inside of a JSON string.
func TestTextLengths(t *testing.T) {
	for name, lines := range map[string][]string{
		"prose":     builtinTexts,
		"no spaces": {strings.Repeat("語", 3000), strings.Repeat(`\"`, 500)},
		"escapes":   {strings.Repeat("\x01\n\t\"\\é", 400)},
		"short":     {"a"},
	} {
		l := &library{}
		for _, line := range lines {
			l.add(line)
		}
		r := arrivals.Rand(1, 2)
		for _, size := range []int{1, 2, 3, 7, 40, 333, 5000} {
			for range 50 {
				got := l.appendText(nil, r, size)
				var s string
				if err := json.Unmarshal([]byte(`"`+string(got)+`"`), &s); err != nil || !utf8.ValidString(s) || strings.ContainsRune(s, utf8.RuneError) {
					t.Fatalf("%s: text of %d bytes is %q: %v", name, size, got, err)
				}
				if len(got) == 0 || len(got) > size+5 || len(got) < size-16 {
					t.Fatalf("%s: text of %d bytes has %d", name, size, len(got))
				}
			}
		}
		for i, line := range lines {
			var s string
			if err := json.Unmarshal([]byte(`"`+string(l.line(i))+`"`), &s); err != nil || s != line {
				t.Errorf("%s: line %d is %q, want %q", name, i, s, line)
			}
		}
	}
}

// Making a request allocates nothing once the buffer has grown.
func TestBodiesAllocateNothing(t *testing.T) {
	given, err := readRequests("f", strings.NewReader(`{"messages":[{"role":"user","content":"hi"}]}`), Chat)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		w   Workload
		src sources
		o   order
	}{
		"embeddings": {Workload{Kind: Embeddings, Content: Content{Inputs: 32}}, sources{}, order{shape: arrivals.Shape{Input: 100}}},
		"chat":       {Workload{Kind: Chat, Stream: true, Content: Content{Prefix: &Prefix{Pool: 3, Tokens: 50, Share: 0.5}}}, sources{}, order{shape: arrivals.Shape{Input: 100, Output: 9}}},
		"recorded":   {Workload{Kind: Chat}, sources{}, order{shape: arrivals.Shape{Input: 1500, Text: 2}}},
		"rerank":     {Workload{Kind: Rerank, Content: Content{Inputs: 8}}, sources{}, order{}},
		"batch":      {Workload{Kind: Batch, Content: Content{Inputs: 20}}, sources{}, order{}},
		"given":      {Workload{Kind: Chat}, sources{given: given}, order{}},
	} {
		stock := newStock(&c.w, 1, c.src)
		stock.texts = []arrivals.Text{{}, {Parent: 1, From: 512}}
		m := stock.maker()
		buf := make([]byte, 0, 1<<20)
		i := 0
		if n := testing.AllocsPerRun(100, func() {
			c.o.index = i
			i++
			buf, _ = m.append(buf[:0], &c.o)
		}); n != 0 {
			t.Errorf("%s: %v allocations per request", name, n)
		}
	}
}

func TestReadCorpus(t *testing.T) {
	l, err := readCorpus("f", strings.NewReader("\xef\xbb\xbfone \r\n\n two\n"))
	if err != nil || l.lines() != 2 || string(l.line(0)) != "one" || string(l.line(1)) != "two" {
		t.Errorf("read %q: %v", l.text, err)
	}
	for want, in := range map[string]string{
		"f: no text in it":               "\n \n",
		"f:2: want UTF-8":                "a\n\xff\n",
		"f:3: the line is too long":      "a\n\n" + strings.Repeat("x", maxCorpusLine+1),
		"f: the file is too large, want": strings.Repeat(strings.Repeat("x", 1<<19)+"\n", 129),
	} {
		if _, err := readCorpus("f", strings.NewReader(in)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
}

func TestReadRequests(t *testing.T) {
	lines := `{"model":"theirs","messages":[{"role":"user","content":"a"}],"n":2,"stream":true}` + "\n\n" +
		`{ "messages" : [{"role":"user","content":[{"type":"text","text":"b"}]}], "temperature": 0.5 }`
	g, err := readRequests("f", strings.NewReader(lines), Chat)
	if err != nil {
		t.Fatal(err)
	}
	w := Workload{Kind: Chat, Model: "ours", Stream: true, Content: Content{Requests: "f"}}
	for i, c := range []struct {
		body string
		want expect
	}{
		{`{"model":"ours","messages":[{"role":"user","content":"a"}],"n":2,"stream":true,"stream_options":{"include_usage":true}}`, expect{2, 1}},
		{`{"model":"ours","messages":[{"role":"user","content":[{"type":"text","text":"b"}]}],"temperature":0.5,"stream":true,"stream_options":{"include_usage":true}}`, expect{1, 1}},
		{`{"model":"ours","messages":[{"role":"user","content":"a"}],"n":2,"stream":true,"stream_options":{"include_usage":true}}`, expect{2, 1}},
	} {
		if got, want := one(t, w, sources{given: g}, order{index: i}); got != c.body || want != c.want {
			t.Errorf("request %d is %s %v", i, got, want)
		}
	}
	for want, c := range map[string]struct {
		kind Kind
		in   string
	}{
		"f:1: want one JSON object":                   {Chat, "[1]"},
		"f:2: want one JSON object":                   {Chat, `{"messages":[{"role":"user"}]}` + "\n{"},
		`f:1: a body of chat: want "messages"`:        {Chat, `{"prompt":"a"}`},
		`an object with a "role"`:                     {Chat, `{"messages":["a"]}`},
		`want "n" from 1 to 128`:                      {Chat, `{"messages":[{"role":"user"}],"n":0}`},
		`a body of embeddings: want "input"`:          {Embeddings, `{"input":[]}`},
		`a body of completions: want "prompt"`:        {Completions, `{"input":"a"}`},
		`a body of responses: want "input"`:           {Responses, `{}`},
		`a body of rerank: want "query", a text, and`: {Rerank, `{"query":"a"}`},
		`a body of job: want "template"`:              {Job, `{"params":{}}`},
		"f: no requests in it":                        {Chat, "\n"},
	} {
		if _, err := readRequests("f", strings.NewReader(c.in), c.kind); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
	for in, want := range map[string]expect{
		`{"input":"a"}`:             {1, 1},
		`{"input":["a","b"]}`:       {2, 2},
		`{"input":[5,6,7]}`:         {1, 1},
		`{"input":[[5,6],[7],[8]]}`: {3, 3},
	} {
		if got, err := expected(Embeddings, gjson.Parse(in)); got != want || err != nil {
			t.Errorf("%s expects %v (%v), want %v", in, got, err, want)
		}
	}
	if got, _ := expected(Rerank, gjson.Parse(`{"query":"q","documents":["a","b","c"],"top_n":2}`)); got != (expect{2, 3}) {
		t.Errorf("rerank with top_n expects %v", got)
	}
	job, err := readRequests("f", strings.NewReader(`{"template":"t","params":{"a":1}}`), Job)
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := one(t, Workload{Kind: Job, Content: Content{Requests: "f"}}, sources{given: job}, order{}); got != `{"template":"t","params":{"a":1},"stream":false}` && got != `{"template":"t","params":{"a":1}}` {
		t.Errorf("job is %s", got)
	}
}

// Whatever is read makes valid bodies of the workload's model.
func FuzzReadRequests(f *testing.F) {
	f.Add([]byte(`{"model":"x","messages":[{"role":"user","content":"a"}]}`), uint8(1))
	f.Add([]byte(`{"input":[[1],[2]]}`+"\n"+`{"input":"\ud83d"}`), uint8(0))
	f.Fuzz(func(t *testing.T, in []byte, k uint8) {
		kind := []Kind{Embeddings, Chat, Completions, Responses, Rerank, Job}[k%6]
		g, err := readRequests("f", bytes.NewReader(in), kind)
		if err != nil {
			return
		}
		w := Workload{Kind: kind, Model: "m"}
		m := newStock(&w, 1, sources{given: g}).maker()
		for i := range g.lines() {
			body, want := m.append(nil, &order{index: i})
			if !gjson.ValidBytes(body) || want.count < 1 || kind != Job && gjson.GetBytes(body, "model").Str != "m" {
				t.Fatalf("made %q of %q, expecting %v", body, in, want)
			}
		}
	})
}

// Texts of any lines and length are the inside of a JSON string, and about as
// long as asked for.
func FuzzText(f *testing.F) {
	f.Add("a b", "c\"\\\n", uint16(9))
	f.Add("語語語", "\x00\xff", uint16(300))
	f.Fuzz(func(t *testing.T, a, b string, size uint16) {
		l := &library{}
		for _, line := range []string{a, b} {
			if line != "" {
				l.add(line)
			}
		}
		if l.lines() == 0 {
			return
		}
		got := l.appendText(nil, arrivals.Rand(uint64(size), 1), int(size))
		if !gjson.Valid(`"`+string(got)+`"`) || !utf8.Valid(got) || len(got) == 0 || size > 0 && (len(got) > int(size)+5 || len(got) < int(size)-16) {
			t.Fatalf("text of %d bytes is %q", size, got)
		}
	})
}
