package openai

import "io"

// Events frames SSE over a reader.
type Events struct{}

// NewEvents reads events of at most maxEvent bytes from r.
func NewEvents(r io.Reader, maxEvent int) *Events { return &Events{} }

// Next returns one whole event.
func (e *Events) Next() (event []byte, err error) { return nil, io.EOF }

// Data returns the payload of an event's data lines.
func Data(event []byte) []byte { return nil }

// IsDone reports whether data is the closing [DONE].
func IsDone(data []byte) bool { return false }

// Chunk is what a relay needs to know of one streamed event.
type Chunk struct {
	Content, Finished, UsageOnly, Failed bool
	PromptTokens, CompletionTokens       int
}

// ScanChunk reads a chunk's facts.
func ScanChunk(data []byte) Chunk { return Chunk{} }

// Usage is a reply's token count.
type Usage struct{ Prompt, Completion, Total int }

// ScanUsage finds the usage of a whole reply.
func ScanUsage(body []byte) (Usage, bool) { return Usage{}, false }

// AppendEvent appends data as one event.
func AppendEvent(dst, data []byte) []byte { return dst }
