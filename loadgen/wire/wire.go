// Package wire is the load generator's own HTTP/1.1 client: connections that
// are read whole, a clock at every read, and no allocation for an event of a
// stream. It shares nothing with the gateway's wire code.
package wire
