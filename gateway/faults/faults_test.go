package faults

import (
	"bufio"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"aloft/backends/openaihttp"
	"aloft/gateway"
)

// F1: the client leaves, the GPU must not work on: in the queue, before the
// first byte, mid-stream, and during a plain reply.
func TestF1ClientLeaves(t *testing.T) {
	hold := func(x *exchange) bool { x.hang(); return false }
	for name, c := range map[string]struct {
		body  string
		play  play
		until string // what the client reads before it leaves
	}{
		"unary before the first byte":  {chatBody, hold, ""},
		"stream before the first byte": {streamBody, hold, ""},
		"mid-stream": {streamBody, func(x *exchange) bool {
			x.say(sseHead)
			x.chunk(frameRole)
			x.chunk(frameHel)
			x.hang()
			return false
		}, "Hel"},
		"during a plain reply": {chatBody, func(x *exchange) bool {
			x.say("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{\"half\":")
			x.hang()
			return false
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t, c.play)
			p := newPlant(t, setup{slots: 4}, e)
			var clients []net.Conn
			for range 8 { // four at the engine, four in the queue
				clients = append(clients, p.raw(t, chatPath, c.body))
			}
			until(t, "four calls at the engine", func() bool { return e.calls.Load() == 4 })
			until(t, "four requests in the queue", func() bool { return p.batcher.Signals(time.Now()).Class[0].Queue == 4 })
			if c.until != "" {
				readUntil(t, clients[0], clients[1:], c.until)
			}
			for _, conn := range clients {
				conn.Close()
			}
			until(t, "engine's connections closed", func() bool { return e.open.Load() == 0 })
			until(t, "all outcomes", func() bool { return len(p.outcomes()) == 8 })
			for _, o := range p.outcomes() {
				if o.Status != 499 || o.Reason != "client_gone" {
					t.Errorf("outcome %d %q, want 499 client_gone", o.Status, o.Reason)
				}
			}
			until(t, "nothing queued and nothing in flight", func() bool {
				s := p.batcher.Signals(time.Now()).Class[0]
				return s.Queue == 0 && s.InFlight == 0
			})
			if e.calls.Load() != 4 {
				t.Errorf("%d calls, want 4: nothing is dispatched or retried", e.calls.Load())
			}
		})
	}
}

// readUntil reads until the text came on the first or any other connection:
// which four of the eight are served is not fixed.
func readUntil(t *testing.T, first net.Conn, others []net.Conn, text string) {
	t.Helper()
	got := make(chan bool, 1+len(others))
	for _, c := range append([]net.Conn{first}, others...) {
		go func() {
			r, all := bufio.NewReader(c), ""
			for !strings.Contains(all, text) {
				b, err := r.ReadByte()
				if err != nil {
					return
				}
				all += string(b)
			}
			got <- true
		}()
	}
	for range 4 {
		select {
		case <-got:
		case <-time.After(patience):
			t.Fatal("no content from the stream")
		}
	}
}

// F2: a silent engine beside a healthy one: its calls are tried on the healthy
// one after the first-byte deadline, since no byte reached the client.
func TestF2SilentEngine(t *testing.T) {
	silent := newEngine(t, func(x *exchange) bool { x.hang(); return false })
	healthy := newEngine(t, func(x *exchange) bool { x.answer(200, chatReply); return true })
	p := newPlant(t, setup{slots: 1, client: openaihttp.Options{FirstByteTimeout: time.Second}}, silent, healthy)
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			if res, text := p.post(t, chatPath, chatBody); res.StatusCode != 200 || text != chatReply {
				t.Errorf("%d %s", res.StatusCode, text)
			}
		})
	}
	all.Wait()

	alone := newPlant(t, setup{client: openaihttp.Options{FirstByteTimeout: 100 * time.Millisecond}}, silent)
	res, text := alone.post(t, chatPath, chatBody)
	if res.StatusCode != 504 || gjson.Get(text, "error.code").Str != "gateway_timeout" || res.Header.Get("X-Aloft-Reason") != "engine_silent" {
		t.Errorf("alone: %d %s %v, want 504 engine_silent", res.StatusCode, text, res.Header)
	}
}

