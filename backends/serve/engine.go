// Package serve is the HTTP side of our own engines (aloft engine llama, aloft
// engine synthetic): routes, checks, error shape, SSE, bounded queue, health,
// metrics, sleep endpoints and shutdown. The model side is an Engine.
package serve

import "context"

// Engine is the model side of one of our engine servers. Embed and Generate are
// called from many goroutines at once, at most as many as the server admits;
// how they share the model is the engine's business. An error that is an
// *openai.Error is answered as it stands; backends.ErrTooLong as a 400
// context_length_exceeded; anything else as a 500.
type Engine interface {
	// Info is constant while the engine lives, and cheap.
	Info() Info
	// Embed computes one vector per input, in order. One call is one batch.
	Embed(ctx context.Context, req *EmbedRequest) (*EmbedResult, error)
	// Generate calls emit for each piece, from one goroutine, and stops when
	// emit fails or ctx ends. Text that belongs to a stop string is not emitted.
	Generate(ctx context.Context, req *GenerateRequest, emit func(Piece) error) (Finish, error)
	// Sleep gives back what can be given back while the process stays alive;
	// it waits for running work. Wake undoes it. Both are idempotent.
	Sleep(ctx context.Context) error
	Wake(ctx context.Context) error
}

// Info says what an engine serves.
type Info struct {
	Model   string // the name that requests use
	Kind    string // "llama" or "synthetic"
	Note    string // model card, one line: what this really is
	Context int    // tokens of a prompt with its answer; 0 = no limit
	Dim     int    // length of an embedding, 0 = no embeddings
	Slots   int    // sequences that generate at once, 0 = no generation
	Created int64  // Unix seconds, constant across calls
	Echo    bool   // answers may begin with the prompt, which is how held-out text is scored

	// KVTokens is what the KV cache holds over all sequences, in blocks of KVBlock;
	// 0 = each slot has a cache of its own, so that slots are the only limit.
	KVTokens, KVBlock int
}

// Input is one row to embed: Text, or Tokens when the client sent token ids.
type Input struct {
	Text   string
	Tokens []int // nil for text
}

// EmbedRequest is one embeddings call.
type EmbedRequest struct {
	Inputs     []Input
	Dimensions int // 0 = the model's own; the engine refuses what it cannot honour
}

// EmbedResult holds one vector per input, in order.
type EmbedResult struct {
	Vectors      [][]float32
	PromptTokens int
}

// Message is one turn of a chat.
type Message struct{ Role, Content string }

// GenerateRequest is one generation. Zero values mean the engine's default,
// except Temperature and TopP, where negative means not given.
type GenerateRequest struct {
	Chat        bool
	Messages    []Message // chat
	Prompt      string    // completions, when PromptTokens is nil
	PromptIDs   []int     // completions given as token ids
	MaxTokens   int       // 0 = up to the context's end
	Temperature float64   // negative = not given
	TopP        float64   // negative = not given
	Seed        *int64    // nil = any
	Stop        []string  // at most 4, none empty
	Logprobs    int       // number of alternatives asked for, -1 = no logprobs
	Echo        bool      // completions: first the prompt's tokens, with their logprobs
}

// Piece is one generated token, or several. Text may end inside a rune; the
// server joins pieces before they go out.
type Piece struct {
	Text    string
	Tokens  int     // how many tokens this is, 0 counts as 1
	Logprob float64 // of this token, when logprobs were asked for
	Top     []TopLogprob
	Prompt  bool // a token of the prompt, echoed
	First   bool // nothing comes before it, so that it has no logprob
}

// TopLogprob is one alternative at a position.
type TopLogprob struct {
	Text    string
	Logprob float64
}

// Finish ends a generation.
type Finish struct {
	Reason           string // "stop" or "length"
	PromptTokens     int
	CompletionTokens int
}
