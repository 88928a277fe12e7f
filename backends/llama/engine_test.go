package llama

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	yzma "github.com/hybridgroup/yzma/pkg/llama"

	"aloft/backends"
	"aloft/backends/openai"
	"aloft/backends/serve"
)

type prompted = yzma.Token

// babyllama returns the path of the small English model, or skips.
func babyllama(t testing.TB) string {
	dir := os.Getenv("ALOFT_SHARED")
	if dir == "" {
		t.Skip("ALOFT_SHARED is not set: no BabyLlama")
	}
	path := filepath.Join(dir, "models", "babyllama.gguf")
	if _, err := os.Stat(path); err != nil {
		t.Skipf("no BabyLlama: %v", err)
	}
	return path
}

// repository returns the folder that holds go.mod.
func repository(t testing.TB) string {
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("no go.mod above the test")
		}
		dir = filepath.Dir(dir)
	}
}

// lib returns the folder of llama.cpp's libraries, or skips.
func lib(t testing.TB) string {
	dir := os.Getenv("ALOFT_ENGINE_LIB")
	if dir == "" {
		dir = filepath.Join(repository(t), ".engine")
	}
	dir, err := LibraryFolder(dir)
	if err != nil {
		t.Skip(err)
	}
	return dir
}

func open(t testing.TB, opt Options) *Engine {
	opt.Lib = lib(t)
	if opt.Model == "" {
		opt.Model = babyllama(t)
	}
	e, err := Open(opt, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

// story is a greedy completion request.
func story(max int) *serve.GenerateRequest {
	return &serve.GenerateRequest{Prompt: "Once upon a time", MaxTokens: max, TopP: -1, Logprobs: -1}
}

func generate(e *Engine, req *serve.GenerateRequest) (string, serve.Finish, error) {
	var b strings.Builder
	f, err := e.Generate(context.Background(), req, func(p serve.Piece) error {
		b.WriteString(p.Text)
		return nil
	})
	return b.String(), f, err
}

func TestGreedyEnglish(t *testing.T) {
	e := open(t, Options{Slots: 4})
	alone, f, err := generate(e, story(80))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("greedy: %q", alone)
	if f.Reason != "length" || f.CompletionTokens != 80 || f.PromptTokens < 4 {
		t.Errorf("finish %+v", f)
	}
	for _, word := range []string{" there was a ", " little ", " named ", "She "} {
		if !strings.Contains(alone, word) {
			t.Errorf("%q lacks %q: not the English that BabyLlama speaks", alone, word)
		}
	}
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			req := story(80)
			if i%2 == 1 {
				req.Prompt = "The dog was sad because the ball was lost. One day" // other shapes in the batch
			}
			text, _, err := generate(e, req)
			if err != nil || i%2 == 0 && text != alone {
				t.Errorf("among others: %q, %v; alone: %q", text, err, alone)
			}
		})
	}
	wg.Wait()
}

func TestManyStreams(t *testing.T) {
	e := open(t, Options{Slots: 3, BatchTokens: 16}) // fewer slots than streams, prompts in chunks
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			req := story(20 + i)
			req.Prompt = strings.Repeat("The cat sat on the mat. ", i%3+1)
			pieces := 0
			f, err := e.Generate(t.Context(), req, func(serve.Piece) error { pieces++; return nil })
			if err != nil || f.CompletionTokens != pieces || f.Reason == "length" && pieces != 20+i {
				t.Errorf("stream %d: %+v, %d pieces, %v", i, f, pieces, err)
			}
		})
	}
	wg.Wait()
	if n := e.queued.Load(); n != 0 {
		t.Errorf("%d calls still counted as waiting", n)
	}
}

func TestCancelFreesSlot(t *testing.T) {
	e := open(t, Options{Slots: 1})
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("client left")
	_, err := e.Generate(ctx, story(0), func(serve.Piece) error { cancel(gone); return nil })
	if !errors.Is(err, gone) {
		t.Errorf("cancelled: %v, want %v", err, gone)
	}
	refused := errors.New("no more")
	if _, err := e.Generate(t.Context(), story(0), func(serve.Piece) error { return refused }); !errors.Is(err, refused) {
		t.Errorf("emit failed: %v, want %v", err, refused)
	}
	// The only slot must be free again, and the cache clean.
	a, _, errA := generate(e, story(30))
	b, _, errB := generate(e, story(30))
	if errA != nil || errB != nil || a != b || a == "" {
		t.Errorf("after a cancel: %q %v, %q %v", a, errA, b, errB)
	}
}

