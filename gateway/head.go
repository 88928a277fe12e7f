package gateway

import (
	"strconv"
	"time"

	"github.com/valyala/fasthttp"
)

// head is what the gateway wants of a request's header fields, found in one
// pass: asking fasthttp for each by its name costs a scan each. The values are
// valid until the handler returns; of a field that is repeated the first counts.
type head struct {
	id, authorization, apiKey          []byte
	priority, deadline, session        []byte
	traceparent, tracestate            []byte
	anthropicVersion, anthropicFeature []byte
}

func (d *head) read(h *fasthttp.RequestHeader) {
	for name, value := range h.All() {
		if at := d.field(name); at != nil && *at == nil {
			*at = value
		}
	}
}

// field is where a field goes; its name is in canonical form. nil: it is not
// for us.
func (d *head) field(name []byte) *[]byte {
	switch string(name) {
	case "X-Request-Id":
		return &d.id
	case "Authorization":
		return &d.authorization
	case "X-Api-Key":
		return &d.apiKey
	case "X-Aloft-Priority":
		return &d.priority
	case "X-Aloft-Deadline-Ms":
		return &d.deadline
	case "X-Session-Id":
		return &d.session
	case "Traceparent":
		return &d.traceparent
	case "Tracestate":
		return &d.tracestate
	case anthropicVersion:
		return &d.anthropicVersion
	case anthropicBeta:
		return &d.anthropicFeature
	}
	return nil
}

// The fields of an answer that every request has, in canonical form:
// fasthttp need not make them so again.
var (
	fieldRequestID = []byte("X-Request-Id")
	fieldTiming    = []byte("Server-Timing")
	fieldsRequests = [3][]byte{[]byte("X-Ratelimit-Limit-Requests"), []byte("X-Ratelimit-Remaining-Requests"), []byte("X-Ratelimit-Reset-Requests")}
	fieldsTokens   = [3][]byte{[]byte("X-Ratelimit-Limit-Tokens"), []byte("X-Ratelimit-Remaining-Tokens"), []byte("X-Ratelimit-Reset-Tokens")}
)

// setQuota writes the x-ratelimit headers of OpenAI.
func setQuota(h *fasthttp.ResponseHeader, q *Quota) {
	setGauge(h, &q.Requests, &fieldsRequests)
	setGauge(h, &q.Tokens, &fieldsTokens)
}

func setGauge(h *fasthttp.ResponseHeader, g *Gauge, names *[3][]byte) {
	if g.Limit <= 0 {
		return
	}
	var b [32]byte
	h.SetCanonical(names[0], strconv.AppendInt(b[:0], int64(g.Limit), 10))
	h.SetCanonical(names[1], strconv.AppendInt(b[:0], int64(max(g.Remaining, 0)), 10))
	h.SetCanonical(names[2], appendReset(b[:0], g.Reset))
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
