package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"mime/multipart"
	"net/http"
	"time"
)

// batchStatus is what is read of a batch. Its times are whole seconds, too
// coarse to divide by: the polls' clock is used.
type batchStatus struct {
	ID     string
	Status string
	Counts struct{ Total, Completed, Failed int } `json:"request_counts"`
	Errors json.RawMessage
}

// batchPoll is how exactly a batch's start and end are known.
const batchPoll = 10 * time.Millisecond

// batchRate runs a batch of so many rows and returns rows a second, from the
// moment in which it is in progress until its last row is stored.
func batchRate(ctx context.Context, c *client, rows int) (float64, error) {
	file, err := c.upload(ctx, batchFile(rows))
	if err != nil {
		return 0, err
	}
	text, err := c.post(ctx, "/v1/batches", mustJSON(map[string]any{"input_file_id": file, "endpoint": "/v1/embeddings", "completion_window": "24h"}), nil)
	if err != nil {
		return 0, err
	}
	var b batchStatus
	if err := json.Unmarshal(text, &b); err != nil {
		return 0, fmt.Errorf("batch: %w", err)
	}
	var began, done time.Time
	for done.IsZero() {
		if !pause(ctx, batchPoll) {
			return 0, context.Cause(ctx)
		}
		if err := c.get(ctx, "/v1/batches/"+b.ID, &b); err != nil {
			return 0, err
		}
		switch now := time.Now(); {
		case b.Status == "validating":
		case began.IsZero():
			began = now
		case b.Status == "completed" || b.Counts.Total > 0 && b.Counts.Completed == b.Counts.Total:
			done = now
		case b.Status == "failed" || b.Status == "expired" || b.Counts.Failed > 0:
			return 0, fmt.Errorf("batch of %d rows: %s, %d failed, errors %s", rows, b.Status, b.Counts.Failed, b.Errors)
		}
	}
	return float64(rows) / done.Sub(began).Seconds(), nil
}

// upload sends a batch file and returns its id.
func (c *client) upload(ctx context.Context, text string) (string, error) {
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	if err := form.WriteField("purpose", "batch"); err != nil {
		return "", err
	}
	part, err := form.CreateFormFile("file", "rows.jsonl")
	if err != nil {
		return "", err
	}
	if _, err := part.Write([]byte(text)); err != nil {
		return "", err
	}
	if err := form.Close(); err != nil {
		return "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+"/v1/files", &body)
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", form.FormDataContentType())
	answer, err := c.do(req, nil)
	if err != nil {
		return "", err
	}
	var f struct{ ID string }
	if err := json.Unmarshal(answer, &f); err != nil {
		return "", fmt.Errorf("file: %w", err)
	}
	return f.ID, nil
}
