package gateway

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"time"

	"aloft/backends"
	"aloft/backends/openai"
)

// caller is on whose behalf a model is asked.
type caller struct {
	id       string
	tenant   string
	grant    *Grant // nil: no keys are configured
	class    backends.Class
	row      bool // of a batch
	arrival  time.Time
	deadline time.Time // zero = none
}

// ask is one question to a model on its way through, from a client or from a
// row of a batch: scanned, submitted, answered, observed once.
type ask struct {
	s     *Server
	req   *backends.Request
	model Model
	text  int // bytes of the prompt's text, for counters that learn

	ctx    context.Context
	cancel context.CancelCauseFunc
	stop   context.CancelFunc // of the timeout above ctx
	seat   *watched           // nil for rows
	out    Outcome

	grant *Grant
	hold  Reserving
	held  bool // Reserve has succeeded and Settle is due
	quota Quota
}

// infer is the handler of the routes that a model answers.
func (s *Server) infer(x *exchange, e backends.Endpoint) {
	who := caller{id: x.id, tenant: x.tenant, grant: x.grant, class: x.class, arrival: x.start}
	if err := s.wishes(x, &who); err != nil {
		s.fail(x, err)
		return
	}
	body, err := s.readBody(x.c)
	if err != nil {
		s.fail(x, err)
		return
	}
	a, err := s.prepare(e, who, body)
	if err == nil && s.draining.Load() {
		err = backends.ErrDraining
	}
	if err == nil {
		err = a.reserve()
	}
	if err != nil {
		s.refuse(e, who, err)
		s.fail(x, err)
		return
	}
	if a.held {
		setQuota(&x.c.Response.Header, &a.quota)
	}
	a.begin(s.base, x.c.Conn())
	if a.req.Stream {
		s.stream(x, a)
		return
	}
	defer a.end()
	whole := a.run()
	whole.send(s, x)
}

// wishes reads the class and the deadline that a client asks for. It may step
// down from its own class, not up.
func (s *Server) wishes(x *exchange, who *caller) error {
	h := &x.c.Request.Header
	if text := h.Peek("X-Aloft-Priority"); len(text) > 0 {
		class := backends.Class(0)
		for ; class < backends.Classes && class.String() != string(text); class++ {
		}
		if class == backends.Classes {
			return invalid("x-aloft-priority", openai.CodeValue, "%q is not one of interactive, standard, offline", text)
		}
		who.class = max(who.class, class)
	}
	if text := h.Peek("X-Aloft-Deadline-Ms"); len(text) > 0 {
		ms, err := strconv.ParseInt(string(text), 10, 64)
		if err != nil || ms < 1 {
			return invalid("x-aloft-deadline-ms", openai.CodeValue, "%q is not a positive number of milliseconds", text)
		}
		wait := min(time.Duration(min(ms, 1<<40))*time.Millisecond, s.opt.RequestTimeout)
		who.deadline = who.arrival.Add(wait)
	}
	return nil
}

// prepare scans a body and makes the request for the batcher out of it. The
// request owns body from here on.
func (s *Server) prepare(e backends.Endpoint, who caller, body []byte) (*ask, error) {
	scan, err := openai.ScanRequest(e, body)
	if err != nil {
		return nil, err
	}
	m, ok := s.deps.Catalog.Lookup(scan.Model)
	if !ok {
		return nil, unknownModel(scan.Model)
	}
	if !mayUse(who.grant, &m, scan.Model) {
		return nil, notAllowed(scan.Model)
	}
	if !slices.Contains(m.Endpoints, e) {
		return nil, invalid("model", "unsupported_endpoint", "the model %q does not serve %s", scan.Model, e.Path())
	}
	req := &backends.Request{
		ID: who.id, Endpoint: e, Model: m.Name, Tenant: who.tenant, Class: who.class, Body: body,
		Stream: scan.Stream, WantUsage: scan.WantUsage,
		Inputs: scan.Inputs, MergeKey: scan.MergeKey, Base64: scan.Base64, MaxTokens: scan.MaxTokens,
		Arrival: who.arrival, Deadline: who.deadline,
	}
	a := &ask{s: s, req: req, model: m, grant: who.grant}
	a.out = Outcome{
		ID: who.id, Model: m.Name, Tenant: who.tenant, Endpoint: e, Class: who.class,
		Stream: scan.Stream, Arrival: who.arrival, Deadline: who.deadline,
	}
	if who.grant != nil {
		a.out.Key = who.grant.ID
	}
	if err := a.count(&scan); err != nil {
		return nil, err
	}
	a.hold = Reserving{Tokens: estimate(req, &m, 1), Row: who.row}
	name := m.EngineModel
	if name == "" {
		name = m.Name
	}
	if name != scan.Model {
		if req.Body, err = openai.SetModel(make([]byte, 0, len(body)+len(name)), body, name); err != nil {
			return nil, err
		}
	}
	if scan.Stream && !scan.WantUsage {
		// Tokens are always metered, so usage is always asked for.
		req.Body, err = openai.ForceUsage(make([]byte, 0, len(req.Body)+64), req.Body)
	}
	return a, err
}

