package loadgen

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"aloft/loadgen/wire"
)

func TestAsker(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		switch r.URL.Path {
		case "/v1/stream":
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprint(w, `data: {"choices":[{"index":0,"text":"a \"b\""}]}`+"\n\n"+`data: {"choices":[{"index":0,"text":" ü","finish_reason":"stop"}]}`+"\n\ndata: [DONE]\n\n")
		case "/v1/plain":
			fmt.Fprintf(w, `{"key":%q,"body":%s}`, r.Header.Get("Authorization"), body)
		case "/v1/busy":
			w.Header().Set("Retry-After", "2")
			w.WriteHeader(http.StatusTooManyRequests)
		case "/v1/slow":
			<-r.Context().Done()
		}
	}))
	defer server.Close()
	a, err := NewAsker(server.URL, "k", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	for range 2 { // over one connection
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		got, err := a.Ask(ctx, "/v1/stream", []byte("{}"), true)
		if err != nil || got.Text != `a "b" ü` || got.Status != 200 || got.First <= 0 || got.Total < got.First {
			t.Errorf("stream: %+v, %v", got, err)
		}
		got, err = a.Ask(ctx, "/v1/plain", []byte(`"x"`), false)
		if err != nil || string(got.Body) != `{"key":"Bearer k","body":"x"}` || got.Total <= 0 {
			t.Errorf("plain: %s, %v", got.Body, err)
		}
		got, err = a.Ask(ctx, "/v1/busy", nil, true)
		if err != nil || got.Status != 429 || got.Again != 2*time.Second {
			t.Errorf("busy: %+v, %v", got, err)
		}
		cancel()
		ctx, cancel = context.WithTimeout(t.Context(), 10*time.Second)
		time.AfterFunc(10*time.Millisecond, cancel)
		if _, err := a.Ask(ctx, "/v1/slow", nil, false); !errors.Is(err, wire.ErrTimeout) {
			t.Errorf("cancelled: %v", err)
		}
	}
}
