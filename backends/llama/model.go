package llama

import (
	"errors"
	"fmt"
	"math"
	"strings"

	yzma "github.com/hybridgroup/yzma/pkg/llama"

	"aloft/backends"
	"aloft/backends/openai"
	"aloft/backends/serve"
)

// maxEmbedRows bounds the sequences of one embeddings batch; llama.cpp allows 256.
const maxEmbedRows = 128

// model is a loaded GGUF with its contexts. Only the loop's goroutine uses it.
type model struct {
	opt     Options
	encoder bool // embeds only
	context int  // tokens per sequence
	m       yzma.Model
	vocab   yzma.Vocab
	tokens  int // size of the vocabulary
	dim     int
	pool    yzma.PoolingType
	chat    string   // the GGUF's chat template, "" = none that llama.cpp knows
	pieces  []string // by token, filled as they are met
	gen     *session // nil for encoders
	emb     *session // of a generating model: made when first asked for
}

// session is one llama context with a batch of its own.
type session struct {
	ctx   yzma.Context
	mem   yzma.Memory // 0 for encoders
	batch yzma.Batch
}

// load reads the model and makes the context it needs first.
func load(opt Options, g *GGUF) (*model, error) {
	takeComplaint()
	m, err := yzma.ModelLoadFromFile(opt.Model, yzma.ModelDefaultParams()) // all layers on a GPU when the library has one
	if err != nil {
		return nil, fmt.Errorf("llama.cpp cannot load %s (architecture %q): %w: %s", opt.Model, g.Architecture(), err, takeComplaint())
	}
	md := &model{
		opt: opt, m: m, encoder: g.encoderOnly(),
		vocab: yzma.ModelGetVocab(m), dim: int(yzma.ModelNEmbdOut(m)),
		context: contextTokens(opt, int(yzma.ModelNCtxTrain(m))),
		pool:    pooling(g),
	}
	md.tokens = int(yzma.VocabNTokens(md.vocab))
	md.pieces = make([]string, md.tokens)
	if yzma.ModelHasEncoder(m) {
		md.free()
		return nil, fmt.Errorf("model %s: encoder-decoder models (architecture %q) are not served", opt.Model, g.Architecture())
	}
	if md.encoder {
		md.emb, err = md.newEmbedding()
	} else {
		md.gen, err = md.newGeneration()
		md.chat = usableTemplate(yzma.ModelChatTemplate(m, ""))
	}
	if err != nil {
		md.free()
		return nil, fmt.Errorf("model %s: %w", opt.Model, err)
	}
	return md, nil
}

// contextTokens is the option, at most what the model was trained for: beyond
// it learned positions run out (llama.cpp aborts) or text falls apart.
func contextTokens(opt Options, trained int) int {
	if trained <= 0 {
		return opt.Context
	}
	return min(opt.Context, trained)
}

// pooling is what the file says, or mean.
func pooling(g *GGUF) yzma.PoolingType {
	if p := yzma.PoolingType(g.archInt("pooling_type", 0)); p > yzma.PoolingTypeNone {
		return p
	}
	return yzma.PoolingTypeMean
}

func (md *model) newGeneration() (*session, error) {
	p := yzma.ContextDefaultParams()
	p.NCtx = uint32(md.context * md.opt.Slots)
	p.NSeqMax = uint32(md.opt.Slots)
	p.NBatch = uint32(md.opt.BatchTokens)
	p.NUbatch = min(p.NBatch, 512) // more costs memory and gains nothing
	// One buffer for all sequences would make each attend over all cells: 64
	// sequences then ran 2.6 times slower.
	p.KVUnified = 0
	// One next token a sequence, and some of prompts that are scored; by default
	// llama.cpp reserves room for the logits of a whole batch, vocabulary x 2 KB.
	p.NOutputsMax = min(p.NSeqMax+scoreRows, p.NBatch)
	return md.newSession(p)
}

// newEmbedding makes a context in which a batch is one physical batch, as
// pooling needs. Its memory grows with the square of that (1.3 GB were seen for
// 8192 tokens x 64 sequences), so it is no larger than the longest row needs.
func (md *model) newEmbedding() (*session, error) {
	p := yzma.ContextDefaultParams()
	p.NCtx = uint32(md.embedTokens())
	p.NBatch, p.NUbatch = p.NCtx, p.NCtx
	p.NSeqMax = maxEmbedRows
	p.PoolingType = md.pool
	p.Embeddings = 1
	// Rows of different length share one physical batch only in one buffer.
	p.KVUnified = 1
	return md.newSession(p)
}

// embedTokens is how many tokens one embeddings batch may have.
func (md *model) embedTokens() int { return max(md.opt.BatchTokens, md.context) }

