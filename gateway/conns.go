package gateway

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"aloft/backends/openai"
	"aloft/backends/socket"

	"github.com/valyala/fasthttp"
)

const (
	// writePiece is how much of a reply a client must take within WriteTimeout:
	// however long a reply, a reader that goes on at 64 KiB per WriteTimeout gets
	// all of it, and one that stops is cut.
	writePiece = 64 << 10
	// lingerTime and lingerBytes bound what is read and dropped of a refused body
	// after the answer: closing with unread data resets the connection, and the
	// client would not see why. The time is nginx's lingering_time.
	lingerTime  = 30 * time.Second
	lingerBytes = 1 << 30
	// corkMost is how much is held back at most for what follows at once.
	corkMost = 32 << 10
	// refuseTime bounds the writing of a refusal at accept. A new connection has
	// room for it, so it never waits; accepting must not.
	refuseTime = 10 * time.Millisecond
	// headMost is the longest request head, as proxies have it. Each open stream
	// keeps a buffer of this size.
	headMost = 8 << 10
	// bodyRate is how slow, in bytes per second, a body may come at worst.
	bodyRate = 128 << 10
)

// bodyTime is how long the reading of a body may take that announces length
// bytes (negative: it does not).
func bodyTime(base time.Duration, length int) time.Duration {
	return base + time.Duration(max(length, 0)/bodyRate)*time.Second
}

// listener counts the connections and refuses those over the limits.
type listener struct {
	net.Listener
	limits  ConnLimits
	patient time.Duration // Options.WriteTimeout
	slack   time.Duration // by which a read deadline may come early
	speaks  bool          // a refusal can be told: not over TLS
	door    *door
}

// door is who is in.
type door struct {
	shut    atomic.Bool // the server stops: no connection lingers
	mu      sync.Mutex
	open    int
	from    map[netip.Addr]int
	refused atomic.Int64
}

func newDoor() *door { return &door{from: map[netip.Addr]int{}} }

// enter takes a place for a connection from addr.
func (d *door) enter(addr netip.Addr, l ConnLimits) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if l.All > 0 && d.open >= l.All || l.PerAddress > 0 && d.from[addr] >= l.PerAddress {
		d.refused.Add(1)
		return false
	}
	d.open++
	d.from[addr]++
	return true
}

func (d *door) leave(addr netip.Addr) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open--
	if d.from[addr]--; d.from[addr] == 0 {
		delete(d.from, addr)
	}
}

// site is whom a connection counts for: an IPv4 address, or the /64 that one
// IPv6 host commonly has to itself. The zero Addr stands for what has no address.
func site(a net.Addr) netip.Addr {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	ip := t.AddrPort().Addr().Unmap().WithZone("")
	if ip.Is6() {
		p, _ := ip.Prefix(64) // 64 bits always fit
		return p.Addr()
	}
	return ip
}

// Accept returns the next connection within the limits.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		from := site(c.RemoteAddr())
		if l.door.enter(from, l.limits) {
			boundUnsent(c)
			if w := socket.Wrap(c); w != nil {
				c = w
			}
			return &conn{Conn: c, patient: l.patient, slack: l.slack, speaks: l.speaks, from: from, door: l.door}, nil
		}
		if l.speaks {
			_ = c.SetWriteDeadline(time.Now().Add(refuseTime))
			_, _ = c.Write(refusal()) // whether it is read is the client's matter
		}
		c.Close()
	}
}

// conn is a client's connection. It has its own deadline for writing, since
// fasthttp's are for a whole reply and would cut what is long rather than what
// has stopped.
type conn struct {
	net.Conn
	patient time.Duration
	from    netip.Addr
	door    *door

	wanted, armed time.Time     // read deadlines: what was asked for, what the socket has
	slack         time.Duration // by which reads may be cut short
	speaks        bool          // as listener's

	blank   atomic.Int64 // bytes of line ends that came last
	asks    atomic.Bool  // a request has begun to come, and nothing of it was answered
	limit   atomic.Int64 // the write deadline in force, Unix nanoseconds; 0 = not ours
	corked  bool         // writes are held: another follows at once
	held    *[]byte      // nil = none
	lingers atomic.Bool  // for who still sends and reads: not after an error of either
	closing sync.Once
	closed  error
	known   knownFD
}

