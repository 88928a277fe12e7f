package llama

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// start runs Serve on a free port and stops it with the test.
func start(t *testing.T, opt Options) (url string) {
	opt.Lib, opt.Model = lib(t), babyllama(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, ln, opt, slog.New(slog.DiscardHandler)) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("shutdown: %v", err)
		}
	})
	return "http://" + ln.Addr().String()
}

func post(t *testing.T, ctx context.Context, url, body string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	return res
}

// call posts body and decodes the answer into v.
func call(t *testing.T, url, body string, v any) int {
	t.Helper()
	res := post(t, t.Context(), url, body)
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, v); err != nil {
		t.Fatalf("%s: %v in %s", url, err, b)
	}
	return res.StatusCode
}

type answer struct {
	Choices []struct {
		Text         string
		Message      struct{ Content string }
		Delta        struct{ Content string }
		FinishReason string `json:"finish_reason"`
	}
	Usage struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
	}
	Error struct{ Code, Message string }
}

func TestServeOverHTTP(t *testing.T) {
	url := start(t, Options{Slots: 2, Name: "baby"})
	var a answer
	body := `{"model":"baby","prompt":"Once upon a time","max_tokens":30,"temperature":0}`
	if code := call(t, url+"/v1/completions", body, &a); code != 200 || a.Usage.Completion != 30 || !strings.HasPrefix(a.Choices[0].Text, ", there was a ") || a.Choices[0].FinishReason != "length" {
		t.Fatalf("completion: %d %+v", code, a)
	}
	a = answer{}
	chat := `{"model":"baby","messages":[{"role":"user","content":"Once upon a time"}],"max_tokens":30,"temperature":0,"stop":["was"]}`
	if code := call(t, url+"/v1/chat/completions", chat, &a); code != 200 || a.Choices[0].Message.Content != ", there " && a.Choices[0].Message.Content != ", there" || a.Choices[0].FinishReason != "stop" {
		t.Errorf("chat with a stop string: %d %+v", code, a)
	}
	a = answer{}
	long := `{"model":"baby","prompt":"` + strings.Repeat("a word ", 400) + `"}`
	if code := call(t, url+"/v1/completions", long, &a); code != 400 || a.Error.Code != "context_length_exceeded" {
		t.Errorf("long prompt: %d %+v", code, a)
	}
	var e struct {
		Data  []struct{ Embedding []float64 }
		Usage struct {
			Prompt int `json:"prompt_tokens"`
		}
	}
	if code := call(t, url+"/v1/embeddings", `{"model":"baby","input":["a cat","the dog"],"dimensions":16}`, &e); code != 200 || len(e.Data) != 2 || len(e.Data[1].Embedding) != 16 || e.Usage.Prompt == 0 {
		t.Errorf("embeddings: %d %+v", code, e)
	}
	a = answer{}
	if code := call(t, url+"/v1/embeddings", `{"model":"baby","input":"a cat","dimensions":4096}`, &a); code != 400 || !strings.Contains(a.Error.Message, "dimensions") {
		t.Errorf("too many dimensions: %d %+v", code, a)
	}
}

// A client that leaves in mid-stream gives its slot back: with one slot, the
// next call could not be answered otherwise.
func TestStreamAndLeave(t *testing.T) {
	url := start(t, Options{Slots: 1, Name: "baby"})
	body := `{"model":"baby","prompt":"Once upon a time","temperature":0,"stream":true,"max_tokens":30}`
	for range 5 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		res := post(t, ctx, url+"/v1/completions", body)
		if _, err := bufio.NewReader(res.Body).ReadString('\n'); err != nil || res.StatusCode != 200 {
			t.Fatalf("first event: %d, %v", res.StatusCode, err)
		}
		cancel()
	}
	res := post(t, t.Context(), url+"/v1/completions", body)
	var text strings.Builder
	done := false
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if done = data == "[DONE]"; !ok || done {
			continue
		}
		var a answer
		if err := json.Unmarshal([]byte(data), &a); err != nil {
			t.Fatalf("%v in %s", err, data)
		}
		for _, c := range a.Choices {
			text.WriteString(c.Text)
		}
	}
	if !strings.HasPrefix(text.String(), ", there was a ") {
		t.Errorf("stream: %q", text.String())
	}
}

func TestServeBadModel(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	err = Serve(t.Context(), ln, Options{Model: "/nonexistent/model.gguf"}, slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("error %v", err)
	}
	if _, err := ln.Accept(); err == nil {
		t.Error("the listener is still open")
	}
}
