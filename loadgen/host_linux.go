package loadgen

import (
	"bytes"
	"os"

	"golang.org/x/sys/unix"
)

// machine is the kernel's release and the processor's name, "" where unknown.
func machine() (kernel, model string) {
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		kernel = unix.ByteSliceToString(name.Release[:])
	}
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return kernel, ""
	}
	for line := range bytes.Lines(text) {
		if key, value, ok := bytes.Cut(line, []byte(":")); ok && string(bytes.TrimSpace(key)) == "model name" {
			return kernel, string(bytes.TrimSpace(value))
		}
	}
	return kernel, ""
}
