//go:build unix && (race || !linux)

package socket

import "syscall"

// The race detector learns from these that what was written before what was
// read. Systems other than Linux are only asked through their libraries.

func read(fd uintptr, p []byte) (int, syscall.Errno) {
	n, err := syscall.Read(int(fd), p)
	return n, errnoOf(err)
}

func write(fd uintptr, p []byte) (int, syscall.Errno) {
	n, err := syscall.Write(int(fd), p)
	return n, errnoOf(err)
}

func errnoOf(err error) syscall.Errno {
	errno, _ := err.(syscall.Errno) // always is one; nil = 0
	return errno
}
