package gateway

import (
	"cmp"
	"strconv"
	"time"

	"aloft/backends"
	"aloft/backends/openai"

	"github.com/cespare/xxhash/v2"
)

// caller is on whose behalf a model is asked, and how.
type caller struct {
	id       string
	tenant   string
	grant    *Grant // nil: no keys are configured
	class    backends.Class
	row      bool // of a batch
	endpoint backends.Endpoint
	path     string // the client's
	kind     string // Content-Type of a form, else ""
	session  []byte // X-Session-Id; valid until the handler returns
	arrival  time.Time
	deadline time.Time // zero = none
	header   backends.Header
	trace    Trace
}

// ask is one question to a model on its way through, from a client or from a
// row of a batch: scanned, submitted, answered, observed once. It is one
// allocation with all that lives as long.
type ask struct {
	life
	s       *Server
	req     backends.Request
	counter backends.Counter // the model's
	prompt  prompt
	row     [1]int // the InputTokens of a request with one row
	seat    watched
	out     Outcome

	weight int64 // of its body, on Server.bodies

	grant *Grant
	hold  Reserving
	held  bool // Reserve has succeeded and Settle is due
}

// infer is the handler of the routes that a model answers.
func (s *Server) infer(x *exchange) {
	e := x.route.endpoint
	who := caller{id: x.id, tenant: x.tenant, grant: x.grant, class: x.class, endpoint: e, path: x.route.path, arrival: x.start}
	a, err := s.admit(x, &who)
	if err != nil {
		s.refuse(&who, err)
		s.fail(x, err)
		return
	}
	a.begin()
	if a.req.Stream {
		s.stream(x, a)
		return
	}
	s.unary(x, a)
}

// admit reads and checks a request up to its place within the key's limits.
func (s *Server) admit(x *exchange, who *caller) (admitted *ask, err error) {
	if err := s.wishes(x, who); err != nil {
		return nil, err
	}
	var body []byte
	defer func() {
		if admitted == nil {
			s.bodies.Add(-weight(body))
		}
	}()
	if who.endpoint.Form() {
		who.kind = string(x.c.Request.Header.ContentType())
		body, err = s.readForm(x.c)
	} else {
		body, err = s.readBody(x.c)
	}
	if err != nil {
		return nil, err
	}
	who.session = x.in.session
	who.trace = s.trace(&x.in)
	who.header = relayed(&x.in, &who.trace)
	a, err := s.prepare(who, body)
	if err == nil && s.draining.Load() {
		err = backends.ErrDraining
	}
	var quota Quota
	if err == nil {
		quota, err = a.reserve()
	}
	if err != nil {
		return nil, err
	}
	if a.held {
		setQuota(&x.c.Response.Header, &quota)
	}
	a.weight = weight(body)
	a.seat.fd = -1
	if fd, ok := descriptor(x.c.Conn()); ok {
		a.seat.fd = fd
	}
	return a, nil
}

// The client's headers that engines understand.
const (
	anthropicVersion = "Anthropic-Version"
	anthropicBeta    = "Anthropic-Beta"
)

// relayed is what the engine gets of the client's headers, and the trace.
func relayed(d *head, t *Trace) (out backends.Header) {
	if v := d.anthropicVersion; len(v) > 0 {
		out = append(out, backends.Field{Name: anthropicVersion, Value: string(v)})
	}
	if v := d.anthropicFeature; len(v) > 0 {
		out = append(out, backends.Field{Name: anthropicBeta, Value: string(v)})
	}
	if t.ID != [16]byte{} {
		out = append(out, backends.Field{Name: "Traceparent", Value: t.traceparent()})
		if t.State != "" {
			out = append(out, backends.Field{Name: "Tracestate", Value: t.State})
		}
	}
	return out
}

