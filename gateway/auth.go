package gateway

import (
	"bytes"
	"strconv"
	"time"

	"aloft/backends"
	"aloft/backends/openai"

	"github.com/valyala/fasthttp"
)

// role is who may use a route. Admin keys open the admin API and nothing else;
// user keys never open it.
type role uint8

const (
	user role = iota
	open      // whoever asks
	admin
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
	secret := secretOf(&x.c.Request.Header)
	g, ok := s.deps.Keys.Find(secret)
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
func secretOf(h *fasthttp.RequestHeader) []byte {
	const bearer = "Bearer "
	v := h.Peek("Authorization")
	if len(v) > len(bearer) && bytes.EqualFold(v[:len(bearer)], []byte(bearer)) {
		return bytes.TrimSpace(v[len(bearer):])
	}
	return h.Peek("X-Api-Key")
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
func (a *ask) reserve() error {
	if a.grant == nil {
		return nil
	}
	q, err := a.s.deps.Keys.Reserve(a.grant, a.out.Arrival, a.hold)
	if err != nil {
		return err
	}
	a.held, a.quota = true, q
	return nil
}

// settle replaces the reservation by what was used: all that was metered as soon
// as there was content, also of an answer that broke off or that nobody read.
func (a *ask) settle() {
	if !a.held {
		return
	}
	a.held = false
	used := 0
	if a.out.FirstToken > 0 {
		used = a.out.PromptTokens + a.out.CompletionTokens
	}
	a.s.deps.Keys.Settle(a.grant, time.Now(), a.hold, used)
}

// setQuota writes the x-ratelimit headers of OpenAI.
func setQuota(h *fasthttp.ResponseHeader, q *Quota) {
	setGauge(h, &q.Requests, [3]string{"X-Ratelimit-Limit-Requests", "X-Ratelimit-Remaining-Requests", "X-Ratelimit-Reset-Requests"})
	setGauge(h, &q.Tokens, [3]string{"X-Ratelimit-Limit-Tokens", "X-Ratelimit-Remaining-Tokens", "X-Ratelimit-Reset-Tokens"})
}

func setGauge(h *fasthttp.ResponseHeader, g *Gauge, names [3]string) {
	if g.Limit <= 0 {
		return
	}
	var b [32]byte
	h.SetBytesV(names[0], strconv.AppendInt(b[:0], int64(g.Limit), 10))
	h.SetBytesV(names[1], strconv.AppendInt(b[:0], int64(max(g.Remaining, 0)), 10))
	h.SetBytesV(names[2], appendReset(b[:0], g.Reset))
}

// appendReset writes a duration in OpenAI's form: 20ms, 1s, 6m0s, rounded up.
func appendReset(b []byte, d time.Duration) []byte {
	const ms = time.Millisecond
	d = max(0, (d+ms-1)/ms*ms)
	if d < time.Second {
		return append(strconv.AppendInt(b, d.Milliseconds(), 10), "ms"...)
	}
	if d >= time.Hour {
		b = append(strconv.AppendInt(b, int64(d/time.Hour), 10), 'h')
	}
	if d >= time.Minute {
		b = append(strconv.AppendInt(b, int64(d%time.Hour/time.Minute), 10), 'm')
	}
	b = strconv.AppendFloat(b, (d % time.Minute).Seconds(), 'f', -1, 64)
	return append(b, 's')
}
