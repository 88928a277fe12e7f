//go:build !unix

package openaihttp

// rawReads is false: a socket cannot be read without waiting here, so that no
// connection is used twice.
const rawReads = false

func read(uintptr, []byte) (int, bool, error) { panic("BUG: no raw reads here") }
