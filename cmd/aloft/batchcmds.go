package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"aloft/backends"
	"aloft/jobs"
)

type batchCmd struct {
	Submit  batchSubmitCmd  `cmd:"" help:"Check a JSONL file, upload it and start a batch."`
	List    batchListCmd    `cmd:"" help:"List batches, the newest first."`
	Status  batchStatusCmd  `cmd:"" help:"Show a batch, with its rate and when it will be done."`
	Wait    batchWaitCmd    `cmd:"" help:"Wait for a batch to end; the exit code says how."`
	Results batchResultsCmd `cmd:"" help:"Write a batch's results."`
	Cancel  batchCancelCmd  `cmd:"" help:"Cancel a batch; what was answered is kept."`
}

// theBatch is the argument of commands about one batch.
type theBatch struct {
	remote
	ID string `arg:"" help:"Batch: its id, the beginning of it, or latest."`
}

type batchSubmitCmd struct {
	remote
	waiting
	File     string            `arg:"" type:"existingfile" help:"JSONL file: one {custom_id, method, url, body} a line."`
	Endpoint string            `help:"embeddings, chat, completions, responses, or a path; default: the url of the first line." placeholder:"NAME"`
	Window   string            `help:"Completion window." default:"24h"`
	Metadata map[string]string `help:"Kept with the batch (repeatable)." placeholder:"KEY=VALUE"`
	Wait     bool              `help:"Wait for the batch to end."`
}

// Run implements kong's command.
func (c *batchSubmitCmd) Run(ctx context.Context) error {
	f, err := os.Open(c.File)
	if err != nil {
		return err
	}
	defer f.Close()
	route, err := c.route(f)
	if err == nil {
		err = c.check(ctx, f, route)
	}
	if err != nil {
		return err
	}
	api := c.client()
	id, err := api.upload(ctx, filepath.Base(c.File), f)
	if err != nil {
		return err
	}
	in := map[string]any{"input_file_id": id, "endpoint": route, "completion_window": c.Window}
	if len(c.Metadata) > 0 {
		in["metadata"] = c.Metadata
	}
	var raw json.RawMessage
	if err := api.call(ctx, http.MethodPost, "/v1/batches", in, &raw); err != nil {
		return err
	}
	var b batchObject
	if err := json.Unmarshal(raw, &b); err != nil {
		return err
	}
	if c.Wait {
		return c.waitBatch(ctx, api, c.remote, b.ID)
	}
	return c.print(raw, b)
}

// print writes the server's JSON, or v for people.
func (r remote) print(raw json.RawMessage, v any) error {
	if r.JSON {
		v = string(raw)
	}
	_, err := fmt.Println(v)
	return err
}

// route is what --endpoint names, or the file's first line.
func (c *batchSubmitCmd) route(f io.ReadSeeker) (string, error) {
	route := c.Endpoint
	if route == "" {
		var row struct{ URL string }
		first := json.NewDecoder(io.LimitReader(f, 4<<20))
		_ = first.Decode(&row) // what is wrong with it, the check says with its line
		route = row.URL
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return "", err
		}
	}
	known, named := jobs.Endpoints(), backends.Endpoint(c.Endpoint)
	for _, r := range known {
		if route == r || named.Known() && named.Path() == r {
			return r, nil
		}
	}
	if c.Endpoint == "" {
		return known[0], nil
	}
	return "", fmt.Errorf("--endpoint %s: want embeddings, chat, completions or responses, or one of %s", c.Endpoint, strings.Join(known, ", "))
}

// check finds what the server would refuse, before anything is sent.
func (c *batchSubmitCmd) check(ctx context.Context, f io.ReadSeeker, route string) error {
	faults, err := jobs.CheckInput(ctx, f, route)
	if err != nil {
		return fmt.Errorf("%s: %w", c.File, err)
	}
	var b bytes.Buffer
	for i, e := range faults {
		if i == 10 {
			fmt.Fprintf(&b, "\n  and %d more", len(faults)-i)
			break
		}
		at := c.File
		if e.Line > 0 {
			at = fmt.Sprintf("%s:%d", c.File, e.Line)
		}
		fmt.Fprintf(&b, "\n  %s: %s (%s)", at, e.Message, e.Code)
	}
	if b.Len() > 0 {
		return fmt.Errorf("%s is no batch for %s, and nothing was sent:%s", c.File, route, b.String())
	}
	_, err = f.Seek(0, io.SeekStart)
	return err
}

type batchListCmd struct{ remote }

