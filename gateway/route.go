package gateway

import (
	"bytes"
	"fmt"
	"net/url"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"aloft/backends"
	"aloft/backends/openai"

	"github.com/valyala/fasthttp"
)

// exchange is one HTTP request. It lives no longer than its handler.
type exchange struct {
	c      *fasthttp.RequestCtx
	in     head
	id     string // x-request-id; owned
	route  *route // nil: there is none
	path   string // the variable part of the route, decoded; owned
	grant  *Grant // nil: no keys are configured, or the route is open
	tenant string
	class  backends.Class // the best that this caller may ask for
	start  time.Time
	asked  bool   // of a model: its Outcome is observed
	reason string // of a fault
}

type handler func(x *exchange)

// route is a path with what each method does there. A path that ends in a slash
// takes the rest of the URL as an id, up to suffix.
type route struct {
	path, suffix string
	slashes      bool // the id may contain slashes
	role         role
	endpoint     backends.Endpoint // of a model; "" = none
	methods      map[string]handler
}

type router struct {
	exact  map[string]*route
	prefix []*route // in order: a route with a suffix before the one without
}

func (s *Server) newRouter() router {
	r := router{exact: make(map[string]*route)}
	get := func(h handler) map[string]handler { return map[string]handler{"GET": h, "HEAD": h} }
	all := []*route{
		{path: "/v1/models", methods: get(s.listModels)},
		{path: "/v1/models/", slashes: true, methods: get(s.getModel)},
		{path: "/healthz", role: open, methods: get(s.healthz)},
		{path: "/readyz", role: open, methods: get(s.readyz)},
	}
	for _, e := range backends.Endpoints() {
		for _, path := range e.Paths() {
			all = append(all, &route{path: path, endpoint: e, methods: map[string]handler{"POST": s.infer}})
		}
	}
	all = append(all, s.otherRoutes(get)...)
	all = append(all, s.fineTuneRoutes(get)...)
	all = append(all, s.adminRoutes(get)...)
	all = append(all, s.variantRoutes(get)...)
	for _, rt := range all {
		if strings.HasSuffix(rt.path, "/") {
			r.prefix = append(r.prefix, rt)
		} else {
			r.exact[rt.path] = rt
		}
	}
	return r
}

// otherRoutes are the routes of what may be absent.
func (s *Server) otherRoutes(get func(handler) map[string]handler) (all []*route) {
	d := &s.deps
	add := func(there bool, more ...*route) {
		if there {
			all = append(all, more...)
		}
	}
	with := func(m map[string]handler, method string, h handler) map[string]handler {
		m[method] = h
		return m
	}
	post := func(h handler) map[string]handler { return map[string]handler{"POST": h} }
	metrics := open
	if s.opt.Telemetry.PrivateMetrics {
		metrics = admin
	}
	add(d.Metrics != nil, &route{path: "/metrics", role: metrics, methods: get(s.metrics())})
	add(d.Status != nil, &route{path: "/aloft/v1/status", role: admin, methods: get(s.status)})
	add(d.Reporter != nil, &route{path: "/aloft/v1/report", role: admin, methods: get(s.report)})
	add(d.Decisions != nil, &route{path: "/aloft/v1/decisions", role: admin, methods: get(s.decisions)})
	add(d.Recorder != nil, &route{path: "/aloft/v1/recording", role: admin, methods: with(get(s.showRecording), "POST", s.setRecording)})
	add(d.Files != nil,
		&route{path: uploadPath, methods: with(get(s.listFiles), "POST", s.createFile)},
		&route{path: "/v1/files/", suffix: "/content", methods: get(s.fileContent)},
		&route{path: "/v1/files/", methods: with(get(s.getFile), "DELETE", s.deleteFile)})
	add(d.Batches != nil,
		&route{path: "/v1/batches", methods: with(get(s.listBatches), "POST", s.createBatch)},
		&route{path: "/v1/batches/", suffix: "/cancel", methods: post(s.cancelBatch)},
		&route{path: "/v1/batches/", methods: get(s.getBatch)})
	if d.Jobs != nil {
		add(true, s.jobRoutes(get)...)
	}
	return all
}

// find returns the route of a path as sent (still encoded) and the decoded id.
// nil: there is none.
func (r *router) find(path []byte) (*route, string) {
	if rt := r.exact[string(path)]; rt != nil {
		return rt, ""
	}
	for _, rt := range r.prefix {
		if len(path) <= len(rt.path)+len(rt.suffix) ||
			!bytes.HasPrefix(path, []byte(rt.path)) || !bytes.HasSuffix(path, []byte(rt.suffix)) {
			continue
		}
		raw := string(path[len(rt.path) : len(path)-len(rt.suffix)])
		if !rt.slashes && strings.Contains(raw, "/") {
			continue
		}
		// %2F is part of the id: that is why the path is matched undecoded.
		if id, err := url.PathUnescape(raw); err == nil {
			return rt, id
		}
	}
	return nil, ""
}

