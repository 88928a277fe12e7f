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
	"sync"

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
	// bodiesMost is how many times MaxBody the bodies above wholeAlloc that are
	// under way may take together. By default it is 512 MiB, and with the
	// collector's garbage twice that at worst: a server of 2 GB lives.
	bodiesMost = 16
	// copies is how often a body is in memory: in pieces and joined, and then
	// as it came and as the engine gets it.
	copies = 2
)

// weight is what a body takes of the memory for bodies as long as it lives.
func weight(body []byte) int64 {
	if len(body) <= wholeAlloc {
		return 0
	}
	return copies * int64(len(body))
}

// errBodies refuses a large body for now.
var errBodies = fmt.Errorf("the large requests under way fill the memory for them: %w", backends.ErrOverloaded)

// bodiesLimit is how many bytes large bodies may take together.
func (s *Server) bodiesLimit() int64 { return bodiesMost * int64(s.opt.MaxBody) }

// weighed is a large body on its way in.
type weighed struct {
	r     io.Reader
	s     *Server
	taken int64 // of s.bodies
}

func (w *weighed) Read(b []byte) (int, error) {
	n, err := w.r.Read(b)
	w.taken += copies * int64(n)
	if w.s.bodies.Add(copies*int64(n)) > w.s.bodiesLimit() {
		return n, errBodies
	}
	return n, err
}

// pieces are what bodies of unknown length are read into: a buffer that grows
// leaves its smaller selves behind as garbage, three times what came in all.
var pieces = sync.Pool{New: func() any { return new([wholeAlloc]byte) }}

// all reads to the end of the body, or past limit.
func (w *weighed) all(limit int) ([]byte, error) {
	var held []*[wholeAlloc]byte
	defer func() {
		for _, p := range held {
			pieces.Put(p)
		}
	}()
	n := 0
	r := io.LimitReader(w, int64(limit)+1)
	for {
		if n == len(held)*wholeAlloc {
			held = append(held, pieces.Get().(*[wholeAlloc]byte))
		}
		m, err := r.Read(held[len(held)-1][n%wholeAlloc:])
		n += m
		switch {
		case err != nil && err != io.EOF:
			return nil, err
		case n > limit:
			return nil, tooLarge(limit)
		case err == nil:
			continue
		}
		body := make([]byte, 0, n)
		for _, p := range held {
			body = append(body, p[:min(len(p), n-len(body))]...)
		}
		return body, nil
	}
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
	packed := encoding == "gzip" || encoding == "zstd"
	n, most := c.Request.Header.ContentLength(), s.opt.MaxBody
	if n > most {
		c.SetConnectionClose() // with all of it unread; see lingering
		return nil, tooLarge(most)
	}
	stream := c.RequestBodyStream()
	if stream == nil {
		return nil, nil
	}
	if n >= 0 && n <= min(wholeAlloc, most) && !packed {
		body := make([]byte, n, 2*n+64) // with room for rewrite
		_, err := io.ReadFull(stream, body)
		return body, readFault(err)
	}
	w := &weighed{r: stream, s: s}
	body, err := w.all(most)
	if err == nil && n > len(body) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		if err = readFault(err); faultOf(err).Status != 408 {
			c.SetConnectionClose() // with the rest unread; see lingering
		}
	} else if packed {
		body, err = w.unpack(encoding, body)
	}
	if err != nil {
		body = nil
	}
	s.bodies.Add(weight(body) - w.taken)
	return body, err
}

// unpack decodes a body of at most MaxBody bytes; a bomb is not decoded further.
func (w *weighed) unpack(encoding string, packed []byte) (body []byte, err error) {
	limit := w.s.opt.MaxBody
	if encoding == "gzip" {
		w.r, err = gzip.NewReader(bytes.NewReader(packed))
	} else {
		var z *zstd.Decoder
		z, err = zstd.NewReader(bytes.NewReader(packed), zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(uint64(limit)+1<<20))
		if err == nil {
			defer z.Close()
		}
		w.r = z
	}
	if err == nil {
		body, err = w.all(limit)
	}
	var refused *openai.Error
	switch {
	case err == nil, errors.Is(err, backends.ErrOverloaded), errors.As(err, &refused):
		return body, err
	case errors.Is(err, zstd.ErrDecoderSizeExceeded), errors.Is(err, zstd.ErrWindowSizeExceeded):
		return nil, tooLarge(limit)
	}
	return nil, invalid("", "", "the request body is not valid %s", encoding)
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

const unreadable = "the request could not be read: it is not valid HTTP or broke off"

// readFault is what a request that could not be read is answered with.
func readFault(err error) error {
	if err == nil { // before the variables below are made
		return nil
	}
	var small *fasthttp.ErrSmallBuffer
	var timeout net.Error
	var refused *openai.Error
	switch {
	case errors.Is(err, backends.ErrOverloaded), errors.As(err, &refused):
		return err
	case errors.As(err, &small):
		return &openai.Error{Status: 431, Type: "invalid_request_error", Code: "headers_too_large", Message: "the request's headers are too large"}
	case errors.Is(err, fasthttp.ErrBodyTooLarge):
		return &openai.Error{Status: 413, Type: "invalid_request_error", Code: "request_too_large", Message: "the request body is too large"}
	case errors.As(err, &timeout) && timeout.Timeout():
		return &openai.Error{Status: 408, Type: "invalid_request_error", Code: "request_timeout", Message: "the request did not arrive in time"}
	}
	return &openai.Error{Status: 400, Type: "invalid_request_error", Message: unreadable}
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
