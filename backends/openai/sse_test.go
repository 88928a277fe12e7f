package openai

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"aloft/backends"
)

func TestEvents(t *testing.T) {
	for _, tc := range []struct {
		name, in string
		want     []string
		end      error
	}{
		{"plain", "data: a\n\ndata: b\n\n", []string{"data: a\n\n", "data: b\n\n"}, io.EOF},
		{"crlf", "data: a\r\n\r\ndata: b\r\n\r\n", []string{"data: a\n\n", "data: b\n\n"}, io.EOF},
		{"comments", ": ping\n\ndata: a\n: in between\nid: 1\n\n:\n", []string{"data: a\nid: 1\n\n"}, io.EOF},
		{"blank lines", "\n\r\n\ndata: a\n\n\n\n", []string{"data: a\n\n"}, io.EOF},
		{"several lines", "event: x\ndata: a\ndata: b\n\n", []string{"event: x\ndata: a\ndata: b\n\n"}, io.EOF},
		{"empty", "", nil, io.EOF},
		{"cut", "data: a\n\ndata: b", []string{"data: a\n\n"}, io.ErrUnexpectedEOF},
		{"cut after line", "data: a\n\ndata: b\n", []string{"data: a\n\n"}, io.ErrUnexpectedEOF},
		{"cut in comment", ": pi", nil, io.ErrUnexpectedEOF},
		{"too big", "data: a\n\ndata: " + strings.Repeat("x", 64) + "\n\n", []string{"data: a\n\n"}, backends.ErrBadReply},
		{"as big as allowed", "data: " + strings.Repeat("x", 56) + "\n\n", []string{"data: " + strings.Repeat("x", 56) + "\n\n"}, io.EOF},
		{"utf8", "data: é\U0001F6E9\n\n", []string{"data: é\U0001F6E9\n\n"}, io.EOF},
	} {
		for how, r := range map[string]io.Reader{
			"whole": strings.NewReader(tc.in), "bytes": iotest.OneByteReader(strings.NewReader(tc.in)),
			"halves": iotest.HalfReader(strings.NewReader(tc.in)), "eof with data": iotest.DataErrReader(strings.NewReader(tc.in)),
		} {
			e := NewEvents(r, 64)
			var got []string
			ev, err := e.Next()
			for ; err == nil; ev, err = e.Next() {
				got = append(got, string(ev))
			}
			if strings.Join(got, "|") != strings.Join(tc.want, "|") || !errors.Is(err, tc.end) {
				t.Errorf("%s by %s: %q, %v\nwant %q, %v", tc.name, how, got, err, tc.want, tc.end)
			}
		}
	}
}

func TestEventsKeepsTheReadersError(t *testing.T) {
	reset := errors.New("reset")
	e := NewEvents(io.MultiReader(strings.NewReader("data: a\n\ndata: b"), iotest.ErrReader(reset)), 100)
	if ev, err := e.Next(); err != nil || string(ev) != "data: a\n\n" {
		t.Fatalf("%q, %v", ev, err)
	}
	for range 2 {
		if _, err := e.Next(); err != reset {
			t.Fatalf("error %v, want the reader's, also when asked again", err)
		}
	}
}

func TestDataAndDone(t *testing.T) {
	for event, want := range map[string]string{
		"data: a\n\n": "a", "data:a\n\n": "a", "data:  a\n\n": " a", "data: a\ndata: b\n\n": "a\nb", "id: 1\n\n": "",
		"data:\ndata: b\n\n": "\nb", "event: x\ndata: {}\n\n": "{}", "data: x": "x",
	} {
		if got := string(Data([]byte(event))); got != want {
			t.Errorf("%q: %q, want %q", event, got, want)
		}
	}
	if !IsDone([]byte("[DONE]")) || !IsDone([]byte(" [DONE] ")) || IsDone([]byte(`{"a":"[DONE]"}`)) || IsDone(nil) {
		t.Error("IsDone")
	}
}

