package loadgen

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// eventsOf parses in, cut after every n-th byte, into "name|data" strings.
func eventsOf(in string, n int) (out []string, err error) {
	var e events
	for len(in) > 0 && err == nil {
		k := min(n, len(in))
		err = e.feed([]byte(in[:k]), func(name, data []byte) error {
			out = append(out, string(name)+"|"+string(data))
			return nil
		})
		in = in[k:]
	}
	return out, err
}

func TestEvents(t *testing.T) {
	for name, c := range map[string]struct {
		in   string
		want []string
	}{
		"one":                  {"data: a\n\n", []string{"|a"}},
		"no space":             {"data:a\n\n", []string{"|a"}},
		"one space only":       {"data:  a\n\n", []string{"| a"}},
		"two at once":          {"data: a\n\ndata: b\n\n", []string{"|a", "|b"}},
		"CRLF":                 {"data: a\r\n\r\ndata: b\r\n\r\n", []string{"|a", "|b"}},
		"CR":                   {"data: a\r\rdata: b\r\r", []string{"|a", "|b"}},
		"comment":              {": keep-alive\n\ndata: a\n: more\n\n", []string{"|a"}},
		"several lines":        {"data: a\ndata: b\n\n", []string{"|a\nb"}},
		"named":                {"event: error\ndata: a\n\ndata: b\n\n", []string{"error|a", "|b"}},
		"name without data":    {"event: error\n\ndata: a\n\n", []string{"|a"}},
		"other fields":         {"id: 1\nretry: 5\ndatax: n\ndata: a\n\n", []string{"|a"}},
		"empty data":           {"data\n\ndata:\n\n", []string{"|", "|"}},
		"byte order mark":      {"\xef\xbb\xbfdata: a\n\n", []string{"|a"}},
		"unfinished":           {"data: a\n\ndata: b\n", []string{"|a"}},
		"extra empty lines":    {"\n\n\ndata: a\n\n\n\n", []string{"|a"}},
		"colon within":         {"data: {\"a\":1}\n\n", []string{`|{"a":1}`}},
		"not confused by CRLF": {"data: a\r\n\ndata: b\n\r\n", []string{"|a", "|b"}},
	} {
		for _, n := range []int{1, 2, 3, 7, 1000} {
			got, err := eventsOf(c.in, n)
			if err != nil || !slices.Equal(got, c.want) {
				t.Errorf("%s, cut every %d bytes: %q (%v), want %q", name, n, got, err, c.want)
			}
		}
	}
}

// The bound is one event's: a long line is not counted as line and as data.
func TestLargeEvents(t *testing.T) {
	for _, cut := range []int{1 << 20, 4096} {
		got, err := eventsOf("data: "+strings.Repeat("x", maxEvent-100)+"\n\n", cut)
		if err != nil || len(got) != 1 {
			t.Errorf("cut every %d: %d events, %v", cut, len(got), err)
		}
	}
}

func TestEventsAreBounded(t *testing.T) {
	for name, in := range map[string]string{
		"endless line":  "data: " + strings.Repeat("x", maxEvent+1),
		"endless event": strings.Repeat("data: "+strings.Repeat("x", 1000)+"\n", maxEvent/1000+1),
	} {
		if _, err := eventsOf(in, 4096); !errors.Is(err, errEventTooLarge) {
			t.Errorf("%s: error %v, want %v", name, err, errEventTooLarge)
		}
	}
}

// Taking a stream apart allocates nothing once its buffers have grown.
func TestEventsAllocateNothing(t *testing.T) {
	in := []byte("data: {\"choices\":[{\"delta\":{\"content\":\"word\"}}]}\n\n: ping\r\n\r\ndata: cut")
	var e events
	n := 0
	emit := func(_, _ []byte) error { n++; return nil }
	if got := testing.AllocsPerRun(100, func() {
		if e.feed(in, emit) != nil || e.feed([]byte(" here\n\n"), emit) != nil {
			t.Error("feed failed")
		}
	}); got != 0 {
		t.Errorf("%v allocations per read, want none", got)
	}
	if n != 2*101 {
		t.Errorf("%d events, want %d", n, 2*101)
	}
}

// The events of a stream do not depend on where the reads cut it.
func FuzzEvents(f *testing.F) {
	f.Add("data: a\r\n\r\n: c\ndata: b\n\nevent: error\rdata: x\r\r", uint8(1))
	f.Add("\xef\xbb\xbfdata: {\"choices\":[]}\n\ndata: [DONE]\n\n", uint8(2))
	f.Fuzz(func(t *testing.T, in string, cut uint8) {
		whole, err := eventsOf(in, max(len(in), 1))
		if err != nil {
			t.Skip("an input that fails whole says nothing about its parts:", err)
		}
		parts, err := eventsOf(in, int(cut)+1)
		if err != nil || !slices.Equal(whole, parts) {
			t.Fatalf("cut every %d bytes: %q (%v), whole: %q", int(cut)+1, parts, err, whole)
		}
	})
}

// take never panics, and a stream without [DONE] is never complete.
func FuzzStream(f *testing.F) {
	f.Add(`data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}],"usage":{"completion_tokens":1}}` + "\n\ndata: [DONE]\n\n")
	f.Add(`data: {"error":{"message":"x"}}` + "\n\n")
	f.Fuzz(func(t *testing.T, in string) {
		var split events
		var st stream
		if split.feed([]byte(in), st.take) != nil {
			return
		}
		if _, err := st.complete(1, nil); err == nil && (!strings.Contains(in, "[DONE]") || !strings.Contains(in, "finish_reason")) {
			t.Fatalf("complete without an end: %q", in)
		}
	})
}
