// Package socket reads and writes sockets without telling the scheduler.
//
// A socket of Go's is non-blocking: no read or write of it waits. Yet package
// net announces each to the scheduler as one that may, and when one takes longer
// than 20 us, as a write to a loopback address does that delivers its bytes and
// wakes who waits for them, a thread of the runtime takes the processor away,
// wakes another thread for it, and keeps looking for more such calls. In a relay
// that was a fifth to a quarter of the CPU time of a request.
package socket
