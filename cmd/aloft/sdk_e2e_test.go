package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/shared"
)

const encoder, lm = "aloft-encoder", "aloft-lm"

// goSDK is the official client for Go against a running server.
func goSDK(t *testing.T, url string) {
	client := openai.NewClient(option.WithBaseURL(url+"/v1/"), option.WithAPIKey("none"),
		option.WithMaxRetries(0), option.WithRequestTimeout(patience))
	for name, f := range map[string]func(*testing.T, openai.Client){
		"models": goModels, "chat": goChat, "stream": goStream, "completions": goCompletions,
		"embeddings": goEmbeddings, "files": goFiles, "batch": goBatch, "chat-batch": goChatBatch, "errors": goErrors,
	} {
		t.Run(name, func(t *testing.T) { f(t, client) })
	}
}

func goModels(t *testing.T, client openai.Client) {
	var ids []string
	for pages := client.Models.ListAutoPaging(t.Context()); pages.Next(); {
		ids = append(ids, pages.Current().ID)
	}
	if !slices.Equal(ids, []string{encoder, lm}) {
		t.Errorf("models %v", ids)
	}
	if m, err := client.Models.Get(t.Context(), lm); err != nil || m.ID != lm || m.Created == 0 || m.OwnedBy == "" {
		t.Errorf("model %+v, %v", m, err)
	}
}

func question() openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{Model: lm, MaxTokens: openai.Int(8), Seed: openai.Int(1),
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("In the beginning")}}
}

func goChat(t *testing.T, client openai.Client) {
	r, err := client.Chat.Completions.New(t.Context(), question())
	if err != nil {
		t.Fatal(err)
	}
	c := r.Choices[0]
	if r.Object != "chat.completion" || c.Message.Content == "" || c.FinishReason != "length" && c.FinishReason != "stop" {
		t.Errorf("chat: %s", r.RawJSON())
	}
	if u := r.Usage; u.PromptTokens == 0 || u.CompletionTokens == 0 || u.CompletionTokens > 8 || u.TotalTokens != u.PromptTokens+u.CompletionTokens {
		t.Errorf("usage: %s", u.RawJSON())
	}
}

