package gateway

import (
	"bytes"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/valyala/fasthttp"
)

// What a page of an allowed origin may do, as the Fetch standard wants it said.
// Credentials are never allowed: keys travel in a header, not in cookies.
const (
	corsMethods = "GET, HEAD, POST, DELETE"
	corsMaxAge  = "7200" // seconds that a browser may remember it; Chromium's most
	// A list in full: the standard knows no prefixes.
	corsExpose = "X-Request-Id, Retry-After, Retry-After-Ms, X-Should-Retry, Server-Timing, " +
		"X-Aloft-Reason, X-Aloft-Route, X-Aloft-Variant, " +
		"X-Ratelimit-Limit-Requests, X-Ratelimit-Remaining-Requests, X-Ratelimit-Reset-Requests, " +
		"X-Ratelimit-Limit-Tokens, X-Ratelimit-Remaining-Tokens, X-Ratelimit-Reset-Tokens"
)

// corsHeaders are the request headers that a page may set, and the beginnings
// of those that clients in browsers bring along.
var (
	corsHeaders  = []string{"accept", "authorization", "content-type", "idempotency-key", "user-agent"}
	corsPrefixes = []string{"x-", "openai-", "anthropic-"}
)

// validOrigins checks that each is "*" or scheme://host[:port] as browsers send it.
func validOrigins(origins []string) error {
	for _, o := range origins {
		if o == "*" {
			continue
		}
		u, err := url.Parse(o)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || o != u.Scheme+"://"+strings.ToLower(u.Host) {
			return fmt.Errorf("gateway: cors origin %q, want \"*\" or scheme://host[:port] in small letters", o)
		}
	}
	return nil
}

// cors answers preflights of allowed origins, and lets their pages read what h answers.
func (s *Server) cors(h fasthttp.RequestHandler) fasthttp.RequestHandler {
	if len(s.opt.CORS) == 0 {
		return h
	}
	all := slices.Contains(s.opt.CORS, "*")
	return func(c *fasthttp.RequestCtx) {
		origin := c.Request.Header.Peek("Origin")
		allowed := len(origin) > 0 && (all || slices.Contains(s.opt.CORS, string(origin)))
		if allowed && c.IsOptions() && len(c.Request.Header.Peek("Access-Control-Request-Method")) > 0 {
			x := &exchange{c: c, id: requestID(c.Request.Header.Peek("X-Request-Id")), start: time.Now()}
			preflight(x)
			s.note(x)
		} else {
			h(c)
		}
		out := &c.Response.Header
		switch {
		case all:
			out.Set("Access-Control-Allow-Origin", "*")
		case allowed:
			out.SetBytesV("Access-Control-Allow-Origin", origin)
		}
		if !all {
			out.Add("Vary", "Origin") // for those without it too: the answer would differ
		}
		if allowed && !c.IsOptions() {
			out.Set("Access-Control-Expose-Headers", corsExpose)
		}
	}
}

// preflight answers for any path and asks for no key: browsers send none.
func preflight(x *exchange) {
	c := x.c
	c.SetStatusCode(fasthttp.StatusNoContent)
	h := &c.Response.Header
	h.Set("X-Request-Id", x.id)
	h.Set("Access-Control-Allow-Methods", corsMethods)
	h.Set("Access-Control-Max-Age", corsMaxAge)
	var may []string
	for name := range bytes.SplitSeq(c.Request.Header.Peek("Access-Control-Request-Headers"), []byte{','}) {
		if name := strings.ToLower(string(bytes.TrimSpace(name))); mayBeSet(name) {
			may = append(may, name)
		}
	}
	if len(may) > 0 {
		h.Set("Access-Control-Allow-Headers", strings.Join(may, ", "))
		h.Add("Vary", "Access-Control-Request-Headers")
	}
}

// mayBeSet reports whether a page may set a request header, given in small letters.
func mayBeSet(name string) bool {
	if slices.Contains(corsHeaders, name) {
		return true
	}
	return visible([]byte(name)) && slices.ContainsFunc(corsPrefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}
