// Package wire is the load generator's own HTTP/1.1 client: connections that
// are read whole, a clock at every read, and no allocation for a request or an
// event of a stream once a connection is open, but for the goroutine that writes
// a large request. It shares nothing with the gateway's wire code, and it never
// sends a request twice.
package wire

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strings"
)

// How a request fails. Every error of a Conn is exactly one of them.
var (
	// ErrConnect: no connection, or it was lost before the first byte of an answer.
	ErrConnect = errors.New("no answer")
	// ErrTruncated: the answer was cut off after its first byte.
	ErrTruncated = errors.New("answer cut off")
	// ErrTimeout: the deadline passed, or Abort was called.
	ErrTimeout = errors.New("given up")
	// ErrProtocol: the answer is no HTTP/1, or larger than the limits.
	ErrProtocol = errors.New("answer is no HTTP")
)

// Dialer opens a connection.
type Dialer func(ctx context.Context, network, address string) (net.Conn, error)

// Target is a server. It is safe for concurrent use.
type Target struct {
	address string // host:port
	host    string // as the Host header says it
	prefix  string // path before every route
	dial    Dialer
	tls     *tls.Config // nil: http
}

// NewTarget returns the target of a base URL, http or https; dial nil means TCP.
func NewTarget(base string, dial Dialer) (*Target, error) {
	u, err := url.Parse(base)
	if err != nil {
		return nil, fmt.Errorf("wire: base URL: %w", err)
	}
	if u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("wire: base URL is %q, want http://HOST:PORT or https://HOST", base)
	}
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	t := &Target{host: u.Host, prefix: strings.TrimRight(u.EscapedPath(), "/"), dial: dial}
	port := u.Port()
	switch u.Scheme {
	case "http":
		port = cmp.Or(port, "80")
	case "https":
		port = cmp.Or(port, "443")
		t.tls = &tls.Config{ServerName: u.Hostname(), NextProtos: []string{"http/1.1"}, MinVersion: tls.VersionTLS12}
	default:
		return nil, fmt.Errorf("wire: base URL is %q, want scheme http or https", base)
	}
	t.address = net.JoinHostPort(u.Hostname(), port)
	return t, nil
}

// Trust has the target's connections be checked against roots, nil being the
// system's, or against nothing at all. It comes before the first connection.
func (t *Target) Trust(roots *x509.CertPool, insecure bool) {
	if t.tls != nil {
		t.tls.RootCAs, t.tls.InsecureSkipVerify = roots, insecure
	}
}

// Head prepares the head of POST requests to a route below the base URL, up to
// the value of Content-Length. Headers replace those that are there without
// them, User-Agent, Content-Type and Accept-Encoding, whatever their case: what
// is compressed is not read here, and without the last a server may compress.
func (t *Target) Head(route string, headers map[string]string) ([]byte, error) {
	all := map[string]string{"user-agent": "aloft-load/2", "content-type": "application/json", "accept-encoding": "identity"}
	for name, value := range headers {
		low := strings.ToLower(name)
		switch {
		case !isToken(name):
			return nil, fmt.Errorf("wire: %q is no name of a header", name)
		case low == "content-length" || low == "transfer-encoding" || low == "connection" || low == "host" || low == "expect":
			return nil, fmt.Errorf("wire: header %s is the connection's own", name)
		case strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }):
			return nil, fmt.Errorf("wire: the value of header %s has a control character", name)
		}
		all[low] = value
	}
	if strings.ContainsAny(route, " \r\n") {
		return nil, fmt.Errorf("wire: route %q has a space or a line break", route)
	}
	b := fmt.Appendf(nil, "POST %s%s HTTP/1.1\r\nHost: %s\r\n", t.prefix, route, t.host)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		b = fmt.Appendf(b, "%s: %s\r\n", name, all[name])
	}
	return append(b, "Content-Length: "...), nil
}

// isToken reports whether s is a token of RFC 9110, section 5.6.2.
func isToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0) {
			return false
		}
	}
	return s != ""
}
