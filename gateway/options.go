package gateway

import (
	"cmp"
	"fmt"
	"time"
)

// Options are the gateway's limits. New fills zero values from Defaults.
type Options struct {
	Name string // the Server header

	MaxBody  int   // bytes of a JSON body
	MaxFile  int64 // bytes of an uploaded file
	MaxReply int   // bytes of an engine's whole reply
	MaxEvent int   // bytes of one streamed event

	HeaderTimeout time.Duration // to read a request's head, TLS handshake included
	BodyTimeout   time.Duration // to read its body, and a second more per 128 KiB that it announces
	UploadTimeout time.Duration // to read a whole file
	WriteTimeout  time.Duration // for the client to take the next 64 KiB of a reply, or an event of a stream
	IdleTimeout   time.Duration // between two requests of a connection

	RequestTimeout time.Duration // from arrival to the last byte
	HeartbeatAfter time.Duration // of silence on a stream
	DrainGrace     time.Duration // for what runs when Serve's context ends

	Conns ConnLimits
	TLS   *Certificate // nil: plain HTTP
	CORS  []string     // origins whose pages may call, "*" = all; none: no browser may

	// FreeCommands lets admins submit jobs that are programs of their own.
	FreeCommands bool

	Telemetry TelemetryOptions
}

// TelemetryOptions say what is told about requests, and to whom.
type TelemetryOptions struct {
	// AccessLog is the share of successful requests that are logged; those that
	// fail always are.
	AccessLog float64
	// Sample is the share of requests that begin a trace; those that bring a
	// traceparent carry on theirs, whatever the share.
	Sample float64
	// PrivateMetrics puts /metrics behind an admin key.
	PrivateMetrics bool
}

// ConnLimits bound the open connections; 0 = no limit.
type ConnLimits struct {
	All        int
	PerAddress int // of one IPv4 address or IPv6 /64
}

// Defaults are the limits of an Options left empty.
//
// HeartbeatAfter lies below the 15 to 60 s after which proxies and load
// balancers cut a silent connection, and late enough that most early faults
// still get their real status (docs/failures.md F6).
func Defaults() Options {
	return Options{
		Name:    "aloft",
		MaxBody: 32 << 20, MaxFile: 200 << 20, MaxReply: 256 << 20, MaxEvent: 4 << 20,
		HeaderTimeout: 10 * time.Second, BodyTimeout: 30 * time.Second, UploadTimeout: 10 * time.Minute,
		WriteTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute,
		RequestTimeout: 10 * time.Minute, HeartbeatAfter: 8 * time.Second, DrainGrace: 30 * time.Second,
	}
}

// orDefaults fills in what was left out.
func (o Options) orDefaults() Options {
	d := Defaults()
	fill(&o.Name, d.Name)
	fill(&o.MaxBody, d.MaxBody)
	fill(&o.MaxFile, d.MaxFile)
	fill(&o.MaxReply, d.MaxReply)
	fill(&o.MaxEvent, d.MaxEvent)
	fill(&o.HeaderTimeout, d.HeaderTimeout)
	fill(&o.BodyTimeout, d.BodyTimeout)
	fill(&o.UploadTimeout, d.UploadTimeout)
	fill(&o.WriteTimeout, d.WriteTimeout)
	fill(&o.IdleTimeout, d.IdleTimeout)
	fill(&o.RequestTimeout, d.RequestTimeout)
	fill(&o.HeartbeatAfter, d.HeartbeatAfter)
	fill(&o.DrainGrace, d.DrainGrace)
	return o
}

func fill[T comparable](field *T, value T) { *field = cmp.Or(*field, value) }

// Validate refuses what cannot work; zero values stand for the defaults.
func (o Options) Validate() error {
	for name, n := range map[string]int64{
		"max_body": int64(o.MaxBody), "max_file": o.MaxFile, "max_reply": int64(o.MaxReply), "max_event": int64(o.MaxEvent),
	} {
		if n < 0 {
			return fmt.Errorf("gateway: %s is %d bytes, want 0 (default) or more", name, n)
		}
	}
	for name, d := range map[string]time.Duration{
		"header_timeout": o.HeaderTimeout, "body_timeout": o.BodyTimeout, "upload_timeout": o.UploadTimeout, "write_timeout": o.WriteTimeout,
		"idle_timeout": o.IdleTimeout, "request_timeout": o.RequestTimeout,
		"heartbeat_after": o.HeartbeatAfter, "drain_grace": o.DrainGrace,
	} {
		if d < 0 {
			return fmt.Errorf("gateway: %s is %v, want 0 (default) or more", name, d)
		}
	}
	if o.Conns.All < 0 || o.Conns.PerAddress < 0 {
		return fmt.Errorf("gateway: connections are limited to %d, per address to %d, want 0 (no limit) or more", o.Conns.All, o.Conns.PerAddress)
	}
	if err := validOrigins(o.CORS); err != nil {
		return err
	}
	if t := o.Telemetry; !(t.AccessLog >= 0 && t.AccessLog <= 1 && t.Sample >= 0 && t.Sample <= 1) {
		return fmt.Errorf("gateway: shares of requests logged %v and traced %v, want 0 to 1", t.AccessLog, t.Sample)
	}
	return nil
}
