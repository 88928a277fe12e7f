package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"aloft/backends"
	"aloft/backends/openai"

	"github.com/valyala/fasthttp/fasthttpadaptor"
)

// modelObject is OpenAI's model, with fields of our own that clients ignore.
type modelObject struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
	Parent  string `json:"parent,omitempty"` // of an adapter: its model

	State     string              `json:"state,omitempty"`
	Shape     string              `json:"shape,omitempty"`
	Context   int                 `json:"context_length,omitempty"`
	Endpoints []backends.Endpoint `json:"endpoints,omitempty"`
}

func objectOf(m Model) modelObject {
	o := modelObject{
		ID: m.id(), Object: "model", Created: m.Created.Unix(), OwnedBy: m.OwnedBy,
		State: m.State, Shape: m.Shape, Context: m.Context, Endpoints: m.Endpoints,
	}
	if m.Adapter != "" {
		o.Parent = m.Name
	}
	return o
}

// id is what a model is listed as.
func (m *Model) id() string {
	if m.Adapter != "" {
		return m.Name + ":" + m.Adapter
	}
	return m.Name
}

func (s *Server) listModels(x *exchange) {
	data := []modelObject{}
	for _, m := range s.deps.Catalog.Models() {
		if mayUse(x.grant, &m, m.id()) {
			data = append(data, objectOf(m))
		}
	}
	s.json(x, map[string]any{"object": "list", "data": data})
}

func (s *Server) getModel(x *exchange) {
	m, ok := s.deps.Catalog.Lookup(x.path)
	if !ok || !mayUse(x.grant, &m, x.path) { // what a key may not use is not there
		s.fail(x, unknownModel(x.path))
		return
	}
	s.json(x, objectOf(m))
}

// mayUse reports whether a key may use the model that it asked for by name: an
// alias, or model:adapter, may be listed as well as what it leads to.
func mayUse(g *Grant, m *Model, name string) bool { return g.May(m.Name) || g.May(name) }

func (s *Server) healthz(x *exchange) { s.json(x, map[string]string{"status": "ok"}) }

func (s *Server) readyz(x *exchange) {
	switch {
	case s.ready():
		s.json(x, map[string]string{"status": "ready"})
	case s.draining.Load():
		s.fail(x, backends.ErrDraining)
	default:
		s.fail(x, backends.ErrUnavailable)
	}
}

// metrics fits the Prometheus handler, which is written for net/http.
func (s *Server) metrics() handler {
	h := fasthttpadaptor.NewFastHTTPHandler(http.Handler(s.deps.Metrics))
	return func(x *exchange) { h(x.c) }
}

func (s *Server) status(x *exchange) { s.json(x, s.deps.Status.Status()) }

func (s *Server) decisions(x *exchange) {
	q := x.c.QueryArgs()
	f := Filter{About: string(q.Peek("about")), Action: string(q.Peek("action")), After: string(q.Peek("after"))}
	limit, err := pageLimit(q.Peek("limit"), 100, 1000)
	if err != nil {
		s.fail(x, err)
		return
	}
	f.Limit = limit + 1 // so that the last page is known
	for name, into := range map[string]*time.Time{"since": &f.Since, "until": &f.Until} {
		if text := string(q.Peek(name)); text != "" {
			if *into, err = parseTime(text); err != nil {
				s.fail(x, invalid(name, "invalid_value", "%q is neither Unix seconds nor RFC 3339", text))
				return
			}
		}
	}
	list, err := s.deps.Decisions.Decisions(f)
	if err != nil {
		s.fail(x, invalid("after", "invalid_value", "%v", err))
		return
	}
	page := newPage[any](len(list) > limit)
	for _, d := range list[:min(len(list), limit)] {
		page.add(d.ID, d.Value)
	}
	s.json(x, page)
}

// report covers the last day unless it is asked for another while.
func (s *Server) report(x *exchange) {
	since := time.Now().Add(-24 * time.Hour)
	if text := string(x.c.QueryArgs().Peek("since")); text != "" {
		var err error
		if since, err = parseTime(text); err != nil {
			s.fail(x, invalid("since", "invalid_value", "%q is neither Unix seconds nor RFC 3339", text))
			return
		}
	}
	s.json(x, s.deps.Reporter.Report(since))
}

// parseTime reads Unix seconds, with a fraction if need be, or RFC 3339.
func parseTime(text string) (time.Time, error) {
	if sec, err := strconv.ParseFloat(text, 64); err == nil && sec >= 0 && sec < 1e11 {
		return time.UnixMicro(int64(sec * 1e6)), nil
	}
	return time.Parse(time.RFC3339, text)
}

// pageLimit reads a list's limit; absent = standard.
func pageLimit(text []byte, standard, most int) (int, error) {
	if len(text) == 0 {
		return standard, nil
	}
	n, err := strconv.Atoi(string(text))
	if err != nil || n < 1 || n > most {
		return 0, invalid("limit", "invalid_value", "limit is %q, want 1 to %d", text, most)
	}
	return n, nil
}

// json answers 200 with v. Not for the hot path.
func (s *Server) json(x *exchange, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		s.fail(x, err)
		return
	}
	x.c.SetContentType("application/json")
	x.c.Response.SetBodyRaw(body)
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