// wishes reads the class and the deadline that a client asks for. It may step
// down from its own class, not up.
func (s *Server) wishes(x *exchange, who *caller) error {
	if text := x.in.priority; len(text) > 0 {
		class := backends.Class(0)
		for ; class < backends.Classes && class.String() != string(text); class++ {
		}
		if class == backends.Classes {
			return invalid("x-aloft-priority", openai.CodeValue, "%q is not one of interactive, standard, offline", text)
		}
		who.class = max(who.class, class)
	}
	if text := x.in.deadline; len(text) > 0 {
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
func (s *Server) prepare(who *caller, body []byte) (*ask, error) {
	e := who.endpoint
	scan, err := scanBody(e, who.kind, body)
	if err != nil {
		return nil, err
	}
	m, err := s.modelOf(e, scan.Model, who.grant)
	if err != nil {
		return nil, err
	}
	if scan.Flex {
		who.class = max(who.class, backends.Standard)
	}
	a := &ask{s: s, counter: m.Counter, prompt: prompt{calibration: m.Calibration}, grant: who.grant, req: backends.Request{
		ID: who.id, Endpoint: e, Model: m.Name, Tenant: who.tenant, Class: who.class,
		Path: e.EnginePath(who.path), ContentType: who.kind, Body: body, Header: who.header,
		Stream: scan.Stream, WantUsage: scan.WantUsage,
		Inputs: scan.Inputs, MergeKey: scan.MergeKey, Vectors: scan.Vectors, MaxTokens: scan.MaxTokens,
		Arrival: who.arrival, Deadline: who.deadline,
	}, out: outcome(who)}
	a.place(&scan, &m, who)
	a.out.Model, a.out.Stream = m.Name, scan.Stream
	if err := a.count(&scan, &m); err != nil {
		return nil, err
	}
	a.hold = Reserving{Tokens: estimate(&a.req, &m, scan.N), Row: who.row}
	a.seat = watched{life: &a.life, row: who.row}
	return a, a.rewrite(&scan, &m)
}

func scanBody(e backends.Endpoint, kind string, body []byte) (openai.Scan, error) {
	if e.Form() {
		return openai.ScanForm(kind, body)
	}
	return openai.ScanRequest(e, body)
}

// modelOf finds the model that is asked for: by name, or, where OpenAI lets the
// name be left out, the only one that there is for the caller.
func (s *Server) modelOf(e backends.Endpoint, name string, g *Grant) (Model, error) {
	if name == "" {
		return s.onlyModel(e, g)
	}
	m, ok := s.deps.Catalog.Lookup(name)
	switch {
	case !ok:
		return m, unknownModel(name)
	case !mayUse(g, &m, name):
		return m, notAllowed(name)
	case !serves(&m, e):
		return m, invalid("model", "unsupported_endpoint", "the model %q does not serve %s", name, e.Path())
	}
	return m, nil
}

func serves(m *Model, e backends.Endpoint) bool {
	for _, has := range m.Endpoints {
		if has == e {
			return true
		}
	}
	return false
}

func (s *Server) onlyModel(e backends.Endpoint, g *Grant) (found Model, err error) {
	n := 0
	for _, m := range s.deps.Catalog.Models() {
		if m.Adapter == "" && serves(&m, e) && g.May(m.Name) {
			found = m
			n++
		}
	}
	if n != 1 {
		return found, invalid("model", openai.CodeMissing, "missing required parameter: 'model' (%d models serve %s)", n, e.Path())
	}
	return found, nil
}

// place says which replica would suit the request best.
func (a *ask) place(scan *openai.Scan, m *Model, who *caller) {
	p := &a.req.Place
	p.Adapter = m.Adapter
	// Elsewhere only with the key's leave; without keys the operator's is enough.
	p.Overflow = m.Overflow && (who.grant == nil || who.grant.Overflow)
	if named := len(who.session) > 0 || scan.CacheKey != ""; (m.BySession || m.Split) && named {
		// The same in every process, and another for every tenant.
		var d xxhash.Digest
		d.Reset()
		_, _ = d.WriteString(who.tenant)
		_, _ = d.Write([]byte{0})
		if len(who.session) > 0 {
			_, _ = d.Write(who.session)
		} else {
			_, _ = d.WriteString(scan.CacheKey)
		}
		key := max(1, d.Sum64())
		if m.BySession {
			p.Session = key
		}
		if m.Split {
			p.Split = key
		}
	} else if m.Split {
		p.Split = max(1, xxhash.Sum64String(who.id))
	}
	if m.ByPrefix {
		p.Prefix = openai.PrefixHashes(nil, scan.Text)
	}
}

// rewrite puts the engine's name of the model into the body and, since tokens
// are always metered, the wish for usage into streams.
func (a *ask) rewrite(scan *openai.Scan, m *Model) (err error) {
	req := &a.req
	name := cmp.Or(m.EngineModel, m.Name)
	usage := scan.Stream && !scan.WantUsage && (req.Endpoint == backends.Chat || req.Endpoint == backends.Completions)
	if name == scan.Model && !usage {
		return nil
	}
	dst := req.Body[len(req.Body):] // in the room behind it, if that suffices
	if len(req.Body) > wholeAlloc { // which a large one does not have; growing by and by would leave copies behind
		dst = make([]byte, 0, len(req.Body)+len(name)+len(`,"stream_options":{"include_usage":true}`))
	}
	switch {
	case req.Endpoint.Form():
		req.Body, err = openai.SetFormModel(dst, req.Body, req.ContentType, name)
	default:
		req.Body = scan.Rewrite(dst, req.Body, name, usage)
	}
	return err
}

func outcome(who *caller) Outcome {
	o := Outcome{
		ID: who.id, Tenant: who.tenant, Endpoint: who.endpoint, Path: who.path, Class: who.class,
		Arrival: who.arrival, Deadline: who.deadline, Trace: who.trace,
	}
	if who.grant != nil {
		o.Key = who.grant.ID
	}
	return o
}

// begin puts the ask under its time limits and the watcher's eye.
func (a *ask) begin() {
	a.limit, a.late = a.req.Arrival.Add(a.s.opt.RequestTimeout), errTooSlow
	// A stream's deadline is for its beginning, which the queue sees to.
	if d := a.req.Deadline; !d.IsZero() && d.Before(a.limit) && !a.req.Stream {
		a.limit, a.late = d, errTooLate
	}
	a.s.watch.add(&a.seat)
}

// end releases what begin took, settles, and tells the observer.
func (a *ask) end() {
	a.s.watch.remove(&a.seat)
	a.cancel(nil)
	if a.out.Status == 0 { // a panic is on its way up
		a.out.Status, a.out.Reason = 500, reasonInternal
	}
	now := time.Now()
	a.settle(now)
	a.s.bodies.Add(-a.weight)
	a.out.Total = now.Sub(a.req.Arrival)
	a.s.observe(&a.out)
}

// refuse observes a request that did not get as far as a queue.
func (s *Server) refuse(who *caller, err error) {
	f := faultOf(err)
	o := outcome(who)
	o.Status, o.Reason, o.Total = f.Status, f.reason, time.Since(who.arrival)
	s.observe(&o)
}
