package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"aloft/backends/openai"
	"aloft/jobs"
)

// Batches is what the batch API needs of the job manager. Whose a batch is, is
// checked here.
type Batches interface {
	CreateBatch(ctx context.Context, s jobs.BatchSpec) (jobs.Batch, error)
	Batch(ctx context.Context, id string) (jobs.Batch, error)
	Batches(ctx context.Context, f jobs.Filter) ([]jobs.Batch, error)
	CancelBatch(ctx context.Context, id string) (jobs.Batch, error)
}

// batchObject is OpenAI's batch. Fields that do not apply yet are null.
type batchObject struct {
	ID         string            `json:"id"`
	Object     string            `json:"object"`
	Endpoint   string            `json:"endpoint"`
	Model      string            `json:"model,omitempty"`
	Errors     *batchErrors      `json:"errors"`
	Input      string            `json:"input_file_id"`
	Window     string            `json:"completion_window"`
	Status     jobs.BatchStatus  `json:"status"`
	Output     *string           `json:"output_file_id"`
	ErrorFile  *string           `json:"error_file_id"`
	Created    int64             `json:"created_at"`
	Counts     batchCounts       `json:"request_counts"`
	Usage      batchUsage        `json:"usage"`
	Metadata   map[string]string `json:"metadata"`
	batchTimes                   // when each status was entered
}

type batchTimes struct {
	InProgress *int64 `json:"in_progress_at"`
	Expires    *int64 `json:"expires_at"`
	Finalizing *int64 `json:"finalizing_at"`
	Completed  *int64 `json:"completed_at"`
	Failed     *int64 `json:"failed_at"`
	Expired    *int64 `json:"expired_at"`
	Cancelling *int64 `json:"cancelling_at"`
	Cancelled  *int64 `json:"cancelled_at"`
}

type batchErrors struct {
	Object string      `json:"object"`
	Data   []lineError `json:"data"`
}

type lineError struct {
	Code    string  `json:"code"`
	Message string  `json:"message"`
	Param   *string `json:"param"`
	Line    *int    `json:"line"`
}

type batchCounts struct {
	Total     int `json:"total"`
	Completed int `json:"completed"`
	Failed    int `json:"failed"`
}

type batchUsage struct {
	Input  int64 `json:"input_tokens"`
	Output int64 `json:"output_tokens"`
	Total  int64 `json:"total_tokens"`
}

func batchOf(b jobs.Batch) batchObject {
	o := batchObject{
		ID: b.ID, Object: "batch", Endpoint: b.Endpoint, Model: b.Model, Input: b.InputFile, Window: b.Window,
		Status: b.Status, Output: orNull(b.OutputFile), ErrorFile: orNull(b.ErrorFile), Created: b.Created.Unix(),
		Counts: batchCounts(b.Counts), Usage: batchUsage{b.Usage.Prompt, b.Usage.Completion, b.Usage.Total}, Metadata: b.Metadata,
		batchTimes: batchTimes{
			InProgress: stamp(b.Stamps.InProgress), Expires: stamp(b.Stamps.Expires), Finalizing: stamp(b.Stamps.Finalizing),
			Completed: stamp(b.Stamps.Completed), Failed: stamp(b.Stamps.Failed), Expired: stamp(b.Stamps.Expired),
			Cancelling: stamp(b.Stamps.Cancelling), Cancelled: stamp(b.Stamps.Cancelled),
		},
	}
	if len(b.Errors) > 0 {
		o.Errors = &batchErrors{Object: "list"}
		for _, e := range b.Errors {
			o.Errors.Data = append(o.Errors.Data, lineError{e.Code, e.Message, orNull(e.Param), orNull(e.Line)})
		}
	}
	return o
}

// stamp is a moment in Unix seconds, null when it has not come.
func stamp(t time.Time) *int64 {
	if t.IsZero() {
		return nil
	}
	sec := t.Unix()
	return &sec
}

