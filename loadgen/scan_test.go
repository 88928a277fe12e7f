package loadgen

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/tidwall/gjson"
)

// What is JSON for the standard library is JSON here, and nothing else.
func FuzzCursor(f *testing.F) {
	for _, seed := range []string{
		`{"a":[1,-0.5e+3,true,false,null,"\u00e9\n",{}],"b":{}}`, ` [ ] `, `01`, `-`, `1.`, `1e`, `"\x"`, `"\u12g4"`, "\"\x1f\"", `[1,]`, `{"a":1,}`,
		`{"a" 1}`, `{a:1}`, `[1 2]`, `tru`, `{}x`, ``, `"`, "\x00", "{}\x00", `[[[[`, `]`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in string) {
		if strings.Count(in, "[")+strings.Count(in, "{") >= maxDepth {
			t.Skip("deeper than any event: the bounds differ")
		}
		c := cursor{p: []byte(in)}
		c.skip()
		if got, want := c.ended(), json.Valid([]byte(in)); got != want {
			t.Fatalf("%q: JSON %v, want %v", in, got, want)
		}
	})
}

func TestCursorIsBounded(t *testing.T) {
	for _, in := range []string{strings.Repeat("[", 1<<20), strings.Repeat(`{"a":`, 1<<18)} {
		c := cursor{p: []byte(in)}
		if c.skip(); c.ended() || !c.bad {
			t.Errorf("%.10s… counts as JSON", in)
		}
	}
}

func TestWholeNumbers(t *testing.T) {
	for in, want := range map[string]int{"0": 0, "7": 7, "-3": -3, "12.0": 12, "1e3": 1000, "123456789012345": 123456789012345} {
		c := cursor{p: []byte(in)}
		if got, ok := c.whole(); !ok || got != want || !c.ended() {
			t.Errorf("%s: %d, %v", in, got, ok)
		}
	}
	for _, in := range []string{`"7"`, "null", "[7]", "1e99", "07", "-1e300"} {
		c := cursor{p: []byte(in)}
		if got, ok := c.whole(); ok && c.ended() {
			t.Errorf("%s: %d, want no number", in, got)
		}
	}
}