// The stream must bring the text of the plain answer: same seed, same model.
func goStream(t *testing.T, client openai.Client) {
	p := question()
	plain, err := client.Chat.Completions.New(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	p.StreamOptions.IncludeUsage = openai.Bool(true)
	stream := client.Chat.Completions.NewStreaming(t.Context(), p)
	defer stream.Close()
	var sum openai.ChatCompletionAccumulator
	for stream.Next() {
		if !sum.AddChunk(stream.Current()) {
			t.Errorf("chunk does not fit: %s", stream.Current().RawJSON())
		}
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	if got, want := sum.Choices[0], plain.Choices[0]; got.Message.Content != want.Message.Content || got.FinishReason != want.FinishReason {
		t.Errorf("stream %q (%s), plain %q (%s)", got.Message.Content, got.FinishReason, want.Message.Content, want.FinishReason)
	}
	if sum.Usage.CompletionTokens != plain.Usage.CompletionTokens || sum.Usage.PromptTokens != plain.Usage.PromptTokens {
		t.Errorf("stream's usage %+v, plain %+v", sum.Usage, plain.Usage)
	}
}

func goCompletions(t *testing.T, client openai.Client) {
	r, err := client.Completions.New(t.Context(), openai.CompletionNewParams{Model: lm, MaxTokens: openai.Int(8),
		Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("And the earth was")}})
	if err != nil {
		t.Fatal(err)
	}
	if r.Object != "text_completion" || len(r.Choices) != 1 || r.Choices[0].Text == "" || r.Usage.CompletionTokens == 0 {
		t.Errorf("completion: %s", r.RawJSON())
	}
}

func goEmbeddings(t *testing.T, client openai.Client) {
	in := openai.EmbeddingNewParams{Model: encoder, Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: []string{"a dog", "a small dog", "a treaty"}}}
	embed := func(in openai.EmbeddingNewParams) *openai.CreateEmbeddingResponse {
		t.Helper()
		r, err := client.Embeddings.New(t.Context(), in)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	plain := embed(in)
	if len(plain.Data) != 3 || plain.Usage.PromptTokens == 0 {
		t.Fatalf("embeddings: %.300s", plain.RawJSON())
	}
	for i, d := range plain.Data {
		if d.Index != int64(i) || math.Abs(norm(d.Embedding)-1) > 1e-3 {
			t.Errorf("row %d has index %d and length %v", i, d.Index, norm(d.Embedding))
		}
	}
	in.EncodingFormat = openai.EmbeddingNewParamsEncodingFormatBase64
	packed := embed(in)
	for i, d := range packed.Data {
		if got := cosine(d.Embedding, plain.Data[i].Embedding); len(d.Embedding) != len(plain.Data[i].Embedding) || got < 0.9999 {
			t.Errorf("row %d in base64: %d numbers, cosine %v to the same in decimal", i, len(d.Embedding), got)
		}
	}
	in.EncodingFormat, in.Dimensions = "", openai.Int(32)
	for i, d := range embed(in).Data {
		whole := plain.Data[i].Embedding
		if len(d.Embedding) != 32 || math.Abs(norm(d.Embedding)-1) > 1e-3 || cosine(d.Embedding, whole[:32]) < 0.9999 {
			t.Errorf("row %d: %d dimensions, length %v", i, len(d.Embedding), norm(d.Embedding))
		}
	}
	in = openai.EmbeddingNewParams{Model: encoder, Input: openai.EmbeddingNewParamsInputUnion{OfString: openai.String("a dog")}}
	if one := embed(in).Data; len(one) != 1 || cosine(one[0].Embedding, plain.Data[0].Embedding) < 0.999 {
		t.Errorf("one input: %d rows", len(one))
	}
}

func norm(v []float64) float64 { return math.Sqrt(dot(v, v)) }

func cosine(a, b []float64) float64 { return dot(a, b) / (norm(a) * norm(b)) }

func dot(a, b []float64) (sum float64) {
	for i := range min(len(a), len(b)) {
		sum += a[i] * b[i]
	}
	return sum
}

func goFiles(t *testing.T, client openai.Client) {
	const text = `{"custom_id":"x"}` + "\n"
	f, err := client.Files.New(t.Context(), openai.FileNewParams{File: openai.File(strings.NewReader(text), "note.jsonl", "application/jsonl"), Purpose: openai.FilePurposeBatch})
	if err != nil {
		t.Fatal(err)
	}
	if f.Bytes != int64(len(text)) || f.Filename != "note.jsonl" || f.Purpose != "batch" {
		t.Errorf("file: %s", f.RawJSON())
	}
	list, err := client.Files.List(t.Context(), openai.FileListParams{})
	if err != nil || !slices.ContainsFunc(list.Data, func(x openai.FileObject) bool { return x.ID == f.ID }) {
		t.Errorf("%s is not listed: %v", f.ID, err)
	}
	if got := content(t, client, f.ID); got != text {
		t.Errorf("content %q", got)
	}
	if d, err := client.Files.Delete(t.Context(), f.ID); err != nil || !d.Deleted {
		t.Errorf("delete: %+v, %v", d, err)
	}
	_, err = client.Files.Get(t.Context(), f.ID)
	wantError(t, err, 404, "not_found", "")
}

func content(t *testing.T, client openai.Client, id string) string {
	t.Helper()
	r, err := client.Files.Content(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// runBatch uploads rows, waits for the end of their batch and returns the results.
func runBatch(t *testing.T, client openai.Client, endpoint openai.BatchNewParamsEndpoint, rows string) string {
	t.Helper()
	f, err := client.Files.New(t.Context(), openai.FileNewParams{File: openai.File(strings.NewReader(rows), "rows.jsonl", "application/jsonl"), Purpose: openai.FilePurposeBatch})
	if err != nil {
		t.Fatal(err)
	}
	b, err := client.Batches.New(t.Context(), openai.BatchNewParams{InputFileID: f.ID, Endpoint: endpoint,
		CompletionWindow: openai.BatchNewParamsCompletionWindow24h, Metadata: shared.Metadata{"from": "go"}})
	if err != nil {
		t.Fatal(err)
	}
	if !eventually(patience, func() bool {
		if b, err = client.Batches.Get(t.Context(), b.ID); err != nil {
			t.Fatal(err)
		}
		return b.CompletedAt != 0 || b.FailedAt != 0
	}) {
		t.Fatalf("batch after %v: %s", patience, b.RawJSON())
	}
	n := int64(strings.Count(rows, "\n"))
	if c := b.RequestCounts; b.Status != "completed" || c.Total != n || c.Completed != n || c.Failed != 0 || b.Metadata["from"] != "go" || b.ErrorFileID != "" {
		t.Fatalf("batch: %s", b.RawJSON())
	}
	list, err := client.Batches.List(t.Context(), openai.BatchListParams{})
	if err != nil || !slices.ContainsFunc(list.Data, func(x openai.Batch) bool { return x.ID == b.ID }) {
		t.Errorf("%s is not listed: %v", b.ID, err)
	}
	return content(t, client, b.OutputFileID)
}

func goBatch(t *testing.T, client openai.Client) {
	text, err := os.ReadFile(rows(t, encoder, 60))
	if err != nil {
		t.Fatal(err)
	}
	results := runBatch(t, client, openai.BatchNewParamsEndpointV1Embeddings, string(text))
	checkRows(t, results, 60)
	// Results belong to their rows: a row's vector is what its text gets alone.
	for line := range strings.Lines(results) {
		var row struct {
			CustomID string `json:"custom_id"`
			Response struct {
				Body struct {
					Data []struct{ Embedding []float64 }
				}
			}
		}
		if json.Unmarshal([]byte(line), &row) != nil || row.CustomID != "row-7" && row.CustomID != "row-41" {
			continue
		}
		r, err := client.Embeddings.New(t.Context(), openai.EmbeddingNewParams{Model: encoder, Input: openai.EmbeddingNewParamsInputUnion{
			OfString: openai.String("sentence number " + strings.TrimPrefix(row.CustomID, "row-"))}})
		if err != nil {
			t.Fatal(err)
		}
		if c := cosine(r.Data[0].Embedding, row.Response.Body.Data[0].Embedding); c < 0.999 {
			t.Errorf("%s: cosine %v to its own text", row.CustomID, c)
		}
	}
}

func goChatBatch(t *testing.T, client openai.Client) {
	var in bytes.Buffer
	for i := range 3 {
		fmt.Fprintf(&in, `{"custom_id":"chat-%d","method":"POST","url":"/v1/chat/completions","body":{"model":"aloft-lm","max_tokens":4,"messages":[{"role":"user","content":"Verse %d"}]}}`+"\n", i, i)
	}
	results := runBatch(t, client, openai.BatchNewParamsEndpointV1ChatCompletions, in.String())
	seen := map[string]bool{}
	for line := range strings.Lines(results) {
		var row struct {
			CustomID string `json:"custom_id"`
			Response struct {
				Body openai.ChatCompletion
			}
		}
		if err := json.Unmarshal([]byte(line), &row); err != nil || len(row.Response.Body.Choices) != 1 || row.Response.Body.Usage.CompletionTokens == 0 {
			t.Errorf("row %.300s: %v", line, err)
		}
		seen[row.CustomID] = true
	}
	if len(seen) != 3 {
		t.Errorf("rows %v", seen)
	}
}

// wantError checks that err is an error of the API, with its parts.
func wantError(t *testing.T, err error, status int, code, param string) {
	t.Helper()
	var e *openai.Error
	if !errors.As(err, &e) {
		t.Errorf("error %v, want status %d", err, status)
		return
	}
	if e.StatusCode != status || e.Type != "invalid_request_error" || code != "" && e.Code != code || e.Param != param || e.Message == "" {
		t.Errorf("status %d, %s; want %d, code %q, param %q", e.StatusCode, e.RawJSON(), status, code, param)
	}
}

func goErrors(t *testing.T, client openai.Client) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	p := question()
	p.Model = "nobody"
	_, err := client.Chat.Completions.New(ctx, p)
	wantError(t, err, 404, "model_not_found", "model")
	_, err = client.Models.Get(ctx, "nobody")
	wantError(t, err, 404, "model_not_found", "model")
	p = question()
	p.Temperature = openai.Float(-1)
	_, err = client.Chat.Completions.New(ctx, p)
	wantError(t, err, 400, "", "temperature")
	p = question()
	p.Messages = nil
	_, err = client.Chat.Completions.New(ctx, p)
	wantError(t, err, 400, "", "messages")
	p = question()
	p.Model = encoder
	_, err = client.Chat.Completions.New(ctx, p)
	wantError(t, err, 400, "", "model")
	p = question()
	p.Messages[0] = openai.UserMessage(strings.Repeat("a very long story about a goat ", 400))
	_, err = client.Chat.Completions.New(ctx, p)
	wantError(t, err, 400, "context_length_exceeded", "messages")
	_, err = client.Embeddings.New(ctx, openai.EmbeddingNewParams{Model: encoder,
		Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: []string{"a", ""}}})
	wantError(t, err, 400, "", "input")
	_, err = client.Embeddings.New(ctx, openai.EmbeddingNewParams{Model: encoder, Dimensions: openai.Int(-1),
		Input: openai.EmbeddingNewParamsInputUnion{OfString: openai.String("a")}})
	wantError(t, err, 400, "", "dimensions")
	_, err = client.Batches.New(ctx, openai.BatchNewParams{InputFileID: "file-none", Endpoint: openai.BatchNewParamsEndpointV1Embeddings,
		CompletionWindow: openai.BatchNewParamsCompletionWindow24h})
	wantError(t, err, 400, "", "input_file_id")
}

// nodeLine is what testdata/sdk-node/driver.mjs prints of a step.
type nodeLine struct {
	Name, Error       string
	OK                bool
	IDs               []string
	One               string
	Object            string
	Text, Finish      string
	Chunks, Rows      int
	Index             []int
	Width             int
	Apart             float64
	Usage             map[string]any
	Bytes             int
	Same, Deleted     bool
	Listed            bool
	After             *nodeLine
	Type, Code, Param string
	Kind, Message     string
	Status            any // of a batch a word, of an error a number
	Seen              map[string]int
	Counts            struct{ Total, Completed, Failed int }
	Metadata          map[string]string
}

// nodeSDK is the official client for Node.js against a running server.
func nodeSDK(t *testing.T, url string) {
	dir := nodeModules(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", "driver.mjs", url)
	cmd.Dir, cmd.WaitDelay = dir, time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("node driver.mjs: %v\n%s%s", err, out, &stderr)
	}
	lines := map[string]nodeLine{}
	for sc := bufio.NewScanner(bytes.NewReader(out)); sc.Scan(); {
		var l nodeLine
		if err := json.Unmarshal(sc.Bytes(), &l); err != nil {
			t.Fatalf("%v in %s", err, sc.Text())
		}
		lines[l.Name] = l
	}
	for name, good := range map[string]func(l nodeLine) bool{
		"models": func(l nodeLine) bool { return slices.Equal(l.IDs, []string{encoder, lm}) && l.One == encoder },
		"chat": func(l nodeLine) bool {
			return l.Object == "chat.completion" && l.Text != "" && l.Finish != "" && l.Usage["completion_tokens"] != nil
		},
		"stream": func(l nodeLine) bool {
			return l.Text == lines["chat"].Text && l.Finish == lines["chat"].Finish && l.Chunks > 2 && l.Usage["total_tokens"] == lines["chat"].Usage["total_tokens"]
		},
		"completions": func(l nodeLine) bool { return l.Object == "text_completion" && l.Text != "" },
		"embeddings": func(l nodeLine) bool {
			return l.Rows == 3 && slices.Equal(l.Index, []int{0, 1, 2}) && l.Width > 32 && l.Apart < 1e-4 && l.Usage["prompt_tokens"] != 0.0
		},
		"files": func(l nodeLine) bool {
			return l.Bytes == 8 && l.Listed && l.Same && l.Deleted && l.After != nil && l.After.Type == "NotFoundError"
		},
		"batch": func(l nodeLine) bool {
			return l.Status == "completed" && l.Counts.Completed == 60 && len(l.Seen) == 60 && once(l.Seen) && l.Listed && l.Metadata["from"] == "node"
		},
		"chat batch": func(l nodeLine) bool {
			return l.Status == "completed" && l.Counts.Completed == 3 && len(l.Seen) == 3 && once(l.Seen)
		},
		"unknown model": func(l nodeLine) bool {
			return l.Type == "NotFoundError" && l.Status == 404.0 && l.Code == "model_not_found" && l.Param == "model"
		},
		"bad input": func(l nodeLine) bool {
			return l.Type == "BadRequestError" && l.Status == 400.0 && l.Param == "input" && l.Kind == "invalid_request_error"
		},
		"bad value": func(l nodeLine) bool {
			return l.Type == "BadRequestError" && l.Status == 400.0 && l.Param == "temperature"
		},
	} {
		if l, there := lines[name]; !there || !l.OK || !good(l) {
			t.Errorf("%s: %+v", name, l)
		}
	}
}

func once(seen map[string]int) bool {
	for _, n := range seen {
		if n != 1 {
			return false
		}
	}
	return true
}

// nodeModules returns a folder with the driver and the client that
// package-lock.json names, fetched once into the user's cache.
func nodeModules(t *testing.T) string {
	t.Helper()
	for _, tool := range []string{"node", "npm"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("no %s: %v", tool, err)
		}
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = t.TempDir()
	}
	dir := filepath.Join(cache, "aloft", "sdk-node")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	source := filepath.Join("testdata", "sdk-node")
	want, err := os.ReadFile(filepath.Join(source, "package-lock.json"))
	if err != nil {
		t.Fatal(err)
	}
	have, _ := os.ReadFile(filepath.Join(dir, "fetched.json"))
	if !bytes.Equal(have, want) {
		copyFiles(t, source, dir, "package.json", "package-lock.json")
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
		cmd.Dir, cmd.WaitDelay = dir, time.Second
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Skipf("npm could not fetch the client: %v\n%s", err, out)
		}
		if err := os.WriteFile(filepath.Join(dir, "fetched.json"), want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	copyFiles(t, source, dir, "driver.mjs", "engine.mjs", "whole.mjs", "finetune.mjs")
	return dir
}

func copyFiles(t *testing.T, from, to string, names ...string) {
	t.Helper()
	for _, name := range names {
		b, err := os.ReadFile(filepath.Join(from, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(to, name), b, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
