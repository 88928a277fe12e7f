//go:build unix

package socket

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"
)

// pair are the two ends of a TCP connection, the first one wrapped.
func pair(t *testing.T) (*Conn, *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	near, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { near.Close(); far.Close() })
	for _, end := range []net.Conn{near, far} { // the kernel would take megabytes
		err = errors.Join(err, end.(*net.TCPConn).SetReadBuffer(64<<10), end.(*net.TCPConn).SetWriteBuffer(64<<10))
	}
	if err != nil {
		t.Fatal(err)
	}
	c := Wrap(near)
	if c == nil {
		t.Fatal("a TCP connection has no socket")
	}
	return c, far.(*net.TCPConn)
}

// text has no period that a buffer's size could hide.
func text(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i % 251)
	}
	return b
}

// More than the kernel takes at once goes out whole, to a reader that begins
// only when the writer waits; and comes in whole.
func TestWholeBothWays(t *testing.T) {
	c, far := pair(t)
	want := text(2 << 20)
	wrote := make(chan error, 1)
	go func() {
		n, err := c.Write(want)
		if err == nil && n != len(want) {
			err = io.ErrShortWrite
		}
		wrote <- errors.Join(err, c.CloseWrite())
	}()
	select {
	case err := <-wrote:
		t.Fatalf("%d bytes that nobody read were taken: %v", len(want), err)
	case <-time.After(50 * time.Millisecond):
	}
	got, err := io.ReadAll(far)
	if err := errors.Join(err, <-wrote); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("%d bytes of %d came out, the same: %v; %v", len(got), len(want), bytes.Equal(got, want), err)
	}
	go func() { _, err := far.Write(want); wrote <- errors.Join(err, far.Close()) }()
	got, err = io.ReadAll(c)
	if err := errors.Join(err, <-wrote); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes of %d came in, the same: %v; %v", len(got), len(want), bytes.Equal(got, want), err)
	}
}

// A read and a write that wait end with the deadline and with Close, as package
// net's do, and what was written before is counted.
func TestWaitsEnd(t *testing.T) {
	big := text(2 << 20)
	for _, way := range []struct {
		what string
		do   func(c *Conn) (int, error)
		most int
	}{
		{"read", func(c *Conn) (int, error) { return c.Read(make([]byte, 10)) }, 0},
		{"write", func(c *Conn) (int, error) { return c.Write(big) }, len(big) - 1},
	} {
		c, _ := pair(t)
		c.SetDeadline(time.Now().Add(20 * time.Millisecond))
		n, err := way.do(c)
		var timeout net.Error
		if !errors.Is(err, os.ErrDeadlineExceeded) || !errors.As(err, &timeout) || !timeout.Timeout() || n > way.most || way.most > 0 && n == 0 {
			t.Errorf("%s past its deadline: %d bytes, %v", way.what, n, err)
		}
		c, _ = pair(t)
		time.AfterFunc(20*time.Millisecond, func() { c.Close() })
		if n, err := way.do(c); !errors.Is(err, net.ErrClosed) || n > way.most {
			t.Errorf("%s of a closed connection: %d bytes, %v", way.what, n, err)
		}
	}
}

func TestEnds(t *testing.T) {
	c, far := pair(t)
	if n, err := c.Read(nil); n != 0 || err != nil {
		t.Errorf("a read of nothing: %d, %v", n, err)
	}
	far.CloseWrite()
	if n, err := c.Read(make([]byte, 10)); n != 0 || err != io.EOF {
		t.Errorf("a read at the end: %d, %v", n, err)
	}
	far.SetLinger(0)
	far.Close() // resets
	var err error
	for err == nil {
		_, err = c.Write([]byte("x"))
	}
	if !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a write to who has reset the connection: %v", err)
	}
	inner, outer := net.Pipe()
	defer inner.Close()
	defer outer.Close()
	if Wrap(inner) != nil {
		t.Error("a pipe in memory has no socket")
	}
}

func TestReadDoesNotWait(t *testing.T) {
	c, far := pair(t)
	look := func() (n int, again bool, err error) {
		if failed := c.Raw().Control(func(fd uintptr) { n, again, err = Read(fd, make([]byte, 10)) }); failed != nil {
			t.Fatal(failed)
		}
		return n, again, err
	}
	if n, again, err := look(); n != 0 || !again || err != nil {
		t.Errorf("nothing there: %d, again %v, %v", n, again, err)
	}
	far.Write([]byte("abc"))
	n, again, err := look()
	for again {
		n, again, err = look()
	}
	if n != 3 || err != nil {
		t.Errorf("three bytes there: %d, %v", n, err)
	}
}

func TestNoAllocation(t *testing.T) {
	c, far := pair(t)
	out, in := []byte("ping"), make([]byte, 10)
	if n := testing.AllocsPerRun(100, func() {
		c.Write(out)
		io.ReadFull(far, in[:len(out)])
		far.Write(out)
		c.Read(in)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