func TestStopString(t *testing.T) {
	e := open(t, Options{})
	whole, _, err := generate(e, story(60))
	if err != nil {
		t.Fatal(err)
	}
	stop := whole[20:31] // some words, so several tokens
	req := story(60)
	req.Stop = []string{stop}
	text, f, err := generate(e, req)
	if err != nil || f.Reason != "stop" || text != whole[:strings.Index(whole, stop)] {
		t.Errorf("stop %q: %q, %+v, %v; whole %q", stop, text, f, err, whole)
	}
}

func TestSeed(t *testing.T) {
	e := open(t, Options{Slots: 4})
	sample := func(seed int64) string {
		req := story(60)
		req.Temperature, req.TopP, req.Seed = 1, 0.95, &seed
		text, _, err := generate(e, req)
		if err != nil {
			t.Error(err)
		}
		return text
	}
	one := sample(1)
	if again := sample(1); again != one {
		t.Errorf("seed 1 gave %q and %q", one, again)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if crowd := sample(1); crowd != one {
				t.Errorf("seed 1 gave %q alone and %q among others", one, crowd)
			}
		})
	}
	wg.Wait()
	if two := sample(2); two == one {
		t.Errorf("seeds 1 and 2 both gave %q", one)
	}
}

func TestLogprobsOfGreedy(t *testing.T) {
	e := open(t, Options{})
	req := story(10)
	req.Logprobs = 3
	n := 0
	_, err := e.Generate(t.Context(), req, func(p serve.Piece) error {
		n++
		if len(p.Top) != 3 || p.Top[0].Text != p.Text || p.Top[0].Logprob != p.Logprob || p.Logprob > 0 || p.Top[1].Logprob > p.Logprob {
			t.Errorf("piece %+v: the greedy token must be the most likely", p)
		}
		return nil
	})
	if err != nil || n != 10 {
		t.Errorf("%d pieces, %v", n, err)
	}
}

func TestContextBounds(t *testing.T) {
	e := open(t, Options{Context: 64})
	long := story(1)
	long.Prompt = strings.Repeat("The cat sat on the mat. ", 40)
	if _, _, err := generate(e, long); !errors.Is(err, backends.ErrTooLong) {
		t.Errorf("long prompt: %v, want ErrTooLong", err)
	}
	long.Prompt = strings.Repeat("x", 1<<20)
	if _, _, err := generate(e, long); !errors.Is(err, backends.ErrTooLong) {
		t.Errorf("1 MiB prompt: %v, want ErrTooLong", err)
	}
	if _, err := e.Embed(t.Context(), &serve.EmbedRequest{Inputs: []serve.Input{{Text: "ok"}, {Text: long.Prompt}}}); !errors.Is(err, backends.ErrTooLong) {
		t.Errorf("long row: %v, want ErrTooLong", err)
	}
	_, f, err := generate(e, story(0)) // as far as the context reaches
	if err != nil || f.Reason != "length" || f.PromptTokens+f.CompletionTokens != 64 {
		t.Errorf("to the context's end: %+v, %v", f, err)
	}
}

func TestOddTexts(t *testing.T) {
	for _, model := range []string{babyllama(t), languageModel(t)} { // SentencePiece, byte-level BPE
		oddTexts(t, open(t, Options{Model: model}))
	}
}

func oddTexts(t *testing.T, e *Engine) {
	for _, text := range []string{"日本語 🙂", "a\x00b", "\xff\xfe", "", " ", "</s><s>", "\u2028"} {
		req := story(5)
		req.Prompt = text
		if _, _, err := generate(e, req); err != nil {
			t.Errorf("prompt %q: %v", text, err)
		}
		req.Chat, req.Messages = true, []serve.Message{{Role: "user", Content: text}, {Role: "odd", Content: text}}
		if _, _, err := generate(e, req); err != nil {
			t.Errorf("chat %q: %v", text, err)
		}
		if _, err := e.Embed(t.Context(), &serve.EmbedRequest{Inputs: []serve.Input{{Text: text}}}); err != nil {
			t.Errorf("embed %q: %v", text, err)
		}
	}
	var bad *openai.Error
	for _, req := range []*serve.GenerateRequest{{PromptIDs: []int{1, 1 << 30}}, {PromptIDs: []int{-1}}, {PromptIDs: []int{}}, {Chat: true, MaxTokens: 3}} {
		if _, _, err := generate(e, req); err != nil && !errors.As(err, &bad) {
			t.Errorf("%+v: %v, want a 400 or an answer", req, err)
		}
	}
}

