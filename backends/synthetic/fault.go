package synthetic

import (
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"

	"aloft/backends/openai"
)

// faultHeader asks for a fault of one request.
const faultHeader = "X-Synthetic-Fault"

// faults are what an engine can do wrong: the process ends; it never answers;
// it answers 500; the connection is reset after a few events; it is closed
// after a few events, or in the middle of a reply, without a proper end.
var faults = map[string]bool{"crash": true, "hang": true, "error500": true, "reset-mid-stream": true, "truncate": true}

// faultAfter is how many events a cut stream still carries.
const faultAfter = 3

// faulty returns the middleware that makes faults happen on cue.
func faulty(o Options) func(http.Handler) http.Handler {
	var n atomic.Int64
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fault := r.Header.Get(faultHeader)
			if count := n.Add(1); fault == "" && o.FaultEvery > 0 && count%int64(o.FaultEvery) == 0 {
				fault = o.Fault
			}
			switch fault {
			case "":
				next.ServeHTTP(w, r)
			case "crash":
				o.Crash()
			case "hang":
				// net/http watches for the client's end only once the body is read.
				io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, 32<<20))
				<-r.Context().Done()
			case "error500":
				writeError(w, &openai.Error{Status: 500, Type: "server_error", Code: "internal_error", Message: "synthetic fault"})
			case "reset-mid-stream", "truncate":
				next.ServeHTTP(&cutter{ResponseWriter: w, reset: fault == "reset-mid-stream"}, r)
			default:
				writeError(w, openai.Invalid("", openai.CodeValue, "header %s: unknown fault %q", faultHeader, fault))
			}
		})
	}
}

func writeError(w http.ResponseWriter, e *openai.Error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(e.Status)
	w.Write(openai.AppendError(nil, e)) // a client that left needs no answer
}

// cutter breaks a reply off: a stream after faultAfter events, another reply in
// its middle.
type cutter struct {
	http.ResponseWriter
	reset  bool
	events int
}

// Unwrap lets http.ResponseController through.
func (c *cutter) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// Write implements http.ResponseWriter.
func (c *cutter) Write(p []byte) (int, error) {
	if strings.HasPrefix(c.Header().Get("Content-Type"), "text/event-stream") {
		if c.events++; c.events <= faultAfter {
			return c.ResponseWriter.Write(p)
		}
	} else {
		c.ResponseWriter.Write(p[:len(p)/2]) // the rest is lost on purpose
	}
	rc := http.NewResponseController(c.ResponseWriter)
	if err := rc.Flush(); err != nil || !c.reset {
		panic(http.ErrAbortHandler) // closes the connection without an end
	}
	conn, _, err := rc.Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // close sends RST; without it the close is a plain one
	}
	conn.Close()
	return 0, errors.New("synthetic fault: connection reset")
}