// What one event says, by kind.
func TestStreamEvents(t *testing.T) {
	chat := func(delta string) string {
		return `{"id":"x","choices":[{"index":0,"delta":` + delta + `,"finish_reason":null}]}`
	}
	type says struct{ begun, chunks, visible int }
	for name, c := range map[string]struct {
		responses bool
		event     string
		want      says
	}{
		"role":               {false, chat(`{"role":"assistant","content":""}`), says{1, 0, 0}},
		"role, null content": {false, chat(`{"role":"assistant","content":null}`), says{1, 0, 0}},
		"content":            {false, chat(`{"content":"w"}`), says{1, 1, 1}},
		"a space":            {false, chat(`{"content":" "}`), says{1, 1, 1}},
		"escaped":            {false, chat(`{"content":"\n"}`), says{1, 1, 1}},
		"reasoning_content":  {false, chat(`{"reasoning_content":"hm"}`), says{1, 1, 0}},
		"reasoning":          {false, chat(`{"reasoning":"hm","content":null}`), says{1, 1, 0}},
		"both":               {false, chat(`{"content":"w","reasoning":"hm"}`), says{1, 1, 1}},
		"refusal":            {false, chat(`{"refusal":"no"}`), says{1, 1, 1}},
		"tool's name":        {false, chat(`{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":""}}]}`), says{1, 1, 0}},
		"tool's argument":    {false, chat(`{"tool_calls":[{"index":1,"function":{"arguments":"{"}}]}`), says{1, 1, 0}},
		"an empty tool call": {false, chat(`{"tool_calls":[{"index":0,"function":{"arguments":""}}]}`), says{1, 0, 0}},
		"function call":      {false, chat(`{"function_call":{"arguments":"{"}}`), says{1, 1, 0}},
		"two choices":        {false, `{"choices":[{"index":0,"delta":{"content":"a"}},{"index":1,"delta":{"content":"b"}}]}`, says{2, 2, 2}},
		"completions":        {false, `{"choices":[{"index":0,"text":"w"}]}`, says{1, 1, 1}},
		"usage alone":        {false, `{"choices":[],"usage":{"completion_tokens":1}}`, says{0, 0, 0}},
		"no choices":         {false, `{"x":1}`, says{0, 0, 0}},
		"odd types":          {false, `{"choices":{"index":0},"usage":[],"error":null,"object":7}`, says{0, 0, 0}},
		"created":            {true, `{"type":"response.created","response":{"usage":null,"error":null}}`, says{1, 0, 0}},
		"text delta":         {true, `{"delta":"w","type":"response.output_text.delta"}`, says{1, 1, 1}},
		"reasoning delta":    {true, `{"type":"response.reasoning_text.delta","delta":"hm"}`, says{1, 1, 0}},
		"summary delta":      {true, `{"type":"response.reasoning_summary_text.delta","delta":"hm"}`, says{1, 1, 0}},
		"argument delta":     {true, `{"type":"response.function_call_arguments.delta","delta":"{"}`, says{1, 1, 0}},
		"empty delta":        {true, `{"type":"response.output_text.delta","delta":""}`, says{1, 0, 0}},
		"text done":          {true, `{"type":"response.output_text.done","text":"w"}`, says{1, 0, 0}},
	} {
		st := stream{responses: c.responses}
		if err := st.take(nil, []byte(c.event)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := (says{st.begun, st.chunks, st.visible}); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// How streams end, by the last events of each.
func TestStreamEnds(t *testing.T) {
	const text = `{"type":"response.output_text.delta","delta":"w"}`
	for name, c := range map[string]struct {
		responses bool
		events    []string // "name|data" or data
		want      Outcome
	}{
		"completed":          {true, []string{text, `{"type":"response.completed","response":{"usage":{"input_tokens":3,"output_tokens":9}}}`}, OK},
		"named only":         {true, []string{`response.output_text.delta|{"delta":"w"}`, `response.completed|{"response":{"usage":{"input_tokens":3,"output_tokens":9}}}`}, OK},
		"at the bound":       {true, []string{text, `{"type":"response.incomplete","response":{"incomplete_details":{"reason":"max_output_tokens"},"usage":{"input_tokens":3,"output_tokens":9}}}`}, OK},
		"filtered":           {true, []string{text, `{"type":"response.incomplete","response":{"incomplete_details":{"reason":"content_filter"}}}`}, Truncated},
		"only [DONE]":        {true, []string{text, "[DONE]"}, Truncated},
		"failed":             {true, []string{text, `{"type":"response.failed","response":{"error":{"message":"x"}}}`}, StreamError},
		"cancelled":          {true, []string{text, `{"type":"response.cancelled"}`}, StreamError},
		"error":              {true, []string{text, `error|{"type":"error","message":"x"}`}, StreamError},
		"no end":             {true, []string{text, `{"type":"response.output_text.done"}`}, Truncated},
		"error object":       {false, []string{`{"error":{"message":"x"}}`}, StreamError},
		"error text":         {false, []string{`{"error":"x"}`}, StreamError},
		"object error":       {false, []string{`{"object":"error","message":"x"}`}, StreamError},
		"named error":        {false, []string{`error|not JSON`}, StreamError},
		"broken error":       {false, []string{`{"error":{"message":"x"}`}, Protocol},
		"an array":           {false, []string{`[]`}, Protocol},
		"more than JSON":     {false, []string{`{} {}`}, Protocol},
		"too many choices":   {false, []string{`{"choices":[` + manyChoices() + `]}`}, Protocol},
		"null error":         {false, []string{`{"error":null,"choices":[{"finish_reason":"stop"}]}`, "[DONE]"}, OK},
		"after the end":      {false, []string{`{"choices":[{"finish_reason":"stop"}]}`, "[DONE]", "what"}, OK},
		"nothing but [DONE]": {false, []string{"[DONE]"}, Truncated},
		"aborted":            {false, []string{`{"choices":[{"finish_reason":"abort"}]}`, "[DONE]"}, StreamError},
		"gave up":            {false, []string{`{"choices":[{"finish_reason":"error"}]}`, "[DONE]"}, StreamError},
		"filtered chat":      {false, []string{`{"choices":[{"finish_reason":"content_filter"}]}`, "[DONE]"}, OK},
		"a choice too many":  {false, []string{`{"choices":[{"finish_reason":"stop"},{"index":1,"finish_reason":"stop"}]}`, "[DONE]"}, Protocol},
	} {
		st := stream{responses: c.responses}
		got, err := OK, error(nil)
		for _, e := range c.events {
			name, data, named := strings.Cut(e, "|")
			if !named {
				name, data = "", e
			}
			if err = st.take([]byte(name), []byte(data)); err != nil {
				got = st.class(err)
				break
			}
		}
		if err == nil {
			got, err = st.complete(1, nil)
		}
		if got != c.want {
			t.Errorf("%s: %s (%v), want %s", name, got, err, c.want)
		}
		if c.responses && got == OK && (st.prompt != 3 || st.completion != 9 || !st.usage) {
			t.Errorf("%s: usage %d %d %v", name, st.prompt, st.completion, st.usage)
		}
	}
}

func manyChoices() string {
	var b strings.Builder
	for i := range maxChoices + 1 {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(`{"index":`)
		text, _ := json.Marshal(i)
		b.Write(text)
		b.WriteByte('}')
	}
	return b.String()
}

// What a session hears is the text of the first choice, still fit to stand in a
// JSON string.
func TestStreamHears(t *testing.T) {
	st := stream{hear: true}
	for _, e := range []string{
		`{"choices":[{"index":0,"delta":{"content":"a\n"}},{"delta":{"content":"no"},"index":1}]}`,
		`{"choices":[{"index":0,"delta":{"reasoning":"hm"}}]}`,
		`{"choices":[{"delta":{"content":"\"b\""},"index":0,"finish_reason":"stop"}]}`,
	} {
		if err := st.take(nil, []byte(e)); err != nil {
			t.Fatal(err)
		}
	}
	if got := string(st.heard); got != `a\n\"b\"` {
		t.Errorf("heard %s", got)
	}
	if st.reset(false, true); len(st.heard) != 0 || st.chunks != 0 || len(st.choices) != 0 {
		t.Errorf("after a reset: %+v", st)
	}
}

// An event costs no allocation, whatever it brings.
func TestStreamAllocatesNothing(t *testing.T) {
	events := [][]byte{
		[]byte(`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"word"},"logprobs":null,"finish_reason":null}],"usage":null}`),
		[]byte(`{"choices":[{"index":1,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{"}}]}}]}`),
		[]byte(`{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":0}}}`),
	}
	var st stream
	if got := testing.AllocsPerRun(100, func() {
		st.reset(false, false)
		for _, e := range events {
			if err := st.take(nil, e); err != nil {
				t.Fatal(err)
			}
		}
	}); got != 0 {
		t.Errorf("%v allocations for three events, want none", got)
	}
}

// One event means what gjson makes of it, field by field.
func FuzzStreamFields(f *testing.F) {
	f.Add(`{"choices":[{"index":0,"delta":{"content":"x","reasoning":""},"finish_reason":"stop"}],"usage":{"prompt_tokens":2,"completion_tokens":1}}`)
	f.Add(`{"choices":[{"index":2,"text":"x"},{"delta":{"refusal":"y"}}]}`)
	f.Fuzz(func(t *testing.T, in string) {
		v := gjson.Parse(in)
		if strings.ContainsRune(in, '\\') || !gjson.Valid(in) || !v.IsObject() || repeats(v) {
			t.Skip("keys that are written oddly or twice: each reader has its own way with them")
		}
		var st stream
		if st.take(nil, []byte(in)) != nil {
			return
		}
		chunks, visible := 0, 0
		if choices := v.Get("choices"); choices.IsArray() {
			for _, choice := range choices.Array() {
				text := func(path string) bool { r := choice.Get(path); return r.Type == gjson.String && r.Str != "" }
				if !choice.IsObject() {
					continue
				}
				sees := text("text") || choice.Get("delta").IsObject() && (text("delta.content") || text("delta.refusal"))
				any := sees || choice.Get("delta").IsObject() && (text("delta.reasoning") || text("delta.reasoning_content"))
				if strings.Contains(choice.Raw, "function") {
					t.Skip("calls are tested by a table")
				}
				if any {
					chunks++
				}
				if sees {
					visible++
				}
			}
		}
		if st.chunks != chunks || st.visible != visible {
			t.Fatalf("%s: %d chunks, %d visible, want %d and %d", in, st.chunks, st.visible, chunks, visible)
		}
	})
}

// repeats reports whether some object has a key twice.
func repeats(v gjson.Result) bool {
	seen, twice := map[string]bool{}, false
	v.ForEach(func(key, value gjson.Result) bool {
		if v.IsObject() {
			twice = twice || seen[key.Str]
			seen[key.Str] = true
		}
		twice = twice || (value.IsObject() || value.IsArray()) && repeats(value)
		return !twice
	})
	return twice
}