func TestEmbeddingsBatch(t *testing.T) {
	e := open(t, Options{BatchTokens: 32, Context: 128}) // several batches
	embeddings(t, e)
}

func TestEncoder(t *testing.T) {
	e := open(t, Options{Model: encoder(t)})
	if n := e.Info().Slots; n != 0 {
		t.Fatalf("an encoder has %d slots for generation, want none", n)
	}
	embeddings(t, e)
	var bad *openai.Error
	if _, _, err := generate(e, story(1)); !errors.As(err, &bad) || bad.Status != 400 {
		t.Errorf("generation by an encoder: %v, want a 400", err)
	}
	for _, text := range []string{"日本語 🙂", "a\x00b", "\xff\xfe", "", " ", "[MASK] [SEP]"} {
		r, err := e.Embed(t.Context(), &serve.EmbedRequest{Inputs: []serve.Input{{Text: text}}})
		if err != nil || len(r.Vectors) != 1 {
			t.Errorf("embed %q: %v", text, err)
		}
	}
	if _, err := e.Embed(t.Context(), &serve.EmbedRequest{Inputs: []serve.Input{{Text: strings.Repeat("many words ", 1000)}}}); !errors.Is(err, backends.ErrTooLong) {
		t.Errorf("long row: %v, want ErrTooLong", err)
	}
	if err := e.Sleep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := e.Wake(t.Context()); err != nil {
		t.Fatal(err)
	}
	embeddings(t, e)
}

// 300 calls of which most are cancelled, on both kinds of work, must leave an
// engine that still answers and counts nobody as waiting.
func TestCancelStorm(t *testing.T) {
	e := open(t, Options{Slots: 3, MaxQueue: 400})
	want, _, err := generate(e, story(10))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 300 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%37)*time.Millisecond)
			defer cancel()
			if i%3 == 0 {
				_, _ = e.Embed(ctx, &serve.EmbedRequest{Inputs: []serve.Input{{Text: "The cat"}, {Text: "sat"}}})
				return
			}
			_, _ = e.Generate(ctx, story(40), func(serve.Piece) error { return nil })
		})
	}
	wg.Wait()
	if got, _, err := generate(e, story(10)); err != nil || got != want {
		t.Errorf("after the storm: %q, %v, want %q", got, err, want)
	}
	if _, err := e.Embed(t.Context(), &serve.EmbedRequest{Inputs: []serve.Input{{Text: "The cat"}}}); err != nil {
		t.Errorf("after the storm: %v", err)
	}
	if n := e.queued.Load(); n != 0 {
		t.Errorf("%d calls still counted as waiting", n)
	}
}

