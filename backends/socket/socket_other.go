//go:build !unix

package socket

import (
	"errors"
	"net"
	"syscall"
)

// Conn is a connection of package net; there is none here.
type Conn struct{ net.Conn }

// Wrap returns nil: package net's own reads and writes have to do here.
func Wrap(net.Conn) *Conn { return nil }

// Raw is the socket, for calls of other kinds.
func (c *Conn) Raw() syscall.RawConn { return nil }

// Read is one read of a socket.
func Read(uintptr, []byte) (n int, again bool, err error) { return 0, false, errors.ErrUnsupported }