func TestScanChunk(t *testing.T) {
	for data, want := range map[string]Chunk{
		`{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}`:         {Choices: 1},
		`{"choices":[{"index":0,"delta":{"role":"assistant"},"finish_reason":null}]}`: {Choices: 1},
		`{"choices":[{"index":0,"delta":{"content":"é\n"}}],"usage":null}`:            {Content: true, Choices: 1},
		`{"choices":[{"index":0,"delta":{"reasoning_content":"x"}}]}`:                 {Content: true, Choices: 1},
		`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0}]}}]}`:              {Content: true, Choices: 1},
		`{"choices":[{"index":0,"delta":{"tool_calls":[],"refusal":null}}]}`:          {Choices: 1},
		`{"choices":[{"index":0,"delta":{}},{"index":1,"delta":{"content":"x"}}]}`:    {Content: true, Choices: 3},
		`{"choices":[{"finish_reason":"stop","index":2},{"index":99,"delta":{"content":"x"}}]}`: {
			Content: true, Finished: true, Choices: 1<<63 | 4, Ended: 4},
		`{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`: {Finished: true, Choices: 1, Ended: 1},
		`{"choices":[{"text":"x","finish_reason":"length"}],"usage":{"prompt_tokens":3,"completion_tokens":2}}`: {
			Content: true, Finished: true, Choices: 1, Ended: 1, PromptTokens: 3, CompletionTokens: 2, Counted: true},
		`{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}`: {
			UsageOnly: true, PromptTokens: 3, CompletionTokens: 2, Counted: true},
		`{"choices":[],"prompt_filter_results":[]}`:   {}, // Azure's first frame
		`{"error":{"message":"x"}}`:                   {Failed: true},
		`{"error":null,"choices":[]}`:                 {},
		`{"object":"error","message":"x","code":500}`: {Failed: true},
		`[DONE]`: {}, ``: {}, `{"choices":[`: {}, `{"choices":7}`: {}, `nonsense`: {},
	} {
		if got := scanChunk([]byte(data)); got != want {
			t.Errorf("%s\ngot  %+v\nwant %+v", data, got, want)
		}
	}
}

func TestScanUsage(t *testing.T) {
	for body, want := range map[string]Usage{
		`{"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":8,"prompt_tokens_details":{"cached_tokens":2}}}`: {3, 4, 8, true},
		`{"usage":{"prompt_tokens":3}}`: {3, 0, 3, false},
		`{"usage":{"input_tokens":3,"output_tokens":4,"cache_read_input_tokens":10,"cache_creation_input_tokens":20}}`: {33, 4, 37, true},
		`{"usage":{"input_tokens":0,"cache_read_input_tokens":10,"cache_creation_input_tokens":null}}`:                 {10, 0, 10, false},
		`{"usage":{"output_tokens":4,"cache_read_input_tokens":10}}`:                                                   {0, 4, 4, true},
		`{"usage":{"total_tokens":7}}`:                                                             {7, 0, 7, false},
		`{"usage":{"prompt_tokens":7,"completion_tokens":0}}`:                                      {7, 0, 7, true},
		`{"meta":{"tokens":{"input_tokens":5,"output_tokens":1}}}`:                                 {5, 1, 6, true},
		`{"meta":{"tokens":{"input_tokens":5}},"usage":{"total_tokens":2}}`:                        {2, 0, 2, false},
		`{"u\u0073age":{"prompt_tokens":3}}`:                                                       {3, 0, 3, false},
		`{"x":{"usage":{"prompt_tokens":3}},"usage":{"prompt_tokens":1,"completion_tokens":null}}`: {1, 0, 1, false},
	} {
		if got, ok := ScanUsage([]byte(body)); !ok || got != want {
			t.Errorf("%s: %+v, %v, want %+v", body, got, ok, want)
		}
	}
	for _, body := range []string{``, `{}`, `{"usage":null}`, `{"usage":{}}`, `{"usage":{"prompt_tokens":-1}}`,
		`{"usage":{"prompt_tokens":1.5}}`, `{"usage":{"cache_read_input_tokens":1}}`, `{"meta":{"tokens":3}}`, `{"meta":[]}`, `[{"usage":{"prompt_tokens":1}}]`} {
		if got, ok := ScanUsage([]byte(body)); ok {
			t.Errorf("%s: %+v, want none", body, got)
		}
	}
}