func (md *model) newSession(p yzma.ContextParams) (*session, error) {
	p.NThreads, p.NThreadsBatch = int32(md.opt.Threads), int32(md.opt.Threads)
	p.NoPerf = 1
	ctx, err := yzma.InitFromModel(md.m, p)
	if err != nil {
		return nil, fmt.Errorf("make a context of %d tokens for %d sequences: %w: %s", p.NCtx, p.NSeqMax, err, takeComplaint())
	}
	mem, err := yzma.GetMemory(ctx)
	if err != nil {
		return nil, err
	}
	return &session{ctx, mem, yzma.BatchInit(int32(p.NBatch), 0, 1)}, nil
}

func (s *session) free() {
	if s != nil {
		_ = yzma.BatchFree(s.batch)
		_ = yzma.Free(s.ctx)
	}
}

func (md *model) free() {
	md.gen.free()
	md.emb.free()
	_ = yzma.ModelFree(md.m)
}

// tokenize turns text into tokens, with the special tokens that the model wants
// around it; special also reads such tokens where they are spelled out in text.
// It refuses more than the context holds.
func (md *model) tokenize(text string, special bool) ([]yzma.Token, error) {
	// Tokenising holds up everybody: a text that would need more than 64 bytes
	// for every token of the context is refused unread.
	if len(text)/64 > md.context {
		return nil, fmt.Errorf("%d bytes of text for a context of %d tokens: %w", len(text), md.context, backends.ErrTooLong)
	}
	tokens := yzma.Tokenize(md.vocab, clean(text), true, special)
	if bos := yzma.VocabBOS(md.vocab); len(tokens) > 1 && tokens[0] == bos && tokens[1] == bos {
		tokens = tokens[1:] // a chat template had spelled it out already
	}
	return tokens, md.check(tokens)
}

// given checks token ids that a client sent.
func (md *model) given(ids []int) ([]yzma.Token, error) {
	tokens := make([]yzma.Token, len(ids))
	for i, id := range ids {
		if id < 0 || id >= md.tokens {
			return nil, openai.Invalid("", openai.CodeValue, "token id %d is outside the vocabulary of %d", id, md.tokens)
		}
		tokens[i] = yzma.Token(id)
	}
	return tokens, md.check(tokens)
}

func (md *model) check(tokens []yzma.Token) error {
	if len(tokens) > md.context {
		return fmt.Errorf("%d tokens in a context of %d: %w", len(tokens), md.context, backends.ErrTooLong)
	}
	for _, t := range tokens {
		if t < 0 || int(t) >= md.tokens { // a vocabulary with a special token it does not have
			return fmt.Errorf("the tokenizer made token %d of a vocabulary of %d: damaged model", t, md.tokens)
		}
	}
	return nil
}

// clean makes text safe to hand to C++: no NUL (yzma would pass a null pointer)
// and valid UTF-8.
func clean(text string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD")
}

// piece returns the bytes of a token; control tokens have none.
func (md *model) piece(t int) string {
	if md.pieces[t] == "" {
		buf := make([]byte, 64)
		n := yzma.TokenToPiece(md.vocab, yzma.Token(t), buf, 0, false)
		if n < 0 {
			buf = make([]byte, -n)
			n = yzma.TokenToPiece(md.vocab, yzma.Token(t), buf, 0, false)
		}
		md.pieces[t] = string(buf[:max(n, 0)])
	}
	return md.pieces[t]
}

// usableTemplate returns the template when llama.cpp can apply it (it knows
// families of templates, it does not run Jinja), else "".
func usableTemplate(template string) string {
	if template == "" || applyTemplate(template, []serve.Message{{Role: "user", Content: "hello"}}) == "" {
		return ""
	}
	return template
}

func applyTemplate(template string, messages []serve.Message) string {
	size := 256
	chat := make([]yzma.ChatMessage, len(messages))
	for i, m := range messages {
		chat[i] = yzma.NewChatMessage(clean(m.Role), clean(m.Content))
		size += len(m.Role) + len(m.Content) + 64
	}
	for range 2 { // the second time with the size it asked for
		buf := make([]byte, size)
		n := int(yzma.ChatApplyTemplate(template, chat, true, buf))
		if n <= 0 || n > math.MaxInt32/2 {
			return ""
		}
		if n <= size {
			return string(buf[:n])
		}
		size = n
	}
	return ""
}

// chatPrompt renders messages with the model's template, or joins them by
// newlines when it has none.
func (md *model) chatPrompt(messages []serve.Message) (string, error) {
	if md.chat != "" {
		if p := applyTemplate(md.chat, messages); p != "" {
			return p, nil
		}
		return "", errors.New("llama.cpp could not apply the model's chat template")
	}
	contents := make([]string, len(messages))
	for i, m := range messages {
		contents[i] = m.Content
	}
	return strings.Join(contents, "\n"), nil
}
