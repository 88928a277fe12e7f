//go:build !linux

package main

import (
	"net"
	"time"
)

// nap sleeps.
func nap(d time.Duration) { time.Sleep(d) }

// hungUp cannot tell here.
func hungUp(net.Conn) bool { return false }
