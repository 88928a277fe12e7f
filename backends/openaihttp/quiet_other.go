//go:build !unix

package openaihttp

// quiet cannot tell here, so that no connection is used twice.
func quiet(uintptr) bool { return false }
