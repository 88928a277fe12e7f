//go:build !linux

package loadgen

// machine is not known on this system.
func machine() (kernel, model string) { return "", "" }