// F3: a stream dies after content: an error event, no [DONE], no retry.
func TestF3StreamDies(t *testing.T) {
	for name, end := range map[string]func(x *exchange){
		"reset":          func(x *exchange) { x.reset() },
		"closed":         func(x *exchange) { x.Close() },
		"clean but open": func(x *exchange) { x.say("0\r\n\r\n") },
		"bad chunk":      func(x *exchange) { x.say("zz\r\n") },
		"half an event":  func(x *exchange) { x.chunk("data: {\"choi"); x.say("0\r\n\r\n") },
	} {
		t.Run(name, func(t *testing.T) {
			through := make(chan struct{})
			dying := newEngine(t, func(x *exchange) bool {
				x.say(sseHead)
				x.chunk(frameRole)
				x.chunk(frameHel)
				x.chunk(frameLo)
				select {
				case <-through: // a reset overtakes what is under way
				case <-time.After(patience):
				}
				end(x)
				return false
			})
			other := newEngine(t, func(x *exchange) bool { x.answer(200, chatReply); return true })
			p := newPlant(t, setup{}, dying, other)
			res, text := p.stream(t, streamBody, frameLo, through)
			events := strings.Split(strings.TrimSpace(strings.TrimSuffix(text, " <unexpected EOF>")), "\n\n")
			if res.StatusCode != 200 || len(events) != 4 || events[1]+"\n\n" != frameHel || events[2]+"\n\n" != frameLo {
				t.Fatalf("%d, %d events: %q", res.StatusCode, len(events), text)
			}
			if m := gjson.Get(strings.TrimPrefix(events[3], "data: "), "error.message"); m.Type != gjson.String || strings.Contains(text, "[DONE]") {
				t.Errorf("last event %q, want an error and no [DONE]", events[3])
			}
			if !strings.HasSuffix(text, "<unexpected EOF>") {
				t.Error("the connection ended as if the answer were whole")
			}
			until(t, "outcome", func() bool { return len(p.outcomes()) == 1 })
			if o := p.outcomes()[0]; o.Status != 502 || o.Reason != "engine_bad_reply" {
				t.Errorf("outcome %d %q, want 502 engine_bad_reply", o.Status, o.Reason)
			}
			if dying.calls.Load()+other.calls.Load() != 1 {
				t.Errorf("%d calls, want 1", dying.calls.Load()+other.calls.Load())
			}
		})
	}
	t.Run("before any byte", func(t *testing.T) { // tried elsewhere, unseen
		dying := newEngine(t, func(x *exchange) bool { x.reset(); return false })
		good := newEngine(t, func(x *exchange) bool {
			x.say(sseHead)
			x.chunk(frameHel)
			x.chunk(frameFinish)
			x.chunk(frameDone)
			x.say("0\r\n\r\n")
			return true
		})
		p := newPlant(t, setup{}, dying, good)
		if res, text := p.post(t, chatPath, streamBody); res.StatusCode != 200 || text != frameHel+frameFinish+frameDone {
			t.Errorf("%d %q", res.StatusCode, text)
		}
		if dying.calls.Load() != 1 || good.calls.Load() != 1 {
			t.Errorf("%d and %d calls, want one each", dying.calls.Load(), good.calls.Load())
		}
	})
}

// An engine, or a proxy before it, that says 200 and means something else.
func TestASuccessThatIsNoJSON(t *testing.T) {
	for name, body := range map[string]string{
		"empty": "", "a page": "<html>busy</html>", "cut short": `{"choices":[{"message":{"content":"he`, "null": "null",
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlant(t, setup{}, newEngine(t, func(x *exchange) bool {
				x.say(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
				return true
			}))
			res, text := p.post(t, chatPath, chatBody)
			if res.StatusCode != 502 || res.Header.Get("X-Aloft-Reason") != "engine_bad_reply" || gjson.Get(text, "error.code").Str != "bad_gateway" {
				t.Errorf("%d %q %s, want 502 engine_bad_reply", res.StatusCode, res.Header.Get("X-Aloft-Reason"), text)
			}
			until(t, "outcome", func() bool { return len(p.outcomes()) == 1 })
			if o := p.outcomes()[0]; o.Status != 502 || o.Reason != "engine_bad_reply" {
				t.Errorf("outcome %d %q, want 502 engine_bad_reply", o.Status, o.Reason)
			}
		})
	}
}