var exchanges = sync.Pool{New: func() any { return new(exchange) }}

// handle is fasthttp's handler: everything that all routes have in common.
func (s *Server) handle(c *fasthttp.RequestCtx) {
	s.active.Add(1)
	defer s.active.Add(-1)
	x := exchanges.Get().(*exchange)
	x.c, x.start = c, time.Now()
	x.in.read(&c.Request.Header)
	x.id = requestID(x.in.id)
	defer func() {
		*x = exchange{} // an idle one holds nobody's key
		exchanges.Put(x)
	}()
	defer func() {
		if !x.asked {
			s.note(x)
		}
	}()
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("handler panicked", "id", x.id, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			c.Response.Reset()
			s.fail(x, fmt.Errorf("panic: %v", p))
		}
	}()
	s.dispatch(x)
	c.Response.Header.SetCanonical(fieldRequestID, []byte(x.id))
	if s.draining.Load() {
		c.SetConnectionClose()
	}
}

func (s *Server) dispatch(x *exchange) {
	rt, id := s.routes.find(x.c.URI().PathOriginal())
	if rt == nil {
		s.fail(x, &openai.Error{
			Status: 404, Type: "invalid_request_error", Code: "unknown_url",
			Message: fmt.Sprintf("unknown URL: %s %s", x.c.Method(), printable(x.c.URI().PathOriginal())),
		})
		return
	}
	x.route = rt
	h := rt.methods[string(x.c.Method())]
	if h == nil {
		methods := make([]string, 0, len(rt.methods))
		for m := range rt.methods {
			methods = append(methods, m)
		}
		slices.Sort(methods)
		x.c.Response.Header.Set("Allow", strings.Join(methods, ", "))
		s.fail(x, &openai.Error{
			Status: 405, Type: "invalid_request_error", Code: "unknown_url",
			Message: fmt.Sprintf("not allowed to %s on %s", x.c.Method(), printable(x.c.URI().PathOriginal())),
		})
		return
	}
	x.asked = rt.endpoint != ""
	if err := s.authenticate(x, rt.role); err != nil {
		if err == error(errNoKey) {
			x.c.Response.Header.Set("WWW-Authenticate", "Bearer")
		}
		if e := rt.endpoint; x.asked {
			s.refuse(&caller{id: x.id, tenant: x.tenant, class: x.class, endpoint: e, path: rt.path, arrival: x.start}, err)
		}
		s.fail(x, err)
		return
	}
	x.path = id
	h(x)
}

// fail answers with err in the OpenAI error shape.
func (s *Server) fail(x *exchange, err error) {
	f := faultOf(err)
	s.write(x, &f, err)
}

func (s *Server) write(x *exchange, f *fault, err error) {
	if f.Status >= 500 && f.reason == reasonInternal {
		s.log.Error("request failed", "id", x.id, "error", err)
	}
	x.reason = f.reason
	var endpoint backends.Endpoint
	if x.route != nil {
		endpoint = x.route.endpoint
	}
	c := x.c
	h := &c.Response.Header
	c.SetStatusCode(f.Status)
	h.SetContentType("application/json")
	h.Set("X-Request-Id", x.id)
	if f.Status == 403 || f.Status == 429 || f.Status >= 500 {
		h.Set("X-Aloft-Reason", f.reason)
	}
	if f.final && f.Status >= 429 {
		h.Set("X-Should-Retry", "false")
	}
	if f.quota != nil {
		setQuota(h, f.quota)
	}
	if wait := f.retryAfter(); wait > 0 {
		h.Set("Retry-After", strconv.FormatInt(int64((wait+time.Second-1)/time.Second), 10))
		h.Set("Retry-After-Ms", strconv.FormatInt(wait.Milliseconds(), 10))
	}
	c.Response.SetBodyRaw(f.body(endpoint))
}

// badRequest answers what fasthttp could not read as a request.
func (s *Server) badRequest(c *fasthttp.RequestCtx, err error) {
	x := &exchange{c: c, id: requestID(nil), start: time.Now()}
	s.fail(x, readFault(err)) // the original may quote a header, and so a key
	s.note(x)
}

// requestID takes the client's id if it is sane, else makes one.
func requestID(given []byte) string {
	if len(given) > 0 && len(given) <= 128 && visible(given) {
		return string(given)
	}
	return newID()
}

// visible reports whether b is ASCII without spaces and control characters:
// what may be echoed into a header and a log line.
func visible(b []byte) bool {
	for _, ch := range b {
		if ch <= ' ' || ch > '~' {
			return false
		}
	}
	return true
}

// printable shortens a path for an error message.
func printable(path []byte) string {
	return strings.Trim(strconv.QuoteToASCII(string(path[:min(len(path), 200)])), `"`)
}
