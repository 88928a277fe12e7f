package known

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"aloft/loadgen"
	"aloft/loadgen/arrivals"
)

const msec = time.Millisecond

// subject is one server of the self-test and the load that is put on it.
type subject struct {
	name   string
	server server
	wants  []loadgen.Outcome // of the scripts, in turn
	n      int
	rate   float64 // requests per second, at equal gaps
	// load is what the workload has besides name, URL and phases.
	load loadgen.Workload
	// retries are attempts after the first, and abandoned clients that leave as
	// they were planned to, over all requests; steps are what a request is of
	// besides its first, likewise.
	retries, abandoned, steps int
	// file is what the load reads: the recording of its arrivals, or its requests.
	file []byte
	// warm is how long the load runs before what counts, and drain how long what is
	// open at its end may take; 0 = 5 s, in which all is over.
	warm, drain time.Duration
	// pair says which records are of which request, where their order does not.
	pair func(s *subject, started time.Time) []asked
	// more are rows that this server alone has.
	more func(*subject, *loadgen.Report) []Row
	// nobody: there is no server.
	nobody bool
	// dials: every request opens a connection, of which the server does not know when
	// that began: times are held from the intended start alone.
	dials bool
	// counted: only outcomes and counts are checked, since it runs beside others.
	counted bool
}

// paced is what most subjects get: 100 requests over a second, so that p99 is
// the 99th of them.
func paced(name string, load loadgen.Workload, want loadgen.Outcome, scripts ...script) *subject {
	s := &subject{name: name, n: 100, rate: 100, load: load, server: server{scripts: scripts}}
	for range scripts {
		s.wants = append(s.wants, want)
	}
	return s
}

// The workloads that the servers are asked with.
var (
	unary      = loadgen.Workload{Kind: loadgen.Chat}
	embedding  = loadgen.Workload{Kind: loadgen.Embeddings}
	streaming  = loadgen.Workload{Kind: loadgen.Chat, Stream: true}
	completing = loadgen.Workload{Kind: loadgen.Completions, Stream: true}
	responding = loadgen.Workload{Kind: loadgen.Responses, Stream: true}
)

// held is a workload with targets.
func held(w loadgen.Workload, g loadgen.Goal) loadgen.Workload {
	w.Goal = g
	return w
}

// end is how most streams end: at d, in one write.
func end(d time.Duration, tokens int) part { return at(d, finish, usage(tokens), done) }

