package main

import (
	"context"
	"fmt"
	"net"

	"aloft/gateway"
	"aloft/gateway/keys"
)

// access is who may come in, and over what.
type access struct {
	keys *keys.Store
	cert *gateway.Certificate // nil: plain HTTP
}

// validate checks what does not need the files.
func (g GatewayConfig) validate() error {
	switch {
	case (g.TLS.Cert == "") != (g.TLS.Key == ""):
		return at("gateway.tls", "cert and key belong together: both or none")
	case g.AccessLog < 0 || g.AccessLog > 1:
		return at("gateway.access_log", "%g, want a share from 0 to 1", g.AccessLog)
	case g.Cache < 0:
		return at("gateway.embedding_cache", "%d bytes, want 0 (off) or more", g.Cache)
	case g.Timeouts.Connect < 0 || g.Timeouts.FirstByte < 0 || g.Timeouts.StreamIdle < 0:
		return at("gateway.timeouts", "connect, first_byte and stream_idle must not be negative")
	}
	if err := g.options(nil).Validate(); err != nil {
		return at("gateway", "%w", err)
	}
	return nil
}

func (g GatewayConfig) options(cert *gateway.Certificate) gateway.Options {
	t := g.Timeouts
	return gateway.Options{Name: "aloft", MaxBody: g.MaxBody, MaxFile: g.MaxFile, TLS: cert, CORS: g.CORS,
		HeaderTimeout: t.Header, BodyTimeout: t.Body, UploadTimeout: t.Upload, WriteTimeout: t.Write, IdleTimeout: t.Idle,
		RequestTimeout: t.Request, DrainGrace: g.DrainGrace,
		Conns:     gateway.ConnLimits{All: g.Connections, PerAddress: g.PerAddress},
		Telemetry: gateway.TelemetryOptions{AccessLog: g.AccessLog, PrivateMetrics: g.PrivateMetrics}}
}

func (c *Config) edge(cert *gateway.Certificate) gateway.Options {
	o := c.Gateway.options(cert)
	o.FreeCommands = c.Jobs.Free
	return o
}

// keyFile is where the keys are.
func (s *server) keyFile() string {
	if f := s.conf.Gateway.KeyFile; f != "" {
		return s.conf.file(f)
	}
	return s.path(keyFileName)
}

// openAccess reads the keys and the certificate.
func (s *server) openAccess(context.Context) (err error) {
	if s.keys, err = keys.Open(s.keyFile(), s.path(keyUsageName), s.log); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.keys.Run(ctx) }()
	s.onStop("keys", func(context.Context) error { cancel(); return <-ended })
	if t := s.conf.Gateway.TLS; t.Cert != "" {
		if s.cert, err = gateway.LoadCertificate(s.conf.file(t.Cert), s.conf.file(t.Key)); err != nil {
			return s.conf.located(at("gateway.tls", "%w", err))
		}
	}
	return nil
}

// secrets are the files that are read again by themselves when they change.
func (s *server) secrets() []*watched {
	again := func(what string, reload func() error) func() {
		return func() {
			if err := reload(); err != nil {
				s.log.Error("files not read again", "what", what, "error", err)
			}
		}
	}
	out := []*watched{{paths: []string{s.keyFile()}, read: again("keys", s.keys.Reload)}}
	if t := s.conf.Gateway.TLS; s.cert != nil {
		out = append(out, &watched{paths: []string{s.conf.file(t.Cert), s.conf.file(t.Key)}, read: again("certificate", s.cert.Reload)})
	}
	return out
}

// listen takes the port before anything is started. A public address needs keys
// and TLS, unless somebody has said that it is well without.
func (s *server) listen(context.Context) error {
	if lacks := s.open(); lacks != "" {
		if !s.conf.Gateway.Insecure {
			return fmt.Errorf("listen on %s: %s only a loopback address is served; --insecure or gateway.insecure: true says that others may come in", s.conf.Listen, lacks)
		}
		s.log.Warn("open to all who reach the address", "listen", s.conf.Listen, "because", lacks)
	}
	l, err := net.Listen("tcp", s.conf.Listen)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", s.conf.Listen, err)
	}
	s.listener = l
	s.onStop("listener", func(context.Context) error { _ = l.Close(); return nil }) // the gateway has closed it, if it came to serve
	return nil
}

// open says what a public address lacks; "" = nothing, or it is none.
func (s *server) open() string {
	host, _, _ := net.SplitHostPort(s.conf.Listen)
	ip := net.ParseIP(host)
	switch {
	case host == "localhost" || ip != nil && ip.IsLoopback():
	case !s.keys.Enabled():
		return "without keys (aloft keys make)"
	case s.cert == nil:
		return "without TLS (gateway.tls)"
	}
	return ""
}

func (s *server) scheme() string {
	if s.cert != nil {
		return "https://"
	}
	return "http://"
}