// Buffered tells what lies in the buffer, reads nothing, and leaves the last
// event as it was. What is no whole event does not count, whatever it looks like.
func TestEventsBuffered(t *testing.T) {
	for _, tc := range []struct {
		first, rest string
		want        bool
	}{
		{"data: a\n\ndata: b\n\n", "", true},
		{"data: a\n\n: c\r\n\r\n\r\ndata: b\r\n\r\n", "", true},
		{"data: a\n\n", "data: b\n\n", false},
		{"data: a\n\ndata: b\n", "\n", false},
		{"data: a\n\ndata: b\r\n\r", "\n", false},
		{"data: a\n\n: ping\n\n", "data: b\n\n", false},
		{"data: a\n\n\n\n\n\n", "data: b\n\n", false},
	} {
		e := NewEvents(io.MultiReader(strings.NewReader(tc.first), strings.NewReader(tc.rest)), 64)
		a, err := e.Next()
		if err != nil || e.Buffered() != tc.want || e.Buffered() != tc.want || string(a) != "data: a\n\n" {
			t.Errorf("%q: event %q, %v, want one more in the buffer: %v", tc.first, a, err, tc.want)
		}
		if b, err := e.Next(); err != nil || string(b) != "data: b\n\n" || e.Buffered() {
			t.Errorf("%q: then %q, %v", tc.first, b, err)
		}
	}
}

// One event runs through these per generated token.
func TestHotPathAllocs(t *testing.T) {
	payload := []byte(`{"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"word"},"finish_reason":null}]}`)
	var buf []byte
	buf = AppendEvent(buf[:0], payload)
	if n := testing.AllocsPerRun(100, func() { buf = AppendEvent(buf[:0], payload) }); n != 0 {
		t.Errorf("AppendEvent: %v allocations, want 0", n)
	}
	if n := testing.AllocsPerRun(100, func() { scanChunk(payload) }); n != 0 {
		t.Errorf("scanChunk: %v allocations, want 0", n)
	}
	r := &repeat{event: AppendEvent(nil, payload)}
	e := NewEvents(r, 1<<16)
	if n := testing.AllocsPerRun(1000, func() {
		ev, err := e.Next()
		if err != nil || !bytes.Equal(Data(ev), payload) {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("Events.Next and Data: %v allocations, want 0", n)
	}
}

// repeat is an endless stream of one event.
type repeat struct {
	event []byte
	at    int
}

func (r *repeat) Read(p []byte) (int, error) {
	n := copy(p, r.event[r.at:])
	r.at = (r.at + n) % len(r.event)
	return n, nil
}

func FuzzEvents(f *testing.F) {
	for _, s := range []string{"data: a\n\n", ": c\r\n\r\ndata: b\r\ndata: c\r\n\r\n", "data: x", "\n\n\n", "data:\n\nid:1\n:\n\n"} {
		f.Add([]byte(s), 7)
	}
	f.Fuzz(func(t *testing.T, in []byte, step int) {
		read := func(r io.Reader) (out []byte, n int, err error) {
			for e := NewEvents(r, 256); ; n++ {
				there := e.Buffered()
				ev, err := e.Next()
				if there && err != nil {
					t.Fatalf("an event is there, and then %v", err)
				}
				if err != nil {
					return out, n, err
				}
				if !bytes.HasSuffix(ev, []byte("\n\n")) || bytes.Count(ev, []byte("\n\n")) != 1 || ev[0] == ':' || len(ev) > 256 {
					t.Fatalf("event %q of %q", ev, in)
				}
				scanChunk(Data(ev))
				out = append(out, ev...)
			}
		}
		whole, n, err := read(bytes.NewReader(in))
		small, m, err2 := read(&stepReader{in, max(1, step%32)})
		// Only where a limit is met may the sizes of reads show.
		if !errors.Is(err, backends.ErrBadReply) && !errors.Is(err2, backends.ErrBadReply) && (!bytes.Equal(whole, small) || err != err2 || n != m) {
			t.Fatalf("%q: whole %q %v, in steps %q %v", in, whole, err, small, err2)
		}
		if again, k, err := read(bytes.NewReader(whole)); !bytes.Equal(again, whole) || err != io.EOF || k != n {
			t.Fatalf("%q reads back as %q, %v", whole, again, err)
		}
	})
}

type stepReader struct {
	in   []byte
	step int
}

func (r *stepReader) Read(p []byte) (int, error) {
	if len(r.in) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), r.step)], r.in)
	r.in = r.in[n:]
	return n, nil
}

func BenchmarkScanChunk(b *testing.B) {
	payload := []byte(`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"word"},"finish_reason":null}]}`)
	b.ReportAllocs()
	for b.Loop() {
		scanChunk(payload)
	}
}