// timed are the servers whose every time is checked, one after the other.
func timed() []*subject {
	// No figure here or below has two groups of values that meet at a quantile: it
	// would be that of either.
	quarter := paced("every fourth answer late", held(unary, loadgen.Goal{Target: 70 * msec}), loadgen.OK, chat(20*msec), chat(20*msec), chat(20*msec), chat(120*msec))
	quarter.wants[3] = loadgen.Late
	first, rest := cut(word)
	split1, split2 := cut(done)
	return slices.Concat(warmed(
		paced("fixed delay of 50 ms", unary, loadgen.OK, chat(50*msec)),
		paced("fixed delay, embeddings", embedding, loadgen.OK, plain(30*msec, "200 OK", "", vectorReply)),
		quarter,
		paced("first token after 300 ms", held(streaming, loadgen.Goal{TTFTTarget: 200 * msec}), loadgen.Late, stream(5,
			at(0, role), at(300*msec, word), at(310*msec, word), at(320*msec, word), at(330*msec, word), at(340*msec, word), end(340*msec, 5))),
		paced("slow tokens", held(streaming, loadgen.Goal{TPOTTarget: 30 * msec}), loadgen.Late, stream(3,
			at(10*msec, word), at(60*msec, word), at(110*msec, word), end(110*msec, 3))),
		paced("chunks of 4 tokens, usage", streaming, loadgen.OK, stream(12,
			at(40*msec, word), at(80*msec, word), at(120*msec, word), end(130*msec, 12))),
		paced("role only, then a wait", streaming, loadgen.OK, stream(2,
			at(0, role), at(100*msec, word), at(120*msec, word), end(120*msec, 2))),
		paced("reasoning before content", streaming, loadgen.OK, stream(6,
			at(10*msec, role), at(50*msec, thought), at(70*msec, thought), at(90*msec, thought), at(150*msec, word), at(170*msec, word), end(170*msec, 6))),
		paced("tool call with arguments", streaming, loadgen.OK, stream(3,
			at(10*msec, role), at(60*msec, call), at(100*msec, args), at(140*msec, args), end(160*msec, 3))),
		paced("comments and CRLF", streaming, loadgen.OK, stream(3,
			at(10*msec, crlf(comment), comment), at(50*msec, crlf(role)), at(60*msec, crlf(comment)), at(90*msec, crlf(word)), at(120*msec, comment, crlf(word)),
			at(150*msec, crlf(word), crlf(comment)), at(170*msec, crlf(finish), crlf(usage(3)), crlf(done)))),
		paced("events split over writes", streaming, loadgen.OK, stream(4,
			at(0, role, first), at(60*msec, rest), at(80*msec, word, first), at(120*msec, rest, first), at(160*msec, rest, finish, usage(4), split1), at(180*msec, split2))),
		paced("several events in one write", streaming, loadgen.OK, stream(8,
			at(50*msec, role, word, word), at(90*msec, word, word, word, word), at(130*msec, word, word, finish, usage(8), done))),
		asking(`{"n":2,"messages":[{"role":"user","content":"a word"}]}`, paced("two choices", streaming, loadgen.OK, stream(6,
			at(20*msec, role), at(60*msec, word1), at(80*msec, word, word1), at(100*msec, word, word1), at(120*msec, finish), at(150*msec, word1, finish1, usage(6), done)))),
		paced("no usage", streaming, loadgen.OK, stream(0,
			at(0, role), at(50*msec, word), at(70*msec, word), at(90*msec, word, word), at(100*msec, finish, done))),
		paced("completions, streamed", completing, loadgen.OK, stream(3,
			at(30*msec, text), at(60*msec, text), at(90*msec, text), end(100*msec, 3))),
		paced("responses, streamed", responding, loadgen.OK, stream(4,
			at(10*msec, created), at(40*msec, thinking), at(70*msec, thinking), at(110*msec, delta), at(140*msec, delta), at(150*msec, completed))),
		// TPOT alone does not see it: 500 ms for 10 tokens are as good as a token every 50.
		paced("tokens held back", held(streaming, loadgen.Goal{TPOTTarget: 60 * msec, Smooth: 100 * msec}), loadgen.Late, stream(11,
			at(20*msec, word), at(40*msec, word), at(60*msec, word), at(520*msec, word, word, word, word, word, word, word, word), end(530*msec, 11))),
		slowReader(),
		paced("rerank", loadgen.Workload{Kind: loadgen.Rerank, Content: loadgen.Content{Inputs: 3}}, loadgen.OK, plain(40*msec, "200 OK", "", rerankReply)),
		paced("jobs", loadgen.Workload{Kind: loadgen.Job, Content: loadgen.Content{Template: "known"}}, loadgen.OK, without(plain(30*msec, "201 Created", "", jobReply))),
	), silent(), planned(), clients())
}

// warmed has each server asked for as long as an answer takes before what counts
// begins: the connections are open then. What opening one takes is the
// generator's for the most part, and no server's clock sees when that began.
func warmed(all ...*subject) []*subject {
	for _, s := range all {
		var longest time.Duration
		for _, a := range s.server.scripts {
			longest = max(longest, a.parts[len(a.parts)-1].at)
		}
		s.warm = (longest + 5*s.server.slow).Truncate(100*msec) + 200*msec
		for s.warmRequests()%len(s.server.scripts) != 0 { // else they would not begin with the first
			s.warm += 100 * msec
		}
	}
	return all
}

// asking sends one body in each request.
func asking(body string, s *subject) *subject {
	s.load.Requests, s.file = s.name, []byte(body)
	return s
}

// warmRequests is how many come before those that count.
func (s *subject) warmRequests() int {
	return int(math.Round(s.rate * s.warm.Seconds()))
}

// slowReader takes 64 KiB every 20 ms.
func slowReader() *subject {
	big := unary
	big.Texts = []string{strings.Repeat("a word after a word ", 256<<10/20)}
	s := paced("slow reader of 256 KiB requests", big, loadgen.OK, chat(20*msec))
	s.n, s.rate, s.server.slow = 20, 20, 20*msec
	return s
}