// F4: the final frames go through byte for byte, whatever they join or omit.
func TestF4FinalFrames(t *testing.T) {
	joined := `data: {"id":"c1","choices":[{"index":0,"delta":{"content":"end"},"finish_reason":"length"}],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}}` + "\n\n"
	refusal := `data: {"id":"c1","choices":[{"index":0,"delta":{"refusal":"no"},"finish_reason":"content_filter"}]}` + "\n\n"
	toolCut := `data: {"id":"c1","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"t","type":"function","function":{"name":"f","arguments":"{"}}]},"finish_reason":null}]}` + "\n\n"
	for name, c := range map[string]struct{ sent, want string }{
		"content, finish and usage in one": {frameRole + joined + frameDone, frameRole + joined + frameDone},
		"apart":                            {frameRole + frameHel + frameFinish + frameUsage + frameDone, frameRole + frameHel + frameFinish + frameUsage + frameDone},
		"refusal":                          {refusal + frameDone, refusal + frameDone},
		"no [DONE] after the finish":       {frameHel + frameFinish, frameHel + frameFinish + frameDone},
		"a tool call without a finish":     {frameRole + toolCut + frameDone, ""},
	} {
		e := newEngine(t, func(x *exchange) bool { x.say(sseHead); x.chunk(c.sent); x.say("0\r\n\r\n"); return true })
		p := newPlant(t, setup{}, e)
		_, text := p.post(t, chatPath, usageBody)
		if c.want != "" && text != c.want {
			t.Errorf("%s:\n%q\nwant\n%q", name, text, c.want)
		}
		if c.want == "" && (strings.Contains(text, "[DONE]") || !strings.Contains(text, `data: {"error":`) || !strings.HasPrefix(text, c.sent[:len(frameRole+toolCut)])) {
			t.Errorf("%s: %q, want the frames, an error event and no [DONE]", name, text)
		}
	}
}

// F5: usage is always metered, and shown as the client asked.
func TestF5Usage(t *testing.T) {
	for name, c := range map[string]struct {
		body  string
		shown bool
	}{
		"not asked": {streamBody, false},
		"refused":   {strings.Replace(usageBody, "true}", "false}", 1), false},
		"asked":     {usageBody, true},
	} {
		e := newEngine(t, func(x *exchange) bool {
			x.say(sseHead)
			x.chunk(frameHel + frameFinish)
			for _, part := range []string{frameUsage[:20], frameUsage[20:90], frameUsage[90:]} { // over three writes
				x.chunk(part)
				time.Sleep(5 * time.Millisecond)
			}
			x.chunk(frameDone)
			x.say("0\r\n\r\n")
			return true
		})
		p := newPlant(t, setup{}, e)
		_, text := p.post(t, chatPath, c.body)
		want := frameHel + frameFinish + frameDone
		if c.shown {
			want = frameHel + frameFinish + frameUsage + frameDone
		}
		if text != want {
			t.Errorf("%s: %q, want %q", name, text, want)
		}
		if !gjson.Get(e.last(), "stream_options.include_usage").Bool() {
			t.Errorf("%s: the engine was not asked for usage: %s", name, e.last())
		}
		until(t, "outcome", func() bool { return len(p.outcomes()) == 1 })
		if o := p.outcomes()[0]; o.PromptTokens != 7 || o.CompletionTokens != 2 {
			t.Errorf("%s: metered %d and %d, want 7 and 2", name, o.PromptTokens, o.CompletionTokens)
		}
	}
}

// F6: a long prefill: a comment with one newline, never an event; and an early
// fault keeps its status.
func TestF6Heartbeat(t *testing.T) {
	e := newEngine(t, func(x *exchange) bool {
		time.Sleep(350 * time.Millisecond)
		x.say(sseHead)
		x.chunk(frameHel + frameFinish + frameDone)
		x.say("0\r\n\r\n")
		return true
	})
	p := newPlant(t, setup{gateway: gateway.Options{HeartbeatAfter: 100 * time.Millisecond}}, e)
	_, text := p.post(t, chatPath, streamBody)
	rest := text
	beats := 0
	for strings.HasPrefix(rest, ": ") {
		line, after, _ := strings.Cut(rest, "\n")
		if rest = after; strings.HasPrefix(rest, "\n") {
			t.Errorf("a blank line after %q", line)
		}
		beats++
	}
	if beats < 1 || rest != frameHel+frameFinish+frameDone {
		t.Errorf("%d heartbeats, then %q", beats, rest)
	}
	early := newPlant(t, setup{gateway: gateway.Options{HeartbeatAfter: time.Minute}},
		newEngine(t, func(x *exchange) bool {
			x.answer(400, `{"error":{"message":"no","type":"x","param":null,"code":null}}`)
			return true
		}))
	if res, text := early.post(t, chatPath, streamBody); res.StatusCode != 400 || gjson.Get(text, "error.message").Str != "no" {
		t.Errorf("early fault: %d %s", res.StatusCode, text)
	}
}

