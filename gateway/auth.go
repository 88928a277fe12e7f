package gateway

import (
	"bytes"
	"time"

	"aloft/backends"
	"aloft/backends/openai"
)

// role is who may use a route. Admin keys open the admin API and what is of jobs,
// and nothing else; user keys never open the admin API.
type role uint8

const (
	user role = iota
	open      // whoever asks
	admin
	either // users, and admins for all tenants
)

var (
	errNoKey = &openai.Error{Status: 401, Type: "invalid_request_error", Code: "invalid_api_key",
		Message: "no valid API key: send it as Authorization: Bearer KEY, or as x-api-key"}
	errUserKey = &openai.Error{Status: 403, Type: "permission_error", Code: "admin_key_required",
		Message: "this needs an admin key"}
	errAdminKey = &openai.Error{Status: 403, Type: "permission_error", Code: "user_key_required",
		Message: "an admin key opens the admin API only"}
)

// authenticate finds who asks. Without Keys, and as long as these want none,
// everybody may do everything.
func (s *Server) authenticate(x *exchange, need role) error {
	if need == open || s.deps.Keys == nil {
		return nil
	}
	secret := secretOf(&x.in)
	g, ok := s.deps.Keys.Find(secret, x.start)
	switch {
	case ok && g == nil: // keys are not wanted yet
		return nil
	case !ok || len(secret) == 0:
		return errNoKey
	case need == admin && !g.Admin:
		return errUserKey
	case need == user && g.Admin:
		return errAdminKey
	}
	x.grant, x.tenant, x.class = g, g.Tenant, g.Class
	return nil
}

// secretOf finds the key where clients of OpenAI, or of Anthropic, put it.
func secretOf(d *head) []byte {
	const bearer = "Bearer "
	v := d.authorization
	if len(v) > len(bearer) && bytes.EqualFold(v[:len(bearer)], []byte(bearer)) {
		return bytes.TrimSpace(v[len(bearer):])
	}
	return d.apiKey
}

// answerGuess is how many tokens an answer is taken to have when its limits are
// held before it is there and the client gave no maximum. What it is in truth is
// settled after; a guess of the whole context would stop a key at a few requests.
const answerGuess = 256

// mostTokens bounds what a client can make an estimate of by max_tokens and n:
// above every limit that a key may have, and far from overflow, which would count
// as nothing.
const mostTokens = 1 << 50

// estimate is what a request is expected to use: prompt and answers.
func estimate(req *backends.Request, m *Model, n int) int {
	if !req.Endpoint.Generates() {
		return req.Tokens
	}
	answer := req.MaxTokens
	if answer == 0 {
		answer = answerGuess
	}
	if m.Context > 0 {
		answer = max(0, min(answer, m.Context-req.Tokens))
	}
	if n = max(1, n); answer > mostTokens/n {
		answer, n = mostTokens, 1
	}
	return req.Tokens + answer*n
}

// reserve holds the ask to the limits of its key. What it takes, end settles.
func (a *ask) reserve() (q Quota, err error) {
	if a.grant != nil {
		q, err = a.s.deps.Keys.Reserve(a.grant, a.out.Arrival, a.hold)
		a.held = err == nil
	}
	return q, err
}

// settle replaces the reservation by what was used: all that was metered as soon
// as there was content, also of an answer that broke off or that nobody read.
func (a *ask) settle(now time.Time) {
	if !a.held {
		return
	}
	a.held = false
	used := 0
	if a.out.FirstToken > 0 {
		used = a.out.PromptTokens + a.out.CompletionTokens
	}
	a.s.deps.Keys.Settle(a.grant, now, a.hold, used)
}
