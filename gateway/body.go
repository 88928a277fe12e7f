package gateway

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"

	"aloft/backends"
	"aloft/backends/openai"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/valyala/fasthttp"
)

const (
	// wholeAlloc is up to which size a body's announced length is believed and
	// allocated at once; beyond it memory grows with the bytes that came.
	wholeAlloc = 64 << 10
	// bodiesMost is how many bodies of MaxBody may be under way at once. Larger
	// ones than wholeAlloc share that memory; small ones need no leave.
	bodiesMost = 32
)

// weight is what a body takes of the memory for bodies as long as it lives.
func weight(body []byte) int64 {
	if len(body) <= wholeAlloc {
		return 0
	}
	return int64(len(body))
}

// weighed is a large body on its way in.
type weighed struct {
	r     io.Reader
	s     *Server
	taken int64
}

func (w *weighed) Read(b []byte) (int, error) {
	n, err := w.r.Read(b)
	w.taken += int64(n)
	if w.s.bodies.Add(int64(n)) > bodiesMost*int64(w.s.opt.MaxBody) {
		return n, fmt.Errorf("the large requests under way fill the memory for them: %w", backends.ErrOverloaded)
	}
	return n, err
}

// readBody reads a JSON body into memory of its own: it outlives the handler.
func (s *Server) readBody(c *fasthttp.RequestCtx) ([]byte, error) {
	if t := c.Request.Header.ContentType(); len(t) > 0 && !isJSON(t) {
		return nil, unsupported("content type %q is not supported, want application/json", t)
	}
	return s.readAny(c)
}

// readForm reads a multipart body.
func (s *Server) readForm(c *fasthttp.RequestCtx) ([]byte, error) {
	if t := c.Request.Header.ContentType(); !isForm(t) {
		return nil, unsupported("content type %q is not supported, want multipart/form-data", t)
	}
	return s.readAny(c)
}

// readAny reads a body of at most MaxBody bytes, also once it is unpacked. Of
// one that is refused the rest is left to the closing connection, so that it
// holds nobody up. What is returned weighs on s.bodies until its owner lets go.
func (s *Server) readAny(c *fasthttp.RequestCtx) ([]byte, error) {
	encoding := strings.ToLower(string(c.Request.Header.ContentEncoding()))
	switch encoding {
	case "", "identity", "gzip", "zstd":
	default:
		return nil, unsupported("content encoding %.40q is not supported, want gzip or zstd", encoding)
	}
	body, taken, err := s.readRaw(c)
	if err == nil && (encoding == "gzip" || encoding == "zstd") {
		body, err = unpack(encoding, body, s.opt.MaxBody)
	}
	if err != nil {
		body = nil
	}
	s.bodies.Add(weight(body) - taken)
	return body, err
}

// readRaw says also what it has taken of s.bodies.
func (s *Server) readRaw(c *fasthttp.RequestCtx) (body []byte, taken int64, err error) {
	n := c.Request.Header.ContentLength()
	if n > s.opt.MaxBody {
		c.SetConnectionClose() // with all of it unread; see lingering
		return nil, 0, tooLarge(s.opt.MaxBody)
	}
	stream := c.RequestBodyStream()
	if stream == nil {
		return nil, 0, nil
	}
	if n >= 0 && n <= min(wholeAlloc, s.opt.MaxBody) {
		body = make([]byte, n, 2*n+64) // with room for rewrite
		_, err = io.ReadFull(stream, body)
		return body, 0, readFault(err)
	}
	w := &weighed{r: io.LimitReader(stream, int64(s.opt.MaxBody)+1), s: s}
	body, err = io.ReadAll(w)
	switch {
	case errors.Is(err, backends.ErrOverloaded):
		c.SetConnectionClose()
		return nil, w.taken, err
	case len(body) > s.opt.MaxBody:
		c.SetConnectionClose() // with the rest unread; see lingering
		return nil, w.taken, tooLarge(s.opt.MaxBody)
	case err == nil && n > len(body):
		err = io.ErrUnexpectedEOF
	}
	return body, w.taken, readFault(err)
}

// unpack decodes a body of at most limit bytes; a bomb is not decoded further.
func unpack(encoding string, packed []byte, limit int) ([]byte, error) {
	var r io.Reader
	var err error
	if encoding == "gzip" {
		r, err = gzip.NewReader(bytes.NewReader(packed))
	} else {
		var z *zstd.Decoder
		z, err = zstd.NewReader(bytes.NewReader(packed), zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(uint64(limit)+1<<20))
		if err == nil {
			defer z.Close()
		}
		r = z
	}
	var body []byte
	if err == nil {
		body, err = io.ReadAll(io.LimitReader(r, int64(limit)+1))
	}
	switch {
	case len(body) > limit || errors.Is(err, zstd.ErrDecoderSizeExceeded) || errors.Is(err, zstd.ErrWindowSizeExceeded):
		return nil, tooLarge(limit)
	case err != nil:
		return nil, invalid("", "", "the request body is not valid %s", encoding)
	}
	return body, nil
}

func isForm(contentType []byte) bool {
	return bytes.EqualFold(kindOf(contentType), []byte("multipart/form-data"))
}

// kindOf is a media type without its parameters.
func kindOf(contentType []byte) []byte {
	kind, _, _ := bytes.Cut(contentType, []byte{';'})
	return bytes.TrimSpace(kind)
}

func isJSON(contentType []byte) bool {
	kind := kindOf(contentType)
	return bytes.EqualFold(kind, []byte("application/json")) || bytes.HasSuffix(kind, []byte("+json"))
}

// readFault is what a request that could not be read is answered with.
func readFault(err error) error {
	if err == nil { // before the variables below are made
		return nil
	}
	var small *fasthttp.ErrSmallBuffer
	var timeout net.Error
	switch {
	case errors.As(err, &small):
		return &openai.Error{Status: 431, Type: "invalid_request_error", Code: "headers_too_large", Message: "the request's headers are too large"}
	case errors.Is(err, fasthttp.ErrBodyTooLarge):
		return &openai.Error{Status: 413, Type: "invalid_request_error", Code: "request_too_large", Message: "the request body is too large"}
	case errors.As(err, &timeout) && timeout.Timeout():
		return &openai.Error{Status: 408, Type: "invalid_request_error", Code: "request_timeout", Message: "the request did not arrive in time"}
	}
	return &openai.Error{Status: 400, Type: "invalid_request_error", Message: "the request could not be read: it is not valid HTTP or broke off"}
}

func tooLarge(limit int) error {
	return &openai.Error{
		Status: 413, Type: "invalid_request_error", Code: "request_too_large",
		Message: fmt.Sprintf("the request body is larger than %d bytes", limit),
	}
}

func unsupported(format string, args ...any) error {
	return &openai.Error{
		Status: 415, Type: "invalid_request_error", Code: "unsupported_media_type", Message: fmt.Sprintf(format, args...),
	}
}

// newID makes a request id: 96 random bits.
func newID() string {
	var random [12]byte
	binary.NativeEndian.PutUint64(random[:8], rand.Uint64())
	binary.NativeEndian.PutUint32(random[8:], rand.Uint32())
	return string(hex.AppendEncode(append(make([]byte, 0, 32), "req_"...), random[:]))
}
