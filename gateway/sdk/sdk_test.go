// Package sdk holds OpenAI's own Go client against the gateway, over real TCP.
// It stands apart because the client takes minutes to compile.
package sdk

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"aloft/backends"
	"aloft/gateway"
	"aloft/jobs"
	"aloft/jobs/boltstore"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"gocloud.dev/blob/memblob"
)

// script plays the batcher and the engines behind it.
type script func(ctx context.Context, req *backends.Request) (*backends.Reply, error)

func (f script) Submit(ctx context.Context, req *backends.Request) (*backends.Reply, error) {
	return f(ctx, req)
}

// catalog has two models.
type catalog struct{}

func (catalog) Models() []gateway.Model {
	all := []backends.Endpoint{backends.Chat, backends.Completions, backends.Embeddings}
	return []gateway.Model{
		{Name: "tiny", Endpoints: all, Created: time.Unix(1700000000, 0), Usable: true},
		{Name: "org/name:q8", Endpoints: all, Created: time.Unix(1700000000, 0), Usable: true},
	}
}

func (c catalog) Lookup(name string) (gateway.Model, bool) {
	for _, m := range c.Models() {
		if m.Name == name {
			return m, true
		}
	}
	return gateway.Model{}, false
}

// start serves until the test ends and returns a client of it.
func start(t *testing.T, play script, opt gateway.Options, deps gateway.Deps, opts ...option.RequestOption) openai.Client {
	t.Helper()
	client, _ := serve(t, play, opt, deps, opts...)
	return client
}

func serve(t *testing.T, play script, opt gateway.Options, deps gateway.Deps, opts ...option.RequestOption) (openai.Client, *gateway.Server) {
	t.Helper()
	opt.DrainGrace = 100 * time.Millisecond
	deps.Catalog, deps.Submitter = catalog{}, play
	s, err := gateway.New(opt, deps, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, ln) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return openai.NewClient(append([]option.RequestOption{
		option.WithBaseURL("http://" + ln.Addr().String() + "/v1/"), option.WithAPIKey("k"),
	}, opts...)...), s
}

func answer(status int, body string) script {
	return func(context.Context, *backends.Request) (*backends.Reply, error) {
		return &backends.Reply{Status: status, ContentType: "application/json", Body: io.NopCloser(strings.NewReader(body))}, nil
	}
}

// plays streams the frames and then ends with err.
func plays(err error, frames ...string) script {
	return func(context.Context, *backends.Request) (*backends.Reply, error) {
		r, w := io.Pipe()
		go func() {
			for _, f := range frames {
				io.WriteString(w, f)
			}
			w.CloseWithError(err)
		}()
		return &backends.Reply{Status: 200, ContentType: "text/event-stream", Body: r}, nil
	}
}

const (
	frameRole   = "data: {\"id\":\"c1\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\"},\"finish_reason\":null}]}\n\n"
	frameHel    = "data: {\"id\":\"c1\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hel\"},\"finish_reason\":null}]}\n\n"
	frameLo     = "data: {\"id\":\"c1\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"lo\"},\"finish_reason\":null}]}\n\n"
	frameFinish = "data: {\"id\":\"c1\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"
	frameUsage  = "data: {\"id\":\"c1\",\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2,\"total_tokens\":9}}\n\n"
	frameDone   = "data: [DONE]\n\n"
)

func hi() openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{Model: "tiny", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("hi")}}
}

func TestSDKChat(t *testing.T) {
	client := start(t, answer(200, `{"id":"c1","object":"chat.completion","created":1,"model":"tiny","choices":[{"index":0,"message":{"role":"assistant","content":"Hello"},"finish_reason":"stop"}],"usage":{"prompt_tokens":2,"completion_tokens":1,"total_tokens":3}}`), gateway.Options{}, gateway.Deps{})
	got, err := client.Chat.Completions.New(t.Context(), hi())
	if err != nil || got.Choices[0].Message.Content != "Hello" || got.Usage.TotalTokens != 3 {
		t.Errorf("chat %+v, %v", got, err)
	}
}