// count measures the prompt once, for queue, batch and bill.
func (a *ask) count(scan *openai.Scan) error {
	req := a.req
	if len(scan.Inputs) > 0 {
		req.InputTokens = make([]int, len(scan.Inputs))
		for i, row := range scan.Inputs {
			req.InputTokens[i] = a.bounded(a.tokens(row))
			req.Tokens += req.InputTokens[i]
		}
	} else {
		for _, text := range scan.Text {
			req.Tokens += a.tokens(text)
		}
		req.Tokens = a.bounded(req.Tokens)
	}
	a.out.PromptTokens = req.Tokens
	longest := req.Tokens
	if len(req.InputTokens) > 0 {
		longest = slices.Max(req.InputTokens)
	}
	if a.model.Context <= 0 || longest <= a.model.Context {
		return nil
	}
	return &openai.Error{
		Status: 400, Type: "invalid_request_error", Code: "context_length_exceeded", Param: promptParam(req.Endpoint),
		Message: fmt.Sprintf("the prompt has %d tokens, but the context length of model %q is %d", longest, a.model.Name, a.model.Context),
	}
}

// bounded keeps a guess within the context: the engine refuses or cuts what is
// longer. Unbounded, one text of megabytes would count as minutes of demand and
// call every lent slice back, only to be refused.
func (a *ask) bounded(tokens int) int {
	if _, guessed := a.model.Counter.(learner); guessed && a.model.Context > 0 {
		return min(tokens, a.model.Context)
	}
	return tokens
}

// learner is a Counter that estimates and learns (backends.Ratio).
type learner interface{ Observe(bytes, tokens int) }

// tokens counts a raw JSON value: a string, or an array of token ids.
func (a *ask) tokens(row []byte) int {
	if len(row) == 0 || row[0] != '"' {
		return openai.CountIDs(row)
	}
	text := unquote(row)
	a.text += len(text)
	if a.model.Counter == nil {
		return len(text)/4 + 1
	}
	return a.model.Counter.Count(text)
}

func promptParam(e backends.Endpoint) string {
	switch e {
	case backends.Chat:
		return "messages"
	case backends.Embeddings:
		return "input"
	}
	return "prompt"
}

func notAllowed(name string) error {
	return &openai.Error{
		Status: 403, Type: "permission_error", Code: "model_not_allowed", Param: "model",
		Message: fmt.Sprintf("this key may not use the model %s", printable([]byte(name))),
	}
}

func unknownModel(name string) error {
	return &openai.Error{
		Status: 404, Type: "invalid_request_error", Code: "model_not_found", Param: "model",
		Message: fmt.Sprintf("the model %s does not exist", printable([]byte(name))),
	}
}

// begin gives the ask its context, which ends with the time limits, with parent
// and when the client at the other end of conn (nil: there is none) leaves.
func (a *ask) begin(parent context.Context, conn net.Conn) {
	limit, why := a.req.Arrival.Add(a.s.opt.RequestTimeout), error(errTooSlow)
	// A stream's deadline is for its beginning, which the queue sees to.
	if d := a.req.Deadline; !d.IsZero() && d.Before(limit) && !a.req.Stream {
		limit, why = d, errTooLate
	}
	timed, stop := context.WithDeadlineCause(parent, limit, why)
	a.stop = stop
	a.ctx, a.cancel = context.WithCancelCause(timed)
	if conn != nil {
		a.seat = a.s.watch.add(conn, func() { a.cancel(backends.ErrClientGone) })
	}
}

// run submits a unary ask and reads the whole answer.
func (a *ask) run() whole {
	reply, err := a.s.deps.Submitter.Submit(a.ctx, a.req)
	if err != nil {
		return a.failed(err)
	}
	return a.read(reply)
}

// whole is an answer that is complete.
type whole struct {
	status      int
	contentType string
	body        []byte
	err         error // what became fault; nil when an engine answered
	fault       fault // where status is not 2xx
	timing      string
	usage       openai.Usage
}

