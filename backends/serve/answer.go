package serve

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"aloft/backends"
	"aloft/backends/openai"
)

// wireError is the one table from errors to answers. param is what a prompt is
// called at this endpoint.
func wireError(err error, param string) *openai.Error {
	var wire *openai.Error
	switch {
	case errors.As(err, &wire):
		return wire
	case errors.Is(err, backends.ErrTooLong):
		return openai.Invalid(param, "context_length_exceeded", "%v", err)
	case errors.Is(err, backends.ErrOverloaded):
		return &openai.Error{Status: http.StatusTooManyRequests, Type: "rate_limit_error", Code: backends.ReasonQueueFull, Message: err.Error()}
	case errors.Is(err, backends.ErrUnavailable), errors.Is(err, backends.ErrDraining):
		return &openai.Error{Status: http.StatusServiceUnavailable, Type: "server_error", Code: "service_unavailable", Message: err.Error()}
	}
	return &openai.Error{Status: http.StatusInternalServerError, Type: "server_error", Code: "internal_error", Message: err.Error()}
}

// fail answers with err. Nothing is written to a client that has left.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error, param string) {
	switch cause := context.Cause(r.Context()); {
	case errors.Is(cause, backends.ErrDraining):
		err = cause
	case cause != nil:
		s.log.Debug("client left", "path", r.URL.Path, "id", r.Header.Get("X-Request-Id"))
		return
	}
	wire := wireError(err, param)
	if wire.Status >= 500 {
		s.log.Warn("request failed", "path", r.URL.Path, "id", r.Header.Get("X-Request-Id"), "status", wire.Status, "error", err)
	}
	var retry *backends.RetryError
	if errors.As(err, &retry) {
		w.Header().Set("Retry-After", strconv.Itoa(int((retry.After+time.Second-1)/time.Second)))
		w.Header().Set("X-Aloft-Reason", retry.Reason)
	}
	s.reply(w, wire.Status, openai.AppendError(nil, wire))
}

// reply writes a whole JSON body. A failed write means that the client has
// left, which net/http reports through the request's context.
func (s *Server) reply(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	s.allowWrite(w)
	w.WriteHeader(status)
	w.Write(body)
}

// allowWrite gives the client WriteTimeout from now to take what comes next, so
// that one which stopped reading cannot hold a slot for ever.
func (s *Server) allowWrite(w http.ResponseWriter) {
	// An error means a writer without deadlines (a test recorder).
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(s.opt.WriteTimeout))
}

// readBody reads a request's body within the limit.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if enc := r.Header.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") {
		return nil, &openai.Error{Status: http.StatusUnsupportedMediaType, Type: "invalid_request_error",
			Code: "unsupported_encoding", Message: "request bodies must not be compressed"}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, s.opt.MaxBody))
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return nil, &openai.Error{Status: http.StatusRequestEntityTooLarge, Type: "invalid_request_error",
			Code: "request_too_large", Message: "the request body is over " + strconv.FormatInt(s.opt.MaxBody, 10) + " bytes"}
	}
	return body, err
}

// scan reads and checks what all inference routes share.
func (s *Server) scan(w http.ResponseWriter, r *http.Request, e backends.Endpoint) ([]byte, openai.Scan, error) {
	body, err := s.readBody(w, r)
	if err != nil {
		return nil, openai.Scan{}, err
	}
	scan, err := openai.ScanRequest(e, body)
	switch {
	case err != nil:
		return nil, scan, err
	case scan.Model != s.info.Model:
		return nil, scan, unknownModel(scan.Model)
	case e == backends.Embeddings && s.info.Dim == 0:
		return nil, scan, openai.Invalid("model", openai.CodeValue, "model '%s' gives no embeddings", scan.Model)
	case e != backends.Embeddings && s.info.Slots == 0:
		return nil, scan, openai.Invalid("model", openai.CodeValue, "model '%s' only gives embeddings", scan.Model)
	}
	return body, scan, nil
}

func unknownModel(name string) *openai.Error {
	return &openai.Error{Status: http.StatusNotFound, Type: "invalid_request_error", Param: "model", Code: "model_not_found",
		Message: "the model '" + name + "' does not exist"}
}

func (s *Server) notFound(w http.ResponseWriter, r *http.Request) {
	s.fail(w, r, &openai.Error{Status: http.StatusNotFound, Type: "invalid_request_error", Code: "unknown_url",
		Message: "unknown URL: " + r.Method + " " + r.URL.Path}, "")
}

func (s *Server) wrongMethod(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Allow", http.MethodPost)
	s.fail(w, r, &openai.Error{Status: http.StatusMethodNotAllowed, Type: "invalid_request_error", Code: "unknown_url",
		Message: "method " + r.Method + " is not allowed here, use POST"}, "")
}