// NetConn returns the connection beneath, for its descriptor.
func (c *conn) NetConn() net.Conn { return c.Conn }

// corks are the buffers of what is held.
var corks = sync.Pool{New: func() any { return new([]byte) }}

// cork says whether what is written next waits for what is written after it.
// Like writing it is for one goroutine at a time. nil holds nothing.
func (c *conn) cork(on bool) {
	if c != nil {
		c.corked = on
	}
}

// flush writes what is held.
func (c *conn) flush() error {
	if c == nil || c.held == nil {
		return nil
	}
	held := c.held
	c.held = nil
	_, err := c.out(*held)
	*held = (*held)[:0]
	corks.Put(held)
	return err
}

// Write writes at once what is held and p, or holds p, too.
func (c *conn) Write(p []byte) (int, error) {
	if c.held == nil && !c.corked {
		return c.out(p)
	}
	if c.held == nil {
		c.held = corks.Get().(*[]byte)
	}
	fits := len(*c.held)+len(p) <= corkMost
	if fits {
		*c.held = append(*c.held, p...)
		if c.corked {
			return len(p), nil
		}
	}
	if err := c.flush(); err != nil {
		return 0, err
	}
	if fits {
		return len(p), nil
	}
	return c.out(p)
}

// out writes in pieces, each with its own deadline.
func (c *conn) out(p []byte) (n int, err error) {
	for {
		piece := p[n:min(len(p), n+writePiece)]
		if err := c.extend(time.Now()); err != nil {
			return n, err
		}
		m, err := c.Conn.Write(piece)
		n += m
		if err != nil {
			c.lingers.Store(false)
		}
		if err != nil || n == len(p) {
			return n, err
		}
	}
}

// extend moves the deadline on. A quarter of the time may pass before it is set
// anew: most writes cost no timer.
func (c *conn) extend(now time.Time) error {
	if c.limit.Load()-now.UnixNano() >= int64(c.patient)*3/4 {
		return nil
	}
	limit := now.Add(c.patient)
	c.limit.Store(limit.UnixNano())
	return c.Conn.SetWriteDeadline(limit)
}

// Read waits for the client no longer than the deadline says.
func (c *conn) Read(p []byte) (int, error) {
	if ahead := c.wanted.Sub(c.armed); ahead < 0 || ahead > c.slack {
		if err := c.Conn.SetReadDeadline(c.wanted); err != nil {
			return 0, err
		}
		c.armed = c.wanted
	}
	n, err := c.Conn.Read(p)
	if err != nil {
		c.lingers.Store(false)
	}
	text := len(bytes.TrimRight(p[:n], "\r\n"))
	if text > 0 {
		c.blank.Store(int64(n - text))
	} else {
		c.blank.Add(int64(n))
	}
	return n, err
}

// SetReadDeadline is for the goroutine that reads, and in force from the next
// Read on. fasthttp sets three for each request, of which at most one is waited
// for, and the kernel's timer moves only where it makes a difference.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.wanted = t
	return nil
}

