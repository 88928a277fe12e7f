//go:build unix

package openaihttp

import (
	"io"
	"os"
	"syscall"
)

// rawReads says that read works here.
const rawReads = true

// read is one read of a socket. It does not wait: again says that there is
// nothing yet. The end is io.EOF.
func read(fd uintptr, p []byte) (n int, again bool, err error) {
	for {
		n, err = syscall.Read(int(fd), p)
		switch {
		case err == syscall.EINTR:
			continue
		case err == syscall.EAGAIN:
			return 0, true, nil
		case err != nil:
			return 0, false, os.NewSyscallError("read", err)
		case n == 0:
			return 0, false, io.EOF
		}
		return n, false, nil
	}
}