// embeddings checks that a batch gives what its rows give alone.
func embeddings(t *testing.T, e *Engine) {
	t.Helper()
	req := &serve.EmbedRequest{}
	for i := range 20 {
		req.Inputs = append(req.Inputs, serve.Input{Text: strings.Repeat("The cat sat on the mat. ", i%4+1) + fmt.Sprint(i)})
	}
	req.Inputs = append(req.Inputs, serve.Input{Tokens: []int{1, 20, 30}})
	all, err := e.Embed(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	tokens := 0
	for i, in := range req.Inputs {
		one, err := e.Embed(t.Context(), &serve.EmbedRequest{Inputs: []serve.Input{in}})
		if err != nil {
			t.Fatal(err)
		}
		tokens += one.PromptTokens
		if c := dot(one.Vectors[0], all.Vectors[i]); c < 0.9999 || c > 1.0001 {
			t.Errorf("row %d: cosine %.6f between alone and in a batch", i, c)
		}
		if n := dot(one.Vectors[0], one.Vectors[0]); math.Abs(n-1) > 1e-5 || len(one.Vectors[0]) != e.Info().Dim {
			t.Errorf("row %d: squared length %v of %d values", i, n, len(one.Vectors[0]))
		}
	}
	if tokens != all.PromptTokens {
		t.Errorf("%d tokens in a batch, %d alone", all.PromptTokens, tokens)
	}
	cut, err := e.Embed(t.Context(), &serve.EmbedRequest{Inputs: req.Inputs[:1], Dimensions: 8})
	if err != nil || len(cut.Vectors[0]) != 8 || math.Abs(dot(cut.Vectors[0], cut.Vectors[0])-1) > 1e-5 {
		t.Errorf("8 dimensions: %v, %v", cut, err)
	}
	var bad *openai.Error
	if _, err := e.Embed(t.Context(), &serve.EmbedRequest{Inputs: req.Inputs[:1], Dimensions: e.Info().Dim + 1}); !errors.As(err, &bad) || bad.Status != 400 {
		t.Errorf("too many dimensions: %v, want a 400", err)
	}
}

func dot(a, b []float32) (sum float64) {
	for i := range a {
		sum += float64(a[i]) * float64(b[i])
	}
	return sum
}

func TestSleepWake(t *testing.T) {
	e := open(t, Options{})
	before, _, err := generate(e, story(20))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // both are idempotent
		if err := e.Sleep(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := generate(e, story(20)); !errors.Is(err, backends.ErrUnavailable) {
		t.Errorf("asleep: %v, want ErrUnavailable", err)
	}
	if _, err := e.Embed(t.Context(), &serve.EmbedRequest{Inputs: []serve.Input{{Text: "x"}}}); !errors.Is(err, backends.ErrUnavailable) {
		t.Errorf("asleep: %v, want ErrUnavailable", err)
	}
	for range 2 {
		if err := e.Wake(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if after, _, err := generate(e, story(20)); err != nil || after != before {
		t.Errorf("awake again: %q, %v, want %q", after, err, before)
	}
}

// A file that changed while the engine slept must be an error, not a crash.
func TestWakeChecksTheFile(t *testing.T) {
	whole, err := os.ReadFile(babyllama(t))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "m.gguf")
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	e := open(t, Options{Model: path})
	if err := e.Sleep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, whole[:len(whole)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	if err := e.Wake(t.Context()); err == nil || !strings.Contains(err.Error(), "truncated") {
		t.Errorf("wake with half a file: %v", err)
	}
	if _, _, err := generate(e, story(1)); !errors.Is(err, backends.ErrUnavailable) {
		t.Errorf("still asleep: %v, want ErrUnavailable", err)
	}
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := e.Wake(t.Context()); err != nil {
		t.Error(err)
	}
	if _, _, err := generate(e, story(1)); err != nil {
		t.Error(err)
	}
}

// Sleep waits for the running call, and gives up with its context.
func TestSleepWaits(t *testing.T) {
	e := open(t, Options{})
	slept := make(chan error, 1)
	first := true
	_, f, err := func() (string, serve.Finish, error) {
		f, err := e.Generate(t.Context(), story(100), func(serve.Piece) error {
			if first {
				first = false
				go func() { slept <- e.Sleep(t.Context()) }()
			}
			return nil
		})
		return "", f, err
	}()
	if err != nil || f.CompletionTokens != 100 {
		t.Errorf("the running call: %+v, %v", f, err)
	}
	if err := <-slept; err != nil {
		t.Error(err)
	}
	if err := e.Wake(t.Context()); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := e.Sleep(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled sleep: %v", err)
	}
	if _, _, err := generate(e, story(3)); err != nil {
		t.Errorf("after a cancelled sleep: %v", err)
	}
}

func TestQueueIsBounded(t *testing.T) {
	e := open(t, Options{Slots: 1, MaxQueue: 2})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var mu sync.Mutex
	full := 0
	for range 30 {
		wg.Go(func() {
			_, err := e.Generate(ctx, story(0), func(serve.Piece) error { return nil })
			if errors.Is(err, backends.ErrOverloaded) {
				mu.Lock()
				full++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	cancel()
	if full == 0 {
		t.Error("30 calls at one slot with a queue of 2: none was refused")
	}
	if n := e.queued.Load(); n != 0 {
		t.Errorf("%d calls still counted as waiting", n)
	}
}

func TestCloseEndsCalls(t *testing.T) {
	e := open(t, Options{Slots: 1})
	result := make(chan error, 1)
	started := make(chan struct{})
	var once sync.Once
	go func() {
		_, err := e.Generate(context.Background(), story(0), func(serve.Piece) error {
			once.Do(func() { close(started) })
			time.Sleep(time.Millisecond) // a slow reader: the call outlives its generation
			return nil
		})
		result <- err
	}()
	<-started
	e.Close()
	if err := <-result; err != nil && !errors.Is(err, backends.ErrDraining) {
		t.Errorf("closed: %v, want ErrDraining or the whole answer", err)
	}
	if _, _, err := generate(e, story(1)); !errors.Is(err, backends.ErrDraining) {
		t.Errorf("after close: %v, want ErrDraining", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	model, libs := babyllama(t), lib(t)
	whole, err := os.ReadFile(model)
	if err != nil {
		t.Fatal(err)
	}
	file := func(name string, b []byte) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	layers := bytes.Clone(whole)
	at := bytes.Index(layers, []byte("llama.block_count")) + len("llama.block_count") + 4
	layers[at]++ // one more than the file has tensors for
	cases := []struct {
		name, want string
		opt        Options
	}{
		{"wrong layers, in llama.cpp's words", "blk.5.attn_norm.weight' not found", Options{Lib: libs, Model: file("m.gguf", layers)}},
		{"no library", "run `make engine` or set ALOFT_ENGINE_LIB", Options{Lib: t.TempDir(), Model: model}},
		{"library path empty", "engine library not found", Options{Model: model}},
		{"no model", "does not exist", Options{Lib: libs, Model: "/nonexistent/m.gguf"}},
		{"truncated weights", "truncated", Options{Lib: libs, Model: file("m.gguf", whole[:len(whole)-100])}},
		{"truncated head", "truncated", Options{Lib: libs, Model: file("m.gguf", whole[:1000])}},
		{"text", "not a GGUF file", Options{Lib: libs, Model: file("m.gguf", []byte("just some text"))}},
		{"slots", "slots is -3", Options{Lib: libs, Model: model, Slots: -3}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			e, err := Open(c.opt, slog.New(slog.DiscardHandler))
			if err == nil {
				e.Close()
				t.Fatal("opened")
			}
			if !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %q, want one line with %q", err, c.want)
			}
		})
	}
}

// The sizes in gguf.go must be those of the library itself.
func TestTypeTable(t *testing.T) {
	open(t, Options{})
	for id, layout := range ggmlTypes {
		if b, n := yzma.GGMLBlockSize(yzma.GGMLType(id)), yzma.GGMLTypeSize(yzma.GGMLType(id)); uint64(b) != layout.block || n != layout.bytes {
			t.Errorf("type %d: table has %+v, the library blocks of %d in %d bytes", id, layout, b, n)
		}
	}
}

// encoder and languageModel return the project's own models, else BabyLlama.
func encoder(t testing.TB) string       { return own(t, "aloft-encoder.gguf") }
func languageModel(t testing.TB) string { return own(t, "aloft-lm.gguf") }

func own(t testing.TB, name string) string {
	path := filepath.Join(repository(t), "configs", "models", name)
	if _, err := os.Stat(path); err != nil {
		return babyllama(t)
	}
	return path
}

// llama.cpp knows templates by their marks; a message longer than the first
// buffer must come through whole.
func TestChatTemplate(t *testing.T) {
	open(t, Options{}) // loads the library
	const chatML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
	if usableTemplate(chatML) == "" {
		t.Fatal("ChatML is not known")
	}
	long := strings.Repeat("many words ", 2000)
	got := applyTemplate(chatML, []serve.Message{{Role: "user", Content: long}, {Role: "assistant", Content: "a\x00b"}})
	want := "<|im_start|>user\n" + long + "<|im_end|>\n<|im_start|>assistant\na\uFFFDb<|im_end|>\n<|im_start|>assistant\n"
	if got != want {
		t.Errorf("%d bytes, want %d: ...%q", len(got), len(want), got[max(0, len(got)-80):])
	}
	if got := usableTemplate("{{ something nobody knows }}"); got != "" {
		t.Errorf("an unknown template passed as %q", got)
	}
}