// read takes a reply that is not a stream to its end.
func (a *ask) read(reply *backends.Reply) whole {
	defer reply.Body.Close()
	a.out.Timing = reply.Timing
	body, err := readAll(reply.Body, a.s.opt.MaxReply)
	if err != nil {
		return a.failed(err)
	}
	if reply.Status < 200 || reply.Status > 299 {
		return a.failed(engineFault(reply.Status, body))
	}
	a.out.Status = reply.Status
	a.out.FirstToken = time.Since(a.req.Arrival)
	usage, ok := openai.ScanUsage(body)
	if !ok && reply.Timing.PromptTokens > 0 {
		usage = openai.Usage{Prompt: reply.Timing.PromptTokens, Total: reply.Timing.PromptTokens}
	}
	a.meter(usage.Prompt, usage.Completion)
	return whole{
		status: reply.Status, contentType: reply.ContentType, body: body, usage: usage,
		timing: serverTiming(reply.Timing),
	}
}

// readAll reads at most limit bytes.
func readAll(r io.Reader, limit int) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(r, int64(limit)+1))
	if err == nil && len(body) > limit {
		err = fmt.Errorf("reply larger than %d bytes: %w", limit, backends.ErrBadReply)
	}
	return body, brokeOff(err)
}

// failed is the answer to an error, and why the ask ended where that says more.
func (a *ask) failed(err error) whole {
	err = because(a.ctx, err)
	f := faultOf(err)
	if f.Code == "context_length_exceeded" && f.Param == "" {
		f.Param = promptParam(a.req.Endpoint)
	}
	a.out.Status, a.out.Reason = f.Status, f.reason
	return whole{status: f.Status, fault: f, err: err}
}

// send writes the answer to a client.
func (w *whole) send(s *Server, x *exchange) {
	if w.timing != "" {
		x.c.Response.Header.Set("Server-Timing", w.timing)
	}
	if w.err != nil {
		s.write(x, w.fault, w.err)
		return
	}
	x.c.SetStatusCode(w.status)
	x.c.SetContentType(w.contentType)
	if w.contentType == "" {
		x.c.SetContentType("application/json")
	}
	x.c.Response.SetBodyRaw(w.body)
}

// meter notes the engine's token counts and lets the model's counter learn.
func (a *ask) meter(prompt, completion int) {
	if prompt > 0 {
		a.out.PromptTokens = prompt
		if l, ok := a.model.Counter.(learner); ok {
			l.Observe(a.text, prompt)
		}
	}
	if completion > 0 {
		a.out.CompletionTokens = completion
	}
}

// end releases what begin took and tells the observer.
func (a *ask) end() {
	if a.seat != nil {
		a.s.watch.remove(a.seat)
	}
	a.cancel(nil)
	a.stop()
	if a.out.Status == 0 { // a panic is on its way up
		a.out.Status, a.out.Reason = 500, reasonInternal
	}
	a.settle()
	a.out.Total = time.Since(a.req.Arrival)
	a.s.observe(a.out)
}

// refuse observes a request that did not get as far as a queue.
func (s *Server) refuse(e backends.Endpoint, who caller, err error) {
	f := faultOf(err)
	key := ""
	if who.grant != nil {
		key = who.grant.ID
	}
	s.observe(Outcome{
		ID: who.id, Tenant: who.tenant, Key: key, Endpoint: e, Class: who.class, Status: f.Status, Reason: f.reason,
		Arrival: who.arrival, Deadline: who.deadline, Total: time.Since(who.arrival),
	})
}

func (s *Server) observe(o Outcome) {
	level := slog.LevelDebug
	if o.Status >= 500 {
		level = slog.LevelWarn
	}
	if s.log.Enabled(s.base, level) {
		s.log.LogAttrs(s.base, level, "request ended",
			slog.String("id", o.ID), slog.String("model", o.Model), slog.String("endpoint", string(o.Endpoint)),
			slog.String("class", o.Class.String()), slog.Int("status", o.Status), slog.String("reason", o.Reason),
			slog.Int("prompt_tokens", o.PromptTokens), slog.Int("completion_tokens", o.CompletionTokens),
			slog.Duration("queue", o.Timing.Queue), slog.Duration("engine", o.Timing.Engine), slog.Duration("total", o.Total),
			slog.String("replica", o.Timing.Replica))
	}
	if s.deps.Observer != nil {
		s.deps.Observer.Observe(o)
	}
}

// serverTiming is the Server-Timing header: where the time went, in ms.
func serverTiming(t backends.Timing) string {
	b := make([]byte, 0, 64)
	part := func(name string, d time.Duration) {
		b = append(b, name...)
		b = append(b, ";dur="...)
		b = strconv.AppendFloat(b, float64(d.Microseconds())/1000, 'f', -1, 64)
	}
	part("queue", t.Queue)
	part(", batch", t.Batch)
	part(", engine", t.Engine)
	return string(b)
}