// Run implements kong's command.
func (c *batchListCmd) Run(ctx context.Context) error {
	return c.show(ctx, http.MethodGet, "/v1/batches?limit=100", func(raw []byte) error {
		var page struct{ Data []batchObject }
		if err := json.Unmarshal(raw, &page); err != nil {
			return err
		}
		for _, b := range page.Data {
			fmt.Println(b)
		}
		return nil
	})
}

type batchStatusCmd struct{ theBatch }

// Run implements kong's command.
func (c *batchStatusCmd) Run(ctx context.Context) error {
	api := c.client()
	id, err := api.findBatch(ctx, c.ID)
	if err != nil {
		return err
	}
	return c.show(ctx, http.MethodGet, "/v1/batches/"+url.PathEscape(id), func(raw []byte) error {
		var b batchObject
		if err := json.Unmarshal(raw, &b); err != nil {
			return err
		}
		fmt.Println(b)
		if b.Status != "in_progress" {
			return nil
		}
		list, err := api.batches(ctx)
		if err != nil {
			return err
		}
		others, now := b.beside(list), time.Now()
		fmt.Println("  " + b.forecast(others, meanRate(append(others, b), now), now))
		return nil
	})
}

// show prints the server's JSON, or what say makes of it.
func (r remote) show(ctx context.Context, method, path string, say func([]byte) error) error {
	var raw json.RawMessage
	if err := r.client().call(ctx, method, path, nil, &raw); err != nil {
		return err
	}
	if r.JSON {
		fmt.Println(string(raw))
		return nil
	}
	return say(raw)
}

type batchWaitCmd struct {
	theBatch
	waiting
}

// Run implements kong's command.
func (c *batchWaitCmd) Run(ctx context.Context) error {
	api := c.client()
	id, err := api.findBatch(ctx, c.ID)
	if err != nil {
		return err
	}
	return c.waitBatch(ctx, api, c.remote, id)
}

// waitBatch shows progress until the batch has ended.
func (w waiting) waitBatch(ctx context.Context, api *client, r remote, id string) error {
	var speed rowRate
	var others []batchObject
	var b batchObject
	rate, listed := 0.0, time.Time{}
	raw, err := w.until(ctx, api, "/v1/batches/"+url.PathEscape(id), func(now json.RawMessage) (bool, func() reached, error) {
		b = batchObject{}
		if err := json.Unmarshal(now, &b); err != nil {
			return false, nil, err
		}
		if at := time.Now(); b.Status == "in_progress" && at.Sub(listed) >= 2*time.Second {
			listed = at
			if list, err := api.batches(ctx); err == nil { // else the next poll says what is wrong
				others = b.beside(list)
				together := b.done()
				for _, o := range others {
					together += o.done()
				}
				if rate = speed.add(at, together); rate == 0 {
					rate = meanRate(append(others, b), at)
				}
			}
		}
		return b.ended(), func() reached { return b.reached(b.forecast(others, rate, time.Now())) }, nil
	})
	if err != nil {
		return err
	}
	return errors.Join(r.print(raw, b), b.outcome())
}

type batchResultsCmd struct {
	theBatch
	Output string `short:"o" help:"File; default: standard output." default:"-" placeholder:"FILE"`
	Errors bool   `help:"The rows that failed instead."`
}

// Run implements kong's command.
func (c *batchResultsCmd) Run(ctx context.Context) error {
	api := c.client()
	whole, err := api.findBatch(ctx, c.ID)
	if err != nil {
		return err
	}
	b, err := api.batch(ctx, whole)
	if err != nil {
		return err
	}
	id, what, hint := b.OutputFileID, "output", ""
	if c.Errors {
		id, what = b.ErrorFileID, "error"
	}
	switch {
	case !b.ended():
		hint = ": it is written when the batch has ended (`aloft batch wait`)"
	case !c.Errors && b.ErrorFileID != "":
		hint = ": no row succeeded (--errors has the others)"
	}
	if id == "" {
		return fmt.Errorf("batch %s is %s and has no %s file%s", b.ID, b.Status, what, hint)
	}
	return into(c.Output, os.Stdout, func(w io.Writer) error { return api.download(ctx, id, w) })
}

func (c *client) download(ctx context.Context, file string, w io.Writer) error {
	resp, err := c.open(ctx, http.MethodGet, "/v1/files/"+url.PathEscape(file)+"/content", "", nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(w, resp.Body)
	return err
}

type batchCancelCmd struct{ theBatch }

// Run implements kong's command.
func (c *batchCancelCmd) Run(ctx context.Context) error {
	id, err := c.client().findBatch(ctx, c.ID)
	if err != nil {
		return err
	}
	return c.show(ctx, http.MethodPost, "/v1/batches/"+url.PathEscape(id)+"/cancel", printID)
}
