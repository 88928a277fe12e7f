package openaihttp

import (
	"errors"
	"fmt"
	"net"
	"syscall"
	"testing"
	"time"

	"aloft/backends"
)

// An engine that takes no connection costs a call its connect deadline, not the
// minutes of the kernel's own. Linux drops the SYNs of a listener whose backlog is full.
func TestConnectDeadline(t *testing.T) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	if err := errors.Join(syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), syscall.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	at, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	addr := fmt.Sprintf("127.0.0.1:%d", at.(*syscall.SockaddrInet4).Port)
	for full := 0; ; full++ { // nobody accepts
		c, err := net.DialTimeout("tcp", addr, time.Second)
		if err != nil {
			break
		}
		defer c.Close()
		if full == 10 {
			t.Skip("this kernel takes connections beyond the backlog")
		}
	}
	const limit = 100 * time.Millisecond
	began := time.Now()
	_, err = New(Options{BaseURL: "http://" + addr, ConnectTimeout: limit}).Do(t.Context(), plainCall)
	if took := time.Since(began); !errors.Is(err, backends.ErrConnect) || took < limit || took > time.Minute {
		t.Errorf("%v after %v, want %v after %v", err, took, backends.ErrConnect, limit)
	}
}