// silent are servers that clients wait for in vain.
func silent() []*subject {
	wait := unary
	wait.Timeout = 300 * msec
	midway := streaming
	midway.Timeout = 300 * msec
	all := []*subject{
		paced("no answer", wait, loadgen.Timeout, script{end: hang}),
		paced("falls silent in a stream", midway, loadgen.Timeout, stream(0, at(0, role), at(20*msec, word)).ends(hang)),
	}
	for _, s := range all {
		s.dials = true // what is given up takes its connection along
	}
	return all
}

// Stalled servers freeze as a whole for two seconds. With connections to spare
// what is due meanwhile is sent, and waits in the server; with one it waits in
// the generator, where a clock that starts at the send does not see it.
const (
	stallFor   = 2 * time.Second
	stallAfter = 500 * msec

	stalled = "stall of 2 s, connections to spare"
	queued  = "stall of 2 s, one connection"
)

func stalls() []*subject {
	load := held(unary, loadgen.Goal{Target: time.Second})
	spare := &subject{name: stalled, n: 500, rate: 100, load: load, server: server{scripts: []script{chat(0)}, stall: stallFor, stallAfter: stallAfter}}
	load.MaxInFlight = 1
	one := &subject{name: queued, n: 500, rate: 100, load: load, server: server{scripts: []script{chat(0)}, stall: stallFor, stallAfter: stallAfter}}
	return []*subject{spare, one}
}