// orNull is null for the zero value.
func orNull[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

func (s *Server) createBatch(x *exchange) {
	var in struct {
		Input    *string           `json:"input_file_id"`
		Endpoint *string           `json:"endpoint"`
		Window   *string           `json:"completion_window"`
		Metadata map[string]string `json:"metadata"`
		Expires  *struct {
			Anchor  string `json:"anchor"`
			Seconds int    `json:"seconds"`
		} `json:"output_expires_after"`
	}
	err := s.decode(x, &in, anyKeys)
	if err == nil {
		err = required("input_file_id", in.Input, "endpoint", in.Endpoint, "completion_window", in.Window)
	}
	var ttl time.Duration
	if err == nil && in.Expires != nil {
		ttl, err = expiry("output_expires_after", in.Expires.Anchor, in.Expires.Seconds)
	}
	once := ""
	if err == nil {
		once, err = onceKey(x)
	}
	key := ""
	if x.grant != nil {
		key = x.grant.ID
	}
	var b jobs.Batch
	if err == nil {
		b, err = s.deps.Batches.CreateBatch(s.base, jobs.BatchSpec{
			InputFile: *in.Input, Endpoint: *in.Endpoint, Window: *in.Window,
			Metadata: in.Metadata, OutputTTL: ttl, Tenant: x.tenant, Key: key, Idempotency: once,
		})
	}
	s.batch(x, b, err)
}

// batch answers with a batch, or with err.
func (s *Server) batch(x *exchange, b jobs.Batch, err error) {
	if err != nil {
		s.fail(x, err)
		return
	}
	s.json(x, batchOf(b))
}

func (s *Server) getBatch(x *exchange) {
	b, err := s.ownBatch(x)
	s.batch(x, b, err)
}

func (s *Server) cancelBatch(x *exchange) {
	b, err := s.ownBatch(x)
	if err == nil {
		b, err = s.deps.Batches.CancelBatch(s.base, b.ID)
	}
	s.batch(x, b, err)
}

func (s *Server) ownBatch(x *exchange) (jobs.Batch, error) {
	b, err := s.deps.Batches.Batch(s.base, x.path)
	if err == nil && b.Tenant != x.tenant {
		err = fmt.Errorf("batch %.100s: %w", x.path, jobs.ErrNotFound)
	}
	return b, err
}

func (s *Server) listBatches(x *exchange) {
	q := x.c.QueryArgs()
	limit, err := pageLimit(q.Peek("limit"), 20, 100)
	var list []jobs.Batch
	if err == nil {
		list, err = s.deps.Batches.Batches(s.base, jobs.Filter{Tenant: x.tenant, After: string(q.Peek("after")), Limit: limit + 1})
	}
	if err != nil {
		s.fail(x, err)
		return
	}
	page := newPage[batchObject](len(list) > limit)
	for _, b := range list[:min(limit, len(list))] {
		page.add(b.ID, batchOf(b))
	}
	s.json(x, page)
}

// keys says what decode does about keys that it does not know.
type keys bool

const (
	anyKeys   keys = false // OpenAI's clients may be newer than we are
	onlyKnown keys = true
)

// decode reads a JSON object into v, whose fields say what is wanted.
func (s *Server) decode(x *exchange, v any, which keys) error {
	body, err := s.readBody(x.c)
	defer func() { s.bodies.Add(-weight(body)) }()
	if err != nil {
		return err
	}
	var typed *json.UnmarshalTypeError
	switch err := json.Unmarshal(body, v); {
	case errors.As(err, &typed) && typed.Field == "": // the type would be Go's
		return invalid("", openai.CodeType, "the request body must be a JSON object, got %s", typed.Value)
	case errors.As(err, &typed):
		return invalid(typed.Field, openai.CodeType, "%s is of type %s, want %s", typed.Field, typed.Value, typed.Type)
	case err != nil:
		return invalid("", "", "the request body is not a JSON object: %v", err)
	}
	if which == anyKeys {
		return nil
	}
	strict := json.NewDecoder(bytes.NewReader(body))
	strict.DisallowUnknownFields()
	if err := strict.Decode(v); err != nil { // it was fine before: only a key can be wrong
		name := strings.Trim(strings.TrimPrefix(err.Error(), "json: unknown field "), `"`)
		return invalid(name, "unknown_parameter", "there is no parameter %.100q", name)
	}
	return nil
}

// required takes pairs of a name and a *string.
func required(pairs ...any) error {
	for i := 0; i+1 < len(pairs); i += 2 {
		if v := pairs[i+1].(*string); v == nil || *v == "" {
			return invalid(pairs[i].(string), openai.CodeMissing, "%s is required", pairs[i])
		}
	}
	return nil
}