func TestSDKStream(t *testing.T) {
	read := func(play script, p openai.ChatCompletionNewParams) (text string, usage int64, err error) {
		client := start(t, play, gateway.Options{HeartbeatAfter: 30 * time.Millisecond}, gateway.Deps{}, option.WithMaxRetries(0))
		s := client.Chat.Completions.NewStreaming(t.Context(), p)
		defer s.Close()
		for s.Next() {
			c := s.Current()
			if len(c.Choices) > 0 { // apps index it: the extra frame must not come unasked
				text += c.Choices[0].Delta.Content
			} else if !p.StreamOptions.IncludeUsage.Value {
				t.Error("a chunk without choices that nobody asked for")
			}
			usage = max(usage, c.Usage.TotalTokens)
		}
		return text, usage, s.Err()
	}
	whole := plays(io.EOF, frameRole, frameHel, frameLo, frameFinish, frameUsage, frameDone)
	if text, _, err := read(whole, hi()); err != nil || text != "Hello" {
		t.Errorf("stream %q, %v", text, err)
	}
	with := hi()
	with.StreamOptions.IncludeUsage = openai.Bool(true)
	if text, usage, err := read(whole, with); err != nil || text != "Hello" || usage != 9 {
		t.Errorf("stream with usage %q %d, %v", text, usage, err)
	}
	if text, _, err := read(plays(io.ErrUnexpectedEOF, frameRole, frameHel), hi()); err == nil || text != "Hel" {
		t.Errorf("broken stream %q, %v: want an error after the text", text, err)
	}
	slow := func(ctx context.Context, req *backends.Request) (*backends.Reply, error) {
		time.Sleep(200 * time.Millisecond)
		return whole(ctx, req)
	}
	if text, _, err := read(slow, hi()); err != nil || text != "Hello" {
		t.Errorf("stream after heartbeats %q, %v", text, err)
	}
}

func TestSDKEmbeddings(t *testing.T) {
	vector := make([]byte, 0, 8)
	for _, f := range []float32{0.5, -2} {
		vector = binary.LittleEndian.AppendUint32(vector, math.Float32bits(f))
	}
	row := `"` + base64.StdEncoding.EncodeToString(vector) + `"`
	client := start(t, func(ctx context.Context, req *backends.Request) (*backends.Reply, error) {
		value := "[0.5,-2]"
		if strings.Contains(string(req.Body), "base64") {
			value = row
		}
		return answer(200, fmt.Sprintf(`{"object":"list","model":"tiny","data":[{"object":"embedding","index":0,"embedding":%s}],"usage":{"prompt_tokens":1,"total_tokens":1}}`, value))(ctx, req)
	}, gateway.Options{}, gateway.Deps{})
	got, err := client.Embeddings.New(t.Context(), openai.EmbeddingNewParams{
		Model: "tiny", Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: []string{"a"}},
	})
	if err != nil || len(got.Data) != 1 || got.Data[0].Embedding[1] != -2 || got.Usage.TotalTokens != 1 {
		t.Errorf("embeddings %+v, %v", got, err)
	}
}

func TestSDKModels(t *testing.T) {
	client := start(t, answer(200, "{}"), gateway.Options{}, gateway.Deps{})
	page, err := client.Models.List(t.Context())
	if err != nil || len(page.Data) != 2 {
		t.Fatalf("models %+v, %v", page, err)
	}
	m, err := client.Models.Get(t.Context(), "org/name:q8")
	if err != nil || m.ID != "org/name:q8" || m.Created != 1700000000 {
		t.Errorf("model %+v, %v", m, err)
	}
}

