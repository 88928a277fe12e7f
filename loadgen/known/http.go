package known

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// maxConns bounds the connections of a server; further ones are closed.
	maxConns = 1 << 14
	// maxBody bounds a request's body, in bytes.
	maxBody = 64 << 20
	// readSize is a connection's buffer, and the longest line of a head, in bytes.
	readSize = 8 << 10
)

// conn is one client's connection. It knows of HTTP/1.1 what generators send:
// requests with a Content-Length or without a body, connections that are kept.
// net/http is not used, so that what a server did and when is known to the write.
type conn struct {
	net.Conn
	r    *bufio.Reader
	path []byte // of the request, reused by the next one
	body []byte
	sign sign // of the request; read only with signs

	signs   bool          // the head is read for who sends
	opened  time.Time     // when it was accepted; zero once it has had a request
	stamped bool          // the kernel tells when requests came in
	slow    time.Duration // wait between reads of slowRead bytes of a body
}

// sign is what a head says of who sends, as it stands there.
type sign struct{ key, class, deadline string }

// slowRead is how much of a body a slow reader takes at once, in bytes.
const slowRead = 64 << 10

// next reads one request and says when its client began to send it: when its first
// byte was there, or, of a connection's first, the connection. A client that has
// none sends by opening one.
func (c *conn) next() (arrived time.Time, err error) {
	if c.stamped && c.r.Buffered() == 0 {
		arrived = cameIn(c.Conn)
	}
	if _, err := c.r.Peek(1); err != nil {
		return time.Time{}, err
	}
	if arrived.IsZero() {
		arrived = time.Now()
	}
	if !c.opened.IsZero() && c.opened.Before(arrived) {
		arrived = c.opened
	}
	c.opened = time.Time{}
	line, err := c.r.ReadSlice('\n')
	if err != nil {
		return arrived, fmt.Errorf("read request line: %w", err)
	}
	_, rest, _ := bytes.Cut(line, []byte(" "))
	path, _, ok := bytes.Cut(rest, []byte(" "))
	if !ok {
		return arrived, fmt.Errorf("request line is %q", line)
	}
	c.path, c.sign = append(c.path[:0], path...), sign{}
	length, err := c.fields()
	if err != nil {
		return arrived, err
	}
	return arrived, c.readBody(length)
}

var contentLength = []byte("content-length:")

// fields reads the rest of a head and returns the body's length.
func (c *conn) fields() (length int, err error) {
	for {
		line, err := c.r.ReadSlice('\n')
		if err != nil {
			return 0, fmt.Errorf("read head: %w", err)
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			return length, nil
		}
		if n := len(contentLength); len(line) > n && bytes.EqualFold(line[:n], contentLength) {
			length, err = strconv.Atoi(string(bytes.TrimSpace(line[n:])))
			if err != nil || length < 0 || length > maxBody {
				return 0, fmt.Errorf("body of %q bytes, want 0 to %d", line[n:], maxBody)
			}
		}
		if c.signs {
			c.sign.read(line)
		}
	}
}

func (s *sign) read(line []byte) {
	name, value, _ := strings.Cut(string(line), ":")
	value = strings.TrimSpace(value)
	switch strings.ToLower(name) {
	case "authorization":
		s.key = strings.TrimPrefix(value, "Bearer ")
	case "x-aloft-priority":
		s.class = value
	case "x-aloft-deadline-ms":
		s.deadline = value
	}
}

func (c *conn) readBody(length int) error {
	if cap(c.body) < length {
		c.body = make([]byte, length)
	}
	c.body = c.body[:length]
	if c.slow == 0 {
		_, err := io.ReadFull(c.r, c.body)
		return err
	}
	for left := c.body; len(left) > 0; {
		n := min(len(left), slowRead)
		if _, err := io.ReadFull(c.r, left[:n]); err != nil {
			return err
		}
		left = left[n:]
		time.Sleep(c.slow)
	}
	return nil
}

// serve gives every connection to handle, in a goroutine of its own, until ctx
// ends; then it closes them all and returns when they are through.
func serve(ctx context.Context, l net.Listener, handle func(*conn)) error {
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	ended := false
	stop := context.AfterFunc(ctx, func() {
		mu.Lock()
		defer mu.Unlock()
		ended = true
		l.Close()
		for c := range open {
			c.Close()
		}
	})
	defer stop()
	var all sync.WaitGroup
	defer all.Wait()
	for {
		c, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("known: accept: %w", err)
		}
		opened := time.Now()
		mu.Lock()
		if full := len(open) >= maxConns; full || ended {
			c.Close()
		} else {
			open[c] = true
			all.Go(func() {
				defer func() {
					c.Close()
					mu.Lock()
					delete(open, c)
					mu.Unlock()
				}()
				handle(&conn{Conn: c, opened: opened, r: bufio.NewReaderSize(c, readSize)})
			})
		}
		mu.Unlock()
	}
}

// until waits for an absolute time.
func until(at time.Time) { time.Sleep(time.Until(at)) }

// stays waits for an absolute time and reports whether the client is there all
// the while. It sends nothing before it has its answer.
func (c *conn) stays(at time.Time) bool {
	if c.SetReadDeadline(at) != nil {
		return false
	}
	_, err := c.r.Peek(1)
	return errors.Is(err, os.ErrDeadlineExceeded) && c.SetReadDeadline(time.Time{}) == nil
}

// reset makes Close send a reset instead of an orderly end.
func (c *conn) reset() error {
	tcp, ok := c.Conn.(*net.TCPConn)
	if !ok {
		return errors.New("no TCP connection")
	}
	return tcp.SetLinger(0)
}
