package gateway

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"sync"
	"time"

	"aloft/backends"
	"aloft/backends/openai"
)

// scratch are buffers for whole replies, which are copied into fasthttp's own.
var scratch = sync.Pool{New: func() any { return new([]byte) }}

// scratchMost is the size from which a reply is not copied but handed over.
const scratchMost = 64 << 10

// unary answers a client with the engine's whole answer, or with a body that
// passes through.
func (s *Server) unary(x *exchange, a *ask) {
	buf := scratch.Get().(*[]byte)
	passed := false
	defer func() {
		if !passed {
			a.end()
		}
		if cap(*buf) <= scratchMost {
			scratch.Put(buf)
		}
	}()
	reply, err := s.deps.Submitter.Submit(&a.life, &a.req)
	if err == nil && passes(reply) && x.c.Request.Header.IsHTTP11() {
		passed = true
		s.pass(x, a, reply)
		return
	}
	w := a.whole((*buf)[:0], reply, err)
	w.send(s, x)
	if w.err == nil && len(w.body) <= scratchMost {
		*buf = w.body[:0] // send has copied it
	}
}

// passes reports whether nothing in a reply has to be looked at: the usage is
// in JSON, and faults are read.
func passes(r *backends.Reply) bool {
	return r.Status >= 200 && r.Status < 300 && r.ContentType != "" && !isJSON([]byte(r.ContentType))
}

// whole is an answer that is complete.
type whole struct {
	reply *backends.Reply // nil: there was none
	body  []byte
	err   error // what became fault; nil when an engine answered
	fault fault // where status is not 2xx
	usage openai.Usage
}

// whole takes what Submit returned to its end, into buf.
func (a *ask) whole(buf []byte, reply *backends.Reply, err error) whole {
	if err != nil {
		return a.failed(err)
	}
	defer reply.Body.Close()
	a.out.Timing = reply.Timing
	body, err := readAll(buf, reply.Body, a.s.opt.MaxReply)
	if err == nil && reply.Status >= 200 && reply.Status < 300 && !passes(reply) && !shapedAsJSON(body) {
		err = fmt.Errorf("a reply of %d bytes that is not JSON: %w", len(body), backends.ErrBadReply)
	}
	if err != nil {
		return a.failed(err)
	}
	if reply.Status < 200 || reply.Status > 299 {
		w := a.failed(engineFault(reply.Status, bytes.Clone(body)))
		w.reply, w.fault.after = reply, announced(reply.Header)
		return w
	}
	if reply.Dimensions != a.req.Dimensions { // else who knows has looked
		if err := a.honoured(body); err != nil {
			return a.failed(err)
		}
	}
	a.out.Status, a.out.Bytes = reply.Status, int64(len(body))
	a.out.FirstToken = time.Since(a.req.Arrival)
	usage, ok := openai.ScanUsage(body)
	a.learn(usage.Prompt)
	if !ok && reply.Timing.PromptTokens > 0 {
		usage = openai.Usage{Prompt: reply.Timing.PromptTokens, Total: reply.Timing.PromptTokens}
	}
	if !usage.Counted && a.req.Endpoint.Generates() {
		// The engine does not say. An estimate, as for streams: else answers of
		// such engines, and of such providers, would be free. A 0 is believed: a
		// completion with echo and max_tokens 0 has text that nobody generated.
		for _, text := range openai.AnswerText(a.req.Endpoint, body) {
			usage.Completion += a.measure(text)
		}
		usage.Total = cmp.Or(usage.Prompt, a.out.PromptTokens) + usage.Completion
	}
	a.meter(usage.Prompt, usage.Completion)
	return whole{reply: reply, body: body, usage: usage}
}

// honoured checks what engines like to ignore.
func (a *ask) honoured(body []byte) error {
	items, err := openai.Split(backends.Embeddings, body, len(a.req.Inputs))
	if err == nil {
		err = openai.CheckDimensions(items.Rows, a.req.Dimensions)
	}
	return err
}

