package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"

	"aloft/backends/openai"

	"github.com/valyala/fasthttp"
)

const (
	// wholeAlloc is up to which size a body's announced length is believed and
	// allocated at once; beyond it memory grows with the bytes that came.
	wholeAlloc = 1 << 20
)

// readBody reads a JSON body into memory of its own: it outlives the handler.
func (s *Server) readBody(c *fasthttp.RequestCtx) ([]byte, error) {
	if e := c.Request.Header.ContentEncoding(); len(e) > 0 && string(e) != "identity" {
		return nil, unsupported("content encoding %q is not supported, send the body as it is", e)
	}
	if t := c.Request.Header.ContentType(); len(t) > 0 && !isJSON(t) {
		return nil, unsupported("content type %q is not supported, want application/json", t)
	}
	stream := c.RequestBodyStream()
	if stream == nil {
		return nil, nil
	}
	n := c.Request.Header.ContentLength()
	if n > s.opt.MaxBody {
		c.SetConnectionClose() // with the rest unread; see lingering
		return nil, tooLarge(s.opt.MaxBody)
	}
	if n >= 0 && n <= wholeAlloc {
		body := make([]byte, n)
		_, err := io.ReadFull(stream, body)
		return body, readFault(err)
	}
	body, err := io.ReadAll(io.LimitReader(stream, int64(s.opt.MaxBody)+1))
	if len(body) > s.opt.MaxBody {
		c.SetConnectionClose() // with the rest unread; see lingering
		return nil, tooLarge(s.opt.MaxBody)
	}
	if err == nil && n > len(body) {
		err = io.ErrUnexpectedEOF
	}
	return body, readFault(err)
}

func isJSON(contentType []byte) bool {
	kind, _, _ := bytes.Cut(contentType, []byte{';'})
	kind = bytes.TrimSpace(kind)
	return bytes.EqualFold(kind, []byte("application/json")) || bytes.HasSuffix(kind, []byte("+json"))
}

// readFault is what a request that could not be read is answered with.
func readFault(err error) error {
	var small *fasthttp.ErrSmallBuffer
	var timeout net.Error
	switch {
	case err == nil:
		return nil
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
	b := make([]byte, 0, 32)
	b = append(b, "req_"...)
	b = strconv.AppendUint(b, rand.Uint64()|1<<63, 36) // the top bit keeps the length constant
	return string(strconv.AppendUint(b, rand.Uint64()>>32|1<<31, 36))
}