// The client retries what may pass, when it is told to, and nothing else.
func TestSDKErrors(t *testing.T) {
	for _, tt := range []struct {
		name  string
		err   error
		calls int32
		code  string
	}{
		{"overloaded twice", &backends.RetryError{Err: backends.ErrOverloaded, After: time.Second, Reason: "queue_full"}, 3, "overloaded"},
		{"too long", backends.ErrTooLong, 1, "context_length_exceeded"},
		{"took too long", context.DeadlineExceeded, 1, "gateway_timeout"},
		{"a bug", errors.New("bug"), 1, "internal_error"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var calls atomic.Int32
			client := start(t, func(context.Context, *backends.Request) (*backends.Reply, error) {
				calls.Add(1)
				return nil, tt.err
			}, gateway.Options{}, gateway.Deps{})
			began := time.Now()
			_, err := client.Chat.Completions.New(t.Context(), hi())
			var api *openai.Error
			if !errors.As(err, &api) || api.Code != tt.code || api.Message == "" {
				t.Errorf("error %v, want code %s", err, tt.code)
			}
			if calls.Load() != tt.calls {
				t.Errorf("%d calls, want %d", calls.Load(), tt.calls)
			}
			if waited := time.Since(began); tt.calls > 1 && waited < 2*time.Second {
				t.Errorf("both retries after %v, want 1s before each", waited)
			}
		})
	}
}

// noExecutor starts nothing: batches need no process of their own.
type noExecutor struct{}

func (noExecutor) Start(context.Context, jobs.Launch) (jobs.Run, error) {
	return nil, errors.New("nothing starts here")
}
func (noExecutor) Reap(context.Context) error { return nil }

type lateCaller struct{ jobs.Caller }

// withJobs puts a real job manager behind the gateway.
func withJobs(t *testing.T, play script) openai.Client {
	t.Helper()
	dir := t.TempDir()
	store, err := boltstore.Open(filepath.Join(dir, "jobs.db"))
	if err != nil {
		t.Fatal(err)
	}
	knot := &lateCaller{}
	m, err := jobs.NewManager(jobs.Options{
		Store: store, Files: store, Blobs: memblob.OpenBucket(nil), Caller: knot, Executor: noExecutor{}, DataDir: dir,
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.Close(context.Background())
		store.Close()
	})
	client, s := serve(t, play, gateway.Options{}, gateway.Deps{Files: m, Batches: m, Jobs: m})
	knot.Caller = s
	if err := m.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	return client
}

func TestSDKFilesAndBatch(t *testing.T) {
	client := withJobs(t, answer(200, `{"object":"list","data":[],"usage":{"prompt_tokens":2,"total_tokens":2}}`))
	rows := `{"custom_id":"r","method":"POST","url":"/v1/embeddings","body":{"model":"tiny","input":"x"}}` + "\n"
	f, err := client.Files.New(t.Context(), openai.FileNewParams{
		File: openai.File(strings.NewReader(rows), "rows.jsonl", "application/jsonl"), Purpose: openai.FilePurposeBatch,
	})
	if err != nil || f.Bytes != int64(len(rows)) || f.Filename != "rows.jsonl" {
		t.Fatalf("file %+v, %v", f, err)
	}
	b, err := client.Batches.New(t.Context(), openai.BatchNewParams{
		InputFileID: f.ID, Endpoint: openai.BatchNewParamsEndpointV1Embeddings, CompletionWindow: openai.BatchNewParamsCompletionWindow24h,
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 6000 {
		if b, err = client.Batches.Get(t.Context(), b.ID); err != nil || b.Status == openai.BatchStatusCompleted {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil || b.RequestCounts.Completed != 1 || b.Usage.TotalTokens != 2 {
		t.Fatalf("batch %+v, %v", b, err)
	}
	resp, err := client.Files.Content(t.Context(), b.OutputFileID)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if out, _ := io.ReadAll(resp.Body); !strings.Contains(string(out), `"custom_id":"r"`) {
		t.Errorf("output %s", out)
	}
	if list, err := client.Batches.List(t.Context(), openai.BatchListParams{}); err != nil || len(list.Data) != 1 {
		t.Errorf("list %+v, %v", list, err)
	}
	if gone, err := client.Files.Delete(t.Context(), f.ID); err != nil || !gone.Deleted {
		t.Errorf("delete %+v, %v", gone, err)
	}
}