// faults are the servers of which only what became of the requests is checked.
// They run side by side.
func faults() []*subject {
	const closing = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 999\r\n\r\n{"
	open := []part{at(0, role), at(10*msec, word)}
	with := func(more ...part) []part { return append(append([]part{}, open...), more...) }
	out := []*subject{
		paced("complete", streaming, loadgen.OK, stream(2, with(at(20*msec, word), end(30*msec, 2))...)),
		paced("429 with Retry-After", streaming, loadgen.Shed, plain(0, "429 Too Many Requests", "Retry-After: 1\r\n", `{"error":{"message":"slow down"}}`)),
		paced("429 without", unary, loadgen.Shed, plain(0, "429 Too Many Requests", "", `{"error":{"message":"slow down"}}`)),
		paced("503", embedding, loadgen.Shed, plain(0, "503 Service Unavailable", "", `{"error":{"message":"full"}}`)),
		paced("503 with Retry-After", unary, loadgen.Shed, plain(0, "503 Service Unavailable", "Retry-After: 2\r\n", `{}`)),
		paced("500", streaming, loadgen.HTTPError, plain(0, "500 Internal Server Error", "", `{"error":{"message":"no"}}`)),
		paced("401", unary, loadgen.HTTPError, plain(0, "401 Unauthorized", "", `{"error":{"message":"who?"}}`)),
		paced("error event in a stream", streaming, loadgen.StreamError, stream(0, with(at(20*msec, failure, done))...)),
		paced("named error event", streaming, loadgen.StreamError, stream(0, with(at(20*msec, named))...)),
		paced("no [DONE]", streaming, loadgen.Truncated, stream(0, with(at(20*msec, finish))...)),
		paced("no finish_reason", streaming, loadgen.Truncated, stream(0, with(at(20*msec, done))...)),
		paced("one of two choices unfinished", streaming, loadgen.Truncated, stream(0, with(at(20*msec, word1, finish, done))...)),
		paced("two choices where one was asked for", streaming, loadgen.Protocol, stream(0, with(at(20*msec, word1, finish, finish1, done))...)),
		paced("stream cut off", streaming, loadgen.Truncated, stream(0, open...).ends(shut)),
		paced("stream reset", streaming, loadgen.Truncated, stream(0, open...).ends(abort)),
		paced("answer cut off", unary, loadgen.Truncated, raw(closing, shut)),
		paced("answer without finish_reason", unary, loadgen.Truncated, plain(0, "200 OK", "", strings.Replace(chatReply, `"stop"`, "null", 1))),
		paced("reset before an answer", streaming, loadgen.Connect, script{end: abort}),
		paced("closed before an answer", unary, loadgen.Connect, script{end: shut}),
		paced("not HTTP", unary, loadgen.Protocol, raw("220 mail ready\r\n\r\n", shut)),
		paced("wrong content type", streaming, loadgen.Protocol, chat(0)),
		paced("answer is no JSON", unary, loadgen.Protocol, plain(0, "200 OK", "", "<html>")),
		paced("event is no JSON", streaming, loadgen.Protocol, stream(0, with(at(20*msec, broken))...)),
		paced("a vector too few", embedding, loadgen.Protocol, plain(0, "200 OK", "", `{"data":[]}`)),
		paced("nobody listens", unary, loadgen.Connect, script{}),
	}
	out[len(out)-1].nobody = true
	out = slices.Concat(out, submissions(), transports(), habits())
	for _, s := range out {
		s.n, s.rate, s.counted = faulty, 20, true
	}
	return append(out, talks()...)
}

// submissions are answers to rerank, batches and jobs that break a promise.
func submissions() []*subject {
	const rerank, batch, job = loadgen.Rerank, loadgen.Batch, loadgen.Job
	of := func(name string, kind loadgen.Kind, body string) *subject {
		w := loadgen.Workload{Kind: kind}
		if kind == job {
			w.Template = "known"
		}
		return paced(name, w, loadgen.Protocol, plain(0, "200 OK", "", body))
	}
	refused := of("upload refused", batch, "")
	refused.wants[0], refused.server.scripts[0] = loadgen.Shed, plain(0, "429 Too Many Requests", "", `{}`)
	failed := of("batch that failed at once", batch, "")
	failed.server.choose = batchOf(0, plain(0, "200 OK", "", `{"id":"b1","object":"batch","status":"failed"}`))
	failed.steps = faulty
	return []*subject{
		of("rerank without a score", rerank, `{"results":[{"index":0}]}`),
		of("rerank of a document that was not sent", rerank, `{"results":[{"index":1,"relevance_score":0.5}]}`),
		refused, failed,
		of("job without an id", job, `{"state":"queued"}`),
		of("job that failed at once", job, `{"id":"j1","state":"failed"}`),
	}
}

// faulty is how many requests a server gets of which only the outcomes count.
const faulty = 10

// transports are whole answers in every form that HTTP allows.
func transports() []*subject {
	const chunkedHead = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
	whole := chat(0).parts[0].text
	answers := func(name string, s script) *subject {
		s.tokens = chatTokens
		return paced(name, unary, loadgen.OK, s)
	}
	return []*subject{
		answers("answer in chunks", raw(chunkedHead+"5;a=b\r\n"+chatReply[:5]+"\r\n"+fmt.Sprintf("%X\r\n%s\r\n0\r\nX-Trailer: 1\r\n\r\n", len(chatReply)-5, chatReply[5:]), keep)),
		answers("answer that ends with the connection", raw("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"+chatReply, shut)),
		answers("interim answer first", raw("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"+whole, keep)),
		answers("connection closed after each answer", raw(strings.Replace(whole, "\r\n", "\r\nConnection: close\r\n", 1), shut)),
		answers("the same without a word", raw(whole, shut)),
	}
}

// workload is the load on a server at an address.
func (s *subject) workload(addr string) loadgen.Workload {
	w := s.load
	w.Name, w.URL = s.name, "http://"+addr
	if w.Kind != loadgen.Job { // which has none
		w.Model = "known"
	}
	p := arrivals.Process{Kind: arrivals.Constant, Rate: s.rate}
	if s.file != nil && w.Requests == "" {
		p = arrivals.Process{Kind: arrivals.Replay, Trace: arrivals.Trace{File: s.name, Format: arrivals.RecordFormat}}
	}
	w.Phases = []arrivals.Phase{{Name: "steady", Duration: s.span(), Process: p}}
	return w
}

// want is the outcome of request i.
func (s *subject) want(i int) loadgen.Outcome {
	if len(s.wants) == 0 {
		return loadgen.OK
	}
	return s.wants[i%len(s.wants)]
}

// span is how long the load lasts.
func (s *subject) span() time.Duration {
	return time.Duration(float64(s.n) / s.rate * float64(time.Second))
}

// due is when request i is meant to start, from the start of the run.
func (s *subject) due(i int) time.Duration {
	return time.Duration(float64(i) * float64(time.Second) / s.rate)
}