// shapedAsJSON looks at the ends of an answer: an empty one, a proxy's page and
// what was cut short are no success. The middle is the engine's own.
func shapedAsJSON(body []byte) bool {
	body = bytes.TrimSpace(body)
	return len(body) > 1 && (body[0] == '{' && body[len(body)-1] == '}' || body[0] == '[' && body[len(body)-1] == ']')
}

// readAll appends at most limit bytes to buf.
func readAll(buf []byte, r io.Reader, limit int) ([]byte, error) {
	for {
		if len(buf) == cap(buf) {
			buf = append(buf, make([]byte, max(4096, len(buf)))...)[:len(buf)]
		}
		n, err := r.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		switch {
		case len(buf) > limit:
			return buf, brokeOff(fmt.Errorf("reply larger than %d bytes: %w", limit, backends.ErrBadReply))
		case err == io.EOF:
			return buf, nil
		case err != nil:
			return buf, brokeOff(err)
		}
	}
}

// failed is the answer to an error, and why the ask ended where that says more.
func (a *ask) failed(err error) whole {
	err = because(&a.life, err)
	f := faultOf(err)
	if f.Code == "context_length_exceeded" && f.Param == "" {
		f.Param = promptParam(a.req.Endpoint)
	}
	a.out.Status, a.out.Reason = f.Status, f.reason
	return whole{fault: f, err: err}
}

// send writes the answer to a client. The body is copied, or, where it is
// large, handed over.
func (w *whole) send(s *Server, x *exchange) {
	if w.reply != nil {
		setTiming(&x.c.Response.Header, &w.reply.Timing)
	}
	if w.err != nil {
		s.write(x, &w.fault, w.err)
		return
	}
	x.head(w.reply)
	if len(w.body) <= scratchMost {
		x.c.Response.SetBody(w.body)
	} else {
		x.c.Response.SetBodyRaw(w.body)
	}
}

// head writes the head of an engine's answer.
func (x *exchange) head(r *backends.Reply) {
	x.c.SetStatusCode(r.Status)
	kind := r.ContentType
	if kind == "" {
		kind = "application/json"
	}
	x.c.SetContentType(kind)
	for _, f := range r.Header {
		x.c.Response.Header.Set(f.Name, f.Value)
	}
}

// passing is a body on its way through: audio, an image, plain text.
type passing struct {
	*ask
	body io.ReadCloser
	err  error // what ended it; io.EOF = it is whole
}

// pass sends a reply as it comes: it may be larger than memory should hold.
func (s *Server) pass(x *exchange, a *ask, reply *backends.Reply) {
	a.out.Timing = reply.Timing
	a.out.FirstToken = time.Since(a.req.Arrival)
	setTiming(&x.c.Response.Header, &reply.Timing)
	x.head(reply)
	a.out.Status = reply.Status
	s.active.Add(1) // until Close
	x.c.SetBodyStream(&passing{ask: a, body: reply.Body}, -1)
}

// Read returns what has come. An error makes fasthttp close the connection
// without the final chunk, so that no client takes the body for whole.
func (p *passing) Read(b []byte) (n int, err error) {
	if p.err == nil {
		n, p.err = p.body.Read(b)
		p.out.Bytes += int64(n)
		if p.err == nil && p.out.Bytes > int64(p.s.opt.MaxReply) {
			p.err = fmt.Errorf("reply larger than %d bytes: %w", p.s.opt.MaxReply, backends.ErrBadReply)
		}
		if p.err != nil && p.err != io.EOF {
			p.failed(brokeOff(p.err))
		}
	}
	return n, p.err
}

// Close ends the engine's call if it still runs, and observes the ask.
func (p *passing) Close() error {
	if p.err == nil { // fasthttp stopped asking: the client is gone
		p.cancel(backends.ErrClientGone)
		p.failed(backends.ErrClientGone)
	}
	p.body.Close()
	p.end()
	p.s.active.Add(-1)
	return nil
}
