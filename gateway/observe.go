package gateway

import (
	"log/slog"
	"math/rand/v2"
	"strconv"
	"time"

	"aloft/backends"

	"github.com/valyala/fasthttp"
)

// observe logs how a request ended and tells the observer. Of those that went
// well a share is logged. Nothing of a prompt or an answer is.
func (s *Server) observe(o *Outcome) {
	if level, yes := s.logs(o.Status); yes {
		s.log.LogAttrs(s.base, level, "request ended",
			slog.String("id", o.ID), slog.String("tenant", o.Tenant), slog.String("key", o.Key),
			slog.String("model", o.Model), slog.String("path", o.Path),
			slog.String("class", o.Class.String()), slog.Bool("stream", o.Stream), slog.Int("status", o.Status), slog.String("reason", o.Reason),
			slog.Int("prompt_tokens", o.PromptTokens), slog.Int("completion_tokens", o.CompletionTokens), slog.Int64("bytes", o.Bytes),
			slog.Duration("queue", o.Timing.Queue), slog.Duration("engine", o.Timing.Engine), slog.Duration("total", o.Total),
			slog.String("replica", o.Timing.Replica), slog.String("route", o.Timing.Route))
	}
	if s.deps.Observer != nil {
		s.deps.Observer.Observe(*o)
	}
}

// note logs a request that no model was asked for, as observe does the others.
// Probes and scrapes are worth a line only to those who debug.
func (s *Server) note(x *exchange) {
	status := x.c.Response.StatusCode()
	level, yes := s.logs(status)
	if x.route != nil && x.route.role == open {
		level = slog.LevelDebug
	}
	if !yes || !s.log.Enabled(s.base, level) {
		return
	}
	var key, path, about string
	if x.grant != nil {
		key = x.grant.ID
	}
	if x.route != nil {
		path = x.route.path + x.route.suffix
	}
	if status < 400 { // else a client may have made it up
		about = printable([]byte(x.path))
	}
	s.log.LogAttrs(s.base, level, "request ended",
		slog.String("id", x.id), slog.String("tenant", x.tenant), slog.String("key", key),
		slog.String("method", printable(x.c.Method())), slog.String("path", path), slog.String("about", about),
		slog.Int("status", status), slog.String("reason", x.reason), slog.Duration("total", time.Since(x.start)))
}

// logs reports whether and how loudly a request's end is logged.
func (s *Server) logs(status int) (level slog.Level, yes bool) {
	if status >= 500 {
		level = slog.LevelWarn
	}
	return level, (status >= 400 || logged(s.opt.Telemetry.AccessLog)) && s.log.Enabled(s.base, level)
}

func logged(share float64) bool { return share > 0 && rand.Float64() < share }

// setTiming writes Server-Timing, where the time went in ms, and the route that
// the answer took where it is not a replica of ours.
func setTiming(h *fasthttp.ResponseHeader, t *backends.Timing) {
	var buf [128]byte
	b := buf[:0]
	for _, p := range [...]struct {
		name string
		took time.Duration
	}{{"queue;dur=", t.Queue}, {", batch;dur=", t.Batch}, {", network;dur=", t.Network}, {", engine;dur=", t.Engine}} {
		b = append(b, p.name...)
		b = appendMillis(b, p.took)
	}
	h.SetCanonical(fieldTiming, b)
	if t.Route != "" {
		h.Set("X-Aloft-Route", t.Route)
	}
	if t.Variant != "" {
		h.Set("X-Aloft-Variant", t.Variant)
	}
}

// appendMillis writes a duration in ms, with three decimals.
func appendMillis(b []byte, d time.Duration) []byte {
	us := max(d, 0).Microseconds()
	b = append(strconv.AppendInt(b, us/1000, 10), '.')
	return append(b, byte('0'+us/100%10), byte('0'+us/10%10), byte('0'+us%10))
}
