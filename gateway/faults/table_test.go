package faults

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tidwall/gjson"
)

// Buffers are used again by the edge and by the engines' client: of 200 clients,
// some of which leave, each sees its own text alone, whole or streamed.
func TestNobodySeesAnothersText(t *testing.T) {
	echo := func(x *exchange) bool {
		marker := gjson.GetBytes(x.body, "messages.0.content").Str
		if !gjson.GetBytes(x.body, "stream").Bool() {
			x.answer(200, strings.Replace(chatReply, "Hello", marker, 1))
			return true
		}
		x.say(sseHead)
		for range 20 {
			x.chunk(strings.Replace(frameHel, "Hel", marker, 1))
		}
		x.chunk(frameFinish + frameDone)
		x.say("0\r\n\r\n")
		return true
	}
	p := newPlant(t, setup{slots: 64, queue: 1000}, newEngine(t, echo), newEngine(t, echo))
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 50}}
	t.Cleanup(client.CloseIdleConnections)
	var all sync.WaitGroup
	var whole atomic.Int32
	for i := range 200 {
		all.Go(func() {
			for round := range 5 {
				marker := fmt.Sprintf("m-%d-%d-%s-end", i, round, strings.Repeat(string(rune('a'+i%26)), 1+i*7%400))
				body, many := chatBody, 1
				if (i+round)%2 == 0 {
					body, many = streamBody, 20
				}
				body = strings.Replace(body, "hi", marker, 1)
				if (i+round)%7 == 0 { // leaves with the answer on its way
					p.raw(t, chatPath, body).Close()
					continue
				}
				res, err := client.Post(p.url+chatPath, "application/json", strings.NewReader(body))
				if err != nil {
					t.Error(err)
					return
				}
				text, err := io.ReadAll(res.Body)
				res.Body.Close()
				if err != nil || strings.Count(string(text), marker) != many || strings.Count(string(text), "-end") != many {
					t.Errorf("client %d: %d times its own text of %d, %v: %.300s", i, strings.Count(string(text), marker), strings.Count(string(text), "-end"), err, text)
				}
				whole.Add(1)
			}
		})
	}
	all.Wait()
	if whole.Load() < 800 {
		t.Errorf("%d answers were read, want most of 1000", whole.Load())
	}
}

// What a stream is made of goes through untouched, in whatever pieces it comes:
// two tool calls with arguments of one byte a piece, three choices in turns, an
// emoji that is cut.
func TestStreamsInOddPieces(t *testing.T) {
	tool := func(index int, rest string) string {
		return fmt.Sprintf("data: {\"id\":\"c1\",\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":%d,%s}]},\"finish_reason\":null}]}\n\n", index, rest)
	}
	var tools, choices strings.Builder
	for i, name := range []string{"weather", "time"} {
		tools.WriteString(tool(i, fmt.Sprintf(`"id":"call_%d","type":"function","function":{"name":"%s","arguments":""}`, i, name)))
	}
	for _, c := range []byte(`{"city":"B"}`) {
		for i := range 2 {
			tools.WriteString(tool(i, fmt.Sprintf(`"function":{"arguments":%q}`, c)))
		}
	}
	tools.WriteString(strings.Replace(frameFinish, "stop", "tool_calls", 1))
	for round := range 3 {
		for i := range 3 {
			frame, index := frameHel, fmt.Sprintf(`"index":%d`, (i+round)%3)
			if round == 2 {
				frame = frameFinish
			}
			choices.WriteString(strings.Replace(frame, `"index":0`, index, 1))
		}
	}
	emoji := strings.Replace(frameHel, "Hel", "Grüezi 🏔🚀", 1) + frameFinish
	for name, sent := range map[string]string{"two tool calls": tools.String(), "three choices": choices.String(), "an emoji": emoji} {
		for _, size := range []int{1, 7, 1 << 20} {
			e := newEngine(t, func(x *exchange) bool {
				x.say(sseHead)
				for rest := sent + frameDone; rest != ""; {
					n := min(size, len(rest))
					x.chunk(rest[:n])
					rest = rest[n:]
				}
				x.say("0\r\n\r\n")
				return true
			})
			p := newPlant(t, setup{}, e)
			if res, text := p.post(t, chatPath, streamBody); res.StatusCode != 200 || text != sent+frameDone {
				t.Errorf("%s in pieces of %d: %d\n%s\nwant\n%s", name, size, res.StatusCode, text, sent)
			}
		}
	}
}

// A client's wish for a packed reply stays between it and the edge: the engine
// is not told, and what it packs all the same is metered and comes out plain.
func TestPackedReply(t *testing.T) {
	e := newEngine(t, func(x *exchange) bool {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		io.WriteString(w, chatReply)
		w.Close()
		x.say(fmt.Sprintf("HTTP/1.1 200 X\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s", b.Len(), b.String()))
		return true
	})
	p := newPlant(t, setup{}, e)
	req, err := http.NewRequest("POST", p.url+chatPath, strings.NewReader(chatBody))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"Accept-Encoding": "gzip", "Connection": "X-Hop", "X-Hop": "1", "Te": "trailers", "Proxy-Authorization": "x", "Cookie": "x"} {
		req.Header.Set(name, value)
	}
	res, err := http.DefaultClient.Do(req) // which unpacks nothing, since the header is ours
	if err != nil {
		t.Fatal(err)
	}
	text, _ := io.ReadAll(res.Body)
	res.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	if res.StatusCode != 200 || string(text) != chatReply || res.Header.Get("Content-Encoding") != "" {
		t.Errorf("%d %v %q, want the reply, plain", res.StatusCode, res.Header, text)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, name := range []string{"X-Hop", "Te", "Proxy-Authorization", "Cookie"} {
		if got := e.heads[0].Header.Get(name); got != "" {
			t.Errorf("the engine got %s: %s", name, got)
		}
	}
	if got := e.heads[0].Header.Get("Accept-Encoding"); strings.Contains(got, "gzip") {
		t.Errorf("the engine is asked for %q", got)
	}
	if o := p.outcomes(); len(o) != 1 || o[0].PromptTokens != 2 || o[0].CompletionTokens != 1 {
		t.Errorf("metered %+v", o)
	}
}
