package openai

import (
	"testing"

	"aloft/backends"
)

// These run once per generated token.
var hotEvents = map[string]string{
	"text":    `{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"word"},"finish_reason":null}]}`,
	"escapes": `{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"\n\"a\" \u00e9, a longer piece of text\\\n"},"finish_reason":null}]}`,
	"tools":   `{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"city\": \"Bern\","}}]},"finish_reason":null}]}`,
}

func TestScanEventAllocs(t *testing.T) {
	for name, payload := range hotEvents {
		event := AppendEvent(nil, []byte(payload))
		if c := ScanEvent(backends.Chat, event); c != (Chunk{Content: true, Choices: 1}) {
			t.Errorf("%s: %+v", name, c)
		}
		if n := testing.AllocsPerRun(100, func() { ScanEvent(backends.Chat, event) }); n != 0 {
			t.Errorf("%s: %v allocations, want 0", name, n)
		}
	}
}

func BenchmarkScanEvent(b *testing.B) {
	for name, payload := range hotEvents {
		b.Run(name, func(b *testing.B) {
			event := AppendEvent(nil, []byte(payload))
			b.ReportAllocs()
			b.SetBytes(int64(len(event)))
			for b.Loop() {
				ScanEvent(backends.Chat, event)
			}
		})
	}
}