// F7: one event a chunk, as it comes.
func TestF7OneEventAChunk(t *testing.T) {
	const n = 100
	gate := make(chan struct{})
	e := newEngine(t, func(x *exchange) bool {
		x.say(sseHead)
		for i := range n {
			<-gate
			x.chunk(fmt.Sprintf("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"%d\"}}]}\n\n", i))
		}
		x.chunk(frameFinish + frameDone) // two events in one chunk are two chunks to the client
		x.say("0\r\n\r\n")
		return true
	})
	p := newPlant(t, setup{}, e)
	c := p.raw(t, chatPath, streamBody)
	defer c.Close()
	r := bufio.NewReader(c)
	gate <- struct{}{}
	res, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	for k, want := range map[string]string{"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no", "Content-Length": ""} {
		if got := res.Header.Get(k); got != want {
			t.Errorf("%s is %q, want %q", k, got, want)
		}
	}
	// The next event is made only after this one was read: nothing can be held
	// back or joined.
	body := bufio.NewReader(res.Body)
	for i := range n {
		line, err := body.ReadString('\n')
		if err != nil || !strings.Contains(line, fmt.Sprintf(`"%d"`, i)) {
			t.Fatalf("event %d: %q, %v", i, line, err)
		}
		if _, err := body.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		if i < n-1 {
			gate <- struct{}{}
		}
	}
	rest, _ := io.ReadAll(body)
	if string(rest) != frameFinish+frameDone {
		t.Errorf("rest %q", rest)
	}
}

