//go:build !linux

package synthetic

// exactly is as exact as the runtime's timers here.
var exactly = timer
