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
	level := slog.LevelInfo
	if o.Status >= 500 {
		level = slog.LevelWarn
	}
	if (o.Status >= 400 || logged(s.opt.Telemetry.AccessLog)) && s.log.Enabled(s.base, level) {
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
		b = strconv.AppendFloat(b, float64(p.took.Microseconds())/1000, 'f', -1, 64)
	}
	h.SetBytesV("Server-Timing", b)
	if t.Route != "" {
		h.Set("X-Aloft-Route", t.Route)
	}
}