// embedder answers each text with a vector of its own, counts a token for every
// four bytes as the edge's first guess does, and refuses a call with an overlong
// text, as engines do.
func embedder(x *exchange) bool {
	rows := gjson.GetBytes(x.body, "input").Array()
	var b strings.Builder
	b.WriteString(`{"object":"list","data":[`)
	tokens := 0
	for i, row := range rows {
		if len(row.String()) > 1000 {
			x.answer(400, `{"error":{"message":"This model's maximum context length is 8 tokens","type":"invalid_request_error","param":null,"code":null}}`)
			return true
		}
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"object":"embedding","index":%d,"embedding":%s}`, i, vector(row.String()))
		tokens += len(row.String())/4 + 1
	}
	fmt.Fprintf(&b, `],"model":"engine/m","usage":{"prompt_tokens":%d,"total_tokens":%d}}`, tokens, tokens)
	x.answer(200, b.String())
	return true
}

func vector(text string) string {
	sum := uint32(2166136261)
	for _, c := range []byte(text) {
		sum = (sum ^ uint32(c)) * 16777619
	}
	return fmt.Sprintf("[%d,0.5]", sum%100000)
}

// F8: 60 callers with 1 to 7 texts each, merged; one of them with a text that
// the engine refuses.
func TestF8RowsStayApart(t *testing.T) {
	e := newEngine(t, func(x *exchange) bool { time.Sleep(10 * time.Millisecond); return embedder(x) })
	p := newPlant(t, setup{embeds: true, slots: 1}, e)
	var all sync.WaitGroup
	for i := range 60 {
		all.Go(func() {
			var texts []string
			tokens := 0
			for k := range 1 + i%7 {
				texts = append(texts, fmt.Sprintf("caller %d text %d", i, k))
				tokens += len(texts[k])/4 + 1
			}
			if i == 30 {
				texts[0] = strings.Repeat("long ", 300)
			}
			body, _ := json.Marshal(map[string]any{"model": "m", "input": texts})
			res, text := p.post(t, embedPath, string(body))
			if i == 30 {
				if res.StatusCode != 400 {
					t.Errorf("overlong text: %d %s", res.StatusCode, text)
				}
				return
			}
			data := gjson.Get(text, "data").Array()
			if res.StatusCode != 200 || len(data) != len(texts) || gjson.Get(text, "usage.prompt_tokens").Int() != int64(tokens) {
				t.Errorf("caller %d: %d %s", i, res.StatusCode, text)
				return
			}
			for k, row := range data {
				if row.Get("index").Int() != int64(k) || row.Get("embedding").Raw != vector(texts[k]) {
					t.Errorf("caller %d row %d: %s, want %s", i, k, row.Raw, vector(texts[k]))
				}
			}
		})
	}
	all.Wait()
	if n := e.calls.Load(); n >= 60 {
		t.Errorf("%d engine calls for 60 callers: nothing was merged", n)
	}
}

// F9: both encodings, from an engine that knows one.
func TestF9Encodings(t *testing.T) {
	for name, play := range map[string]play{
		"engine of lists": embedder,
		"engine of base64": func(x *exchange) bool {
			var b []byte
			for _, f := range []float32{12345, 0.5} {
				b = binary.LittleEndian.AppendUint32(b, math.Float32bits(f))
			}
			x.answer(200, fmt.Sprintf(`{"data":[{"index":0,"embedding":%q}],"usage":{"prompt_tokens":1}}`, base64.StdEncoding.EncodeToString(b)))
			return true
		},
	} {
		p := newPlant(t, setup{embeds: true}, newEngine(t, play))
		for encoding, status := range map[string]int{"": 200, `,"encoding_format":"float"`: 200, `,"encoding_format":"base64"`: 200, `,"encoding_format":"hex"`: 400} {
			res, text := p.post(t, embedPath, `{"model":"m","input":"a"`+encoding+`}`)
			if res.StatusCode != status {
				t.Errorf("%s%s: %d %s", name, encoding, res.StatusCode, text)
				continue
			}
			v := gjson.Get(text, "data.0.embedding")
			switch {
			case status == 400 && gjson.Get(text, "error.param").Str != "encoding_format":
				t.Errorf("%s%s: %s", name, encoding, text)
			case status == 200 && strings.Contains(encoding, "base64"):
				if bits, err := base64.StdEncoding.DecodeString(v.Str); err != nil || len(bits) != 8 || math.Float32frombits(binary.LittleEndian.Uint32(bits[4:])) != 0.5 {
					t.Errorf("%s%s: %s", name, encoding, text)
				}
			case status == 200 && (!v.IsArray() || v.Get("1").Float() != 0.5):
				t.Errorf("%s%s: %s", name, encoding, text)
			}
		}
	}
}

// F10: the four legal shapes, and a 400 that names input for the rest.
func TestF10OddInputs(t *testing.T) {
	p := newPlant(t, setup{embeds: true}, newEngine(t, embedder))
	many := `["` + strings.Repeat(`a","`, 2048) + `a"]`
	for input, status := range map[string]int{
		`"a"`: 200, `["a","b"]`: 200, `[1,2]`: 200, `[[1,2],[3]]`: 200, `"\u0000"`: 200,
		`""`: 400, `[]`: 400, `["x",""]`: 400, `["a",1]`: 400, `[[]]`: 400, `{}`: 400, `null`: 400, `[1.5]`: 400, many: 400,
	} {
		res, text := p.post(t, embedPath, `{"model":"m","input":`+input+`}`)
		if res.StatusCode != status || status == 400 && gjson.Get(text, "error.param").Str != "input" {
			t.Errorf("%.40s: %d %.200s, want %d", input, res.StatusCode, text, status)
		}
	}
	for dims, status := range map[string]int{`2`: 200, `"8"`: 400, `0`: 400, `1`: 502} { // the engine has 2, whatever it is asked for
		if res, text := p.post(t, embedPath, `{"model":"m","input":"a","dimensions":`+dims+`}`); res.StatusCode != status {
			t.Errorf("dimensions %s: %d %s, want %d", dims, res.StatusCode, text, status)
		}
	}
}

// F13: the engine gets the client's bytes, except the value of model.
func TestF13RawRelay(t *testing.T) {
	e := newEngine(t, func(x *exchange) bool { x.answer(200, chatReply); return true })
	p := newPlant(t, setup{}, e)
	const body = "{ \"z\" : 9007199254740993 ,\n\t\"tools\":[{\"b\":1,\"a\":2}], \"guided\": {\"ünï\": \"\\u00e9 \U0001F680\"},  \"messages\":[{\"role\":\"user\",\"content\":\"hi\",\"vllm_x\":null}],\"temperature\":1e-1, \"model\":\"m\" } "
	if res, text := p.post(t, chatPath, body); res.StatusCode != 200 || text != chatReply {
		t.Fatalf("%d %s", res.StatusCode, text)
	}
	want := strings.Replace(body, `"model":"m"`, `"model":"engine/m"`, 1)
	if got := e.last(); got != want {
		t.Errorf("engine got\n%q\nwant\n%q", got, want)
	}
	if n := e.heads[0].ContentLength; n != int64(len(want)) {
		t.Errorf("Content-Length %d, want %d", n, len(want))
	}
}

// F14: 200 at once on four replicas of eight: 8/8/8/8, a bounded queue, 429
// beyond it; then 503 when there is nobody left.
func TestF14Overload(t *testing.T) {
	gate := make(chan struct{})
	var engines []*engine
	for range 4 {
		engines = append(engines, newEngine(t, func(x *exchange) bool { <-gate; x.answer(200, chatReply); return true }))
	}
	p := newPlant(t, setup{slots: 8, queue: 100}, engines...)
	var all sync.WaitGroup
	var ok, shed atomic.Int32
	for range 200 {
		all.Go(func() {
			res, text := p.post(t, chatPath, chatBody)
			switch res.StatusCode {
			case 200:
				ok.Add(1)
			case 429:
				shed.Add(1)
				if res.Header.Get("Retry-After") == "" || res.Header.Get("X-Aloft-Reason") != "queue_full" {
					t.Errorf("429 with %v", res.Header)
				}
			default:
				t.Errorf("%d %s", res.StatusCode, text)
			}
		})
	}
	until(t, "68 refusals", func() bool { return shed.Load() == 68 })
	for i, e := range engines {
		until(t, fmt.Sprintf("8 calls at replica %d", i), func() bool { return e.calls.Load() == 8 })
	}
	close(gate)
	all.Wait()
	if ok.Load() != 132 || shed.Load() != 68 {
		t.Errorf("%d answered, %d refused; want 132 and 68", ok.Load(), shed.Load())
	}
	p.batcher.SetReplicas(nil)
	gone := newPlant(t, setup{timeout: 100 * time.Millisecond})
	for _, body := range []string{chatBody, streamBody} {
		res, text := gone.post(t, chatPath, body)
		if res.StatusCode != 503 || res.Header.Get("Retry-After") == "" || res.Header.Get("X-Aloft-Reason") != "no_replica" {
			t.Errorf("without replicas: %d %s %v", res.StatusCode, text, res.Header)
		}
	}
}

// Drain: every stream ends whole or with an error event, and Serve returns nil.
func TestDrainWithStreams(t *testing.T) {
	gate := make(chan struct{})
	e := newEngine(t, func(x *exchange) bool {
		x.say(sseHead)
		x.chunk(frameHel)
		select {
		case <-gate:
		case <-time.After(patience):
		}
		x.chunk(frameFinish + frameDone)
		x.say("0\r\n\r\n")
		return true
	})
	p := newPlant(t, setup{slots: 300, gateway: gateway.Options{DrainGrace: patience}}, e)
	var all sync.WaitGroup
	var begun, whole atomic.Int32
	for range 200 {
		all.Go(func() {
			res, err := http.Post(p.url+chatPath, "application/json", strings.NewReader(streamBody))
			if err != nil {
				t.Error(err)
				return
			}
			defer res.Body.Close()
			begun.Add(1)
			if text, err := io.ReadAll(res.Body); err == nil && string(text) == frameHel+frameFinish+frameDone {
				whole.Add(1)
			}
		})
	}
	until(t, "200 streams", func() bool { return begun.Load() == 200 })
	p.stop()
	until(t, "/readyz 503", func() bool {
		res, err := http.Get(p.url + "/readyz")
		if err != nil {
			return false
		}
		defer res.Body.Close()
		return res.StatusCode == 503
	})
	close(gate)
	all.Wait()
	if whole.Load() != 200 {
		t.Errorf("%d of 200 streams came whole", whole.Load())
	}
}
