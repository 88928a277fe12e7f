//go:build unix

package openaihttp

import "golang.org/x/sys/unix"

// quiet reports whether nothing is to be read from an unused connection: no
// bytes, which would be taken for the next reply, and no end. It does not wait.
func quiet(fd uintptr) bool {
	set := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(set[:], 0)
	return n == 0 && err == nil
}