// SetDeadline sets the read deadline only: writes have their own.
func (c *conn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

// SetWriteDeadline does nothing: each write sets its own.
func (c *conn) SetWriteDeadline(time.Time) error { return nil }

// Close gives the place back, once. A connection that lingers first says that
// nothing more will come, then reads on for a while.
func (c *conn) Close() error {
	c.closing.Do(func() {
		defer c.door.leave(c.from)
		if c.speaks && c.asks.Load() && c.blank.Load() >= headMost {
			// fasthttp takes so many line ends for the end, and says nothing.
			c.lingers.Store(true)
			_, _ = c.out(bare(&openai.Error{Status: 400, Type: "invalid_request_error", Message: unreadable}, ""))
		}
		if half, ok := c.Conn.(interface{ CloseWrite() error }); ok && c.lingers.Load() && !c.door.shut.Load() && half.CloseWrite() == nil {
			_ = c.Conn.SetReadDeadline(time.Now().Add(lingerTime))
			_, _ = io.CopyN(io.Discard, c.Conn, lingerBytes)
		}
		c.closed = c.Conn.Close()
	})
	return c.closed
}

// readAhead is how much of a body fasthttp reads before a handler. More may be
// unread when it closes, and closing then would take the answer back with it.
const readAhead = 8 << 10

// lingering handles a request; if its body may be left unread, the connection
// lingers when it is closed. A body that came too slowly gets no more time.
func (s *Server) lingering(h fasthttp.RequestHandler) fasthttp.RequestHandler {
	return func(c *fasthttp.RequestCtx) {
		// A client that sent its next request before this reply was whole gets the
		// end of that reply now, not with the next one.
		_ = beneath(c.Conn()).flush() // an error comes again with the next write
		if unframed(&c.Request.Header) {
			c.SetConnectionClose()
			c.Request.Header.Del("Access-Control-Request-Method") // else it might be a preflight
			s.unread(c, errUnframed)
			return
		}
		n := c.Request.Header.ContentLength()
		h(c)
		linger(c.Conn(), (n == -1 || n > readAhead) && c.Response.StatusCode() != fasthttp.StatusRequestTimeout)
	}
}

var errUnframed = errors.New("a transfer coding without chunked")

// unframed reports whether a request names a transfer coding, but none that
// tells where its body ends. fasthttp refuses all but "identity", which it
// takes for none: what follows would be the next request, and somebody else's
// in front of us part of this one (RFC 9112 section 6.3: 400, and close).
func unframed(h *fasthttp.RequestHeader) bool {
	if n := h.ContentLength(); n == -1 || n > 0 && !h.ConnectionClose() { // it closes where both are there
		return false
	}
	const name = "transfer-encoding:"
	for rest := h.RawHeaders(); len(rest) > len(name); {
		line, more, _ := bytes.Cut(rest, []byte{'\n'})
		if rest = more; len(line) > len(name) && line[0]|0x20 == 't' && bytes.EqualFold(line[:len(name)], []byte(name)) {
			return !bytes.EqualFold(bytes.TrimSpace(line[len(name):]), []byte("chunked"))
		}
	}
	return false
}

// linger says whether the closing of c, or of what is beneath, waits for the
// client, now that there is an answer.
func linger(c net.Conn, on bool) {
	if own := beneath(c); own != nil {
		own.asks.Store(false)
		own.lingers.Store(on)
	}
}

// turned follows a connection from request to request.
func turned(c net.Conn, to fasthttp.ConnState) {
	if own := beneath(c); own != nil && to == fasthttp.StateActive {
		own.asks.Store(true)
	}
}

// beneath is the conn that c is, or has under its TLS; nil = none.
func beneath(c net.Conn) *conn {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	own, _ := c.(*conn)
	return own
}

// Connections returns how many are open and how many were refused at accept.
func (s *Server) Connections() (open int, refused int64) {
	s.door.mu.Lock()
	defer s.door.mu.Unlock()
	return s.door.open, s.door.refused.Load()
}

// refusal is the answer to a connection over the limits.
func refusal() []byte {
	return bare(&openai.Error{
		Status: 503, Type: "server_error", Code: "too_many_connections", Message: "too many connections are open",
	}, "Retry-After: 1\r\nRetry-After-Ms: 1000\r\nX-Aloft-Reason: "+reasonConns+"\r\n")
}

// bare is the last answer of a connection, where there is no exchange.
func bare(e *openai.Error, fields string) []byte {
	body := openai.AppendError(nil, e)
	return fmt.Appendf(nil, "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%sX-Request-Id: %s\r\nConnection: close\r\n\r\n%s",
		e.Status, fasthttp.StatusMessage(e.Status), len(body), fields, newID(), body)
}
