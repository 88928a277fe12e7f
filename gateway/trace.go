package gateway

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
)

// traceparent has 55 bytes in version 00 of W3C Trace Context:
// 00-TRACE-SPAN-FLAGS, in small hex digits.
const traceparentLen = 55

// maxState is the length up to which a tracestate is passed on, the least that
// W3C Trace Context wants.
const maxState = 512

// trace takes part in the client's trace, or begins one for the share of
// requests that Options say. The zero Trace: the request is not traced.
func (s *Server) trace(d *head) (t Trace) {
	share := s.opt.Telemetry.Sample
	if given := d.traceparent; len(given) > 0 && t.parse(given) {
		if len(d.tracestate) <= maxState {
			t.State = string(d.tracestate)
		}
	} else {
		if share <= 0 {
			return Trace{}
		}
		t = Trace{}
		binary.BigEndian.PutUint64(t.ID[:8], rand.Uint64())
		binary.BigEndian.PutUint64(t.ID[8:], rand.Uint64()|1) // never all zero
		// Decided from the id, as OpenTelemetry's TraceIDRatioBased does.
		t.Sampled = float64(binary.BigEndian.Uint64(t.ID[8:])>>1) < share*(1<<63)
	}
	binary.BigEndian.PutUint64(t.Span[:], rand.Uint64()|1)
	return t
}

// parse reads a traceparent. Later versions may be longer.
func (t *Trace) parse(b []byte) bool {
	if len(b) < traceparentLen || b[2] != '-' || b[35] != '-' || b[52] != '-' || len(b) > traceparentLen && b[55] != '-' {
		return false
	}
	var version, flags [1]byte
	if !digits(version[:], b[:2]) || !digits(t.ID[:], b[3:35]) || !digits(t.Parent[:], b[36:52]) || !digits(flags[:], b[53:55]) {
		return false
	}
	t.Sampled = flags[0]&1 == 1
	return version[0] != 0xff && (version[0] != 0 || len(b) == traceparentLen) && t.ID != [16]byte{} && t.Parent != [8]byte{}
}

// digits decodes small hex digits.
func digits(dst, src []byte) bool {
	for _, ch := range src {
		if ch >= 'A' && ch <= 'F' {
			return false
		}
	}
	_, err := hex.Decode(dst, src)
	return err == nil
}

// traceparent is what the engine gets: our span as its parent.
func (t *Trace) traceparent() string {
	b := append(make([]byte, 0, traceparentLen), "00-"...)
	b = hex.AppendEncode(b, t.ID[:])
	b = append(b, '-')
	b = hex.AppendEncode(b, t.Span[:])
	if t.Sampled {
		return string(append(b, "-01"...))
	}
	return string(append(b, "-00"...))
}
