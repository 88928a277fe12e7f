package gateway

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"aloft/backends/openai"
	"aloft/jobs"
)

// KeyObject is a key as /aloft/v1/keys shows it; times are Unix seconds, a limit
// of 0 is none.
type KeyObject struct {
	ID     string `json:"id"`
	Object string `json:"object"`
	KeySpec
	Used    int64  `json:"tokens_used_this_month"`
	Hint    string `json:"hint"`
	Created *int64 `json:"created_at"`
	Rotated *int64 `json:"rotated_at"`
	Expires *int64 `json:"expires_at"`       // hides KeySpec's
	Secret  string `json:"secret,omitempty"` // of a key just made or rotated
}

// Object is the key as the admin API shows it.
func (k KeyInfo) Object() KeyObject {
	o := KeyObject{ID: k.ID, Object: "key", KeySpec: k.KeySpec, Used: k.Used, Hint: k.Hint,
		Created: stamp(k.Created), Rotated: stamp(k.Rotated), Expires: stamp(k.Expires)}
	o.Class = cmp.Or(o.Class, "interactive")
	return o
}

// adminRoutes are the routes that want an admin key.
func (s *Server) adminRoutes(get func(handler) map[string]handler) []*route {
	if s.deps.KeyAdmin == nil {
		return nil
	}
	list, one := get(s.listKeys), get(s.getKey)
	list["POST"], one["DELETE"] = s.makeKey, s.revokeKey
	return []*route{
		{path: "/aloft/v1/keys", role: admin, methods: list},
		{path: "/aloft/v1/keys/", role: admin, suffix: "/rotate", methods: map[string]handler{"POST": s.rotateKey}},
		{path: "/aloft/v1/keys/", role: admin, methods: one},
	}
}

// listKeys shows all keys in one page: their number is bounded by the store.
func (s *Server) listKeys(x *exchange) {
	page := newPage[KeyObject](false)
	for _, k := range s.deps.KeyAdmin.List() {
		page.add(k.ID, k.Object())
	}
	s.json(x, page)
}

func (s *Server) getKey(x *exchange) {
	list := s.deps.KeyAdmin.List()
	i := slices.IndexFunc(list, func(k KeyInfo) bool { return k.ID == x.path })
	if i < 0 {
		s.fail(x, fmt.Errorf("key %.100q: %w", x.path, jobs.ErrNotFound))
		return
	}
	s.json(x, list[i].Object())
}

func (s *Server) makeKey(x *exchange) {
	var in struct { // KeySpec with a time as this API writes them
		Name     string   `json:"name"`
		Tenant   string   `json:"tenant"`
		Class    string   `json:"class"`
		Models   []string `json:"models"`
		Admin    bool     `json:"admin"`
		Overflow bool     `json:"overflow"`
		RPM      int      `json:"requests_per_minute"`
		TPM      int      `json:"tokens_per_minute"`
		Parallel int      `json:"parallel"`
		Budget   int64    `json:"tokens_per_month"`
		Expires  *int64   `json:"expires_at"`
	}
	if err := s.adminBody(x, &in); err != nil {
		s.fail(x, err)
		return
	}
	spec := KeySpec{Name: in.Name, Tenant: in.Tenant, Class: in.Class, Models: in.Models, Admin: in.Admin, Overflow: in.Overflow,
		RPM: in.RPM, TPM: in.TPM, Parallel: in.Parallel, Budget: in.Budget}
	if in.Expires != nil {
		spec.Expires = time.Unix(*in.Expires, 0)
	}
	k, secret, err := s.deps.KeyAdmin.Make(spec)
	s.showOnce(x, k, secret, err)
}

// rotateKey ends the old secret at once unless the body says otherwise.
func (s *Server) rotateKey(x *exchange) {
	var in struct {
		Overlap int64 `json:"overlap_seconds"`
	}
	const most = int64(1<<63-1) / int64(time.Second) // a Duration's; the store's is lower
	err := s.adminBody(x, &in)
	if err == nil && (in.Overlap < 0 || in.Overlap > most) {
		err = invalid("overlap_seconds", openai.CodeValue, "overlap_seconds: %d is out of range", in.Overlap)
	}
	if err != nil {
		s.fail(x, err)
		return
	}
	k, secret, err := s.deps.KeyAdmin.Rotate(x.path, time.Duration(in.Overlap)*time.Second)
	s.showOnce(x, k, secret, err)
}

// showOnce answers with a key and the only copy of its secret, or with err.
func (s *Server) showOnce(x *exchange, k KeyInfo, secret string, err error) {
	if err != nil {
		s.fail(x, err)
		return
	}
	o := k.Object()
	o.Secret = secret
	x.c.Response.Header.Set("Cache-Control", "no-store")
	s.json(x, o)
}

func (s *Server) revokeKey(x *exchange) {
	if err := s.deps.KeyAdmin.Revoke(x.path); err != nil {
		s.fail(x, err)
		return
	}
	s.json(x, map[string]any{"id": x.path, "object": "key", "deleted": true})
}

// adminBody reads what an admin sends. Without keys nothing but loopback keeps a
// page in the operator's browser away: a body that names no type (a page may send
// that without asking first), or that comes from a page (by DNS rebinding even
// from one of this very address), could shut everybody out with a first key.
func (s *Server) adminBody(x *exchange, v any) error {
	h := &x.c.Request.Header
	if !isJSON(h.ContentType()) {
		return unsupported("content type %q is not supported, want application/json", h.ContentType())
	}
	if len(h.Peek("Origin")) > 0 && x.grant == nil {
		return &openai.Error{Status: 403, Type: "permission_error", Code: "origin_not_allowed",
			Message: "a web page cannot manage keys before there is an admin key: make one with `aloft keys make --admin`"}
	}
	return s.decode(x, v, onlyKnown)
}
