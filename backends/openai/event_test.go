package openai

import (
	"encoding/json"
	"testing"

	"aloft/backends"
)

func TestScanEvent(t *testing.T) {
	for _, tc := range []struct {
		e     backends.Endpoint
		event string
		want  Chunk
	}{
		{backends.Chat, "data: [DONE]\n\n", Chunk{Last: true}},
		{backends.Chat, "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n", Chunk{Content: true, Choices: 1}},
		{backends.Chat, "event: error\ndata: x\n\n", Chunk{Failed: true}},
		{backends.Responses, "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"a\"}\n\n", Chunk{Content: true}},
		{backends.Responses, "data: {\"type\":\"response.completed\",\"response\":{\"usage\":{\"input_tokens\":3,\"output_tokens\":4}}}\n\n",
			Chunk{Last: true, Finished: true, PromptTokens: 3, CompletionTokens: 4, Counted: true}},
		{backends.Responses, "event: response.failed\ndata: {}\n\n", Chunk{Last: true, Failed: true}},
		{backends.Responses, "event: error\ndata: x\n\n", Chunk{Failed: true}},
		{backends.Responses, "event: response.new_thing\ndata: {}\n\n", Chunk{}},
		{backends.Messages, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":3}}}\n\n", Chunk{PromptTokens: 3}},
		{backends.Messages, "data: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"a\"}}\n\n", Chunk{Content: true}},
		{backends.Messages, "data: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":4}}\n\n", Chunk{Finished: true, CompletionTokens: 4, Counted: true}},
		{backends.Messages, "data: {\"type\":\"message_stop\"}\n\n", Chunk{Last: true, Finished: true}},
		{backends.Messages, "event: error\ndata: {\"type\":\"error\"}\n\n", Chunk{Failed: true}},
		{backends.Messages, "data: {\"type\":\"ping\"}\n\n", Chunk{}},
	} {
		event := []byte(tc.event)
		if got := ScanEvent(tc.e, event); got != tc.want {
			t.Errorf("%s %q: %+v, want %+v", tc.e, tc.event, got, tc.want)
		}
		if n := testing.AllocsPerRun(20, func() { ScanEvent(tc.e, event) }); n != 0 {
			t.Errorf("%s %q: %v allocations, want 0", tc.e, tc.event, n)
		}
	}
}

// What the gateway writes when a stream fails must be read as a failure.
func TestAppendFailure(t *testing.T) {
	for _, e := range backends.Endpoints() {
		event := AppendFailure(nil, e, &Error{Status: 503, Message: "a\n\"b\""})
		if c := ScanEvent(e, event); !c.Failed || c.Last || !json.Valid(Data(event)) {
			t.Errorf("%s: %q scans to %+v", e, event, c)
		}
	}
	got := string(AppendErrorFor(nil, backends.Messages, &Error{Status: 429, Message: "m"}))
	if want := `{"type":"error","error":{"type":"rate_limit_error","message":"m"}}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestPrefixHashes(t *testing.T) {
	long := make([]byte, 40_000)
	a := PrefixHashes(nil, [][]byte{long})
	b := PrefixHashes(nil, [][]byte{long[:300], long[:39_700]})
	if len(a) != prefixBlocks || len(b) != prefixBlocks || a[0] != b[0] || a[1] == b[1] {
		t.Errorf("%d and %d hashes: %x, %x", len(a), len(b), a[:2], b[:2])
	}
	text := [][]byte{long}
	if n := testing.AllocsPerRun(20, func() { a = PrefixHashes(a[:0], text) }); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

func FuzzSSE(f *testing.F) {
	f.Add(byte(3), []byte("event: error\ndata: {\"type\":\"message_start\"}\n\n"))
	f.Fuzz(func(t *testing.T, which byte, event []byte) {
		all := backends.Endpoints()
		c := ScanEvent(all[int(which)%len(all)], event)
		if c.PromptTokens < 0 || c.CompletionTokens < 0 {
			t.Fatalf("%+v", c)
		}
	})
}
