package main

import (
	"cmp"
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

	"golang.org/x/term"
)

type batchSubmitCmd struct {
	remote
	File     string `arg:"" type:"existingfile" help:"JSONL file: one {custom_id, method, url, body} a line."`
	Endpoint string `help:"Route of every row." default:"/v1/embeddings" enum:"/v1/embeddings,/v1/chat/completions,/v1/completions,/v1/responses"`
	Window   string `help:"Completion window." default:"24h"`
	Wait     bool   `help:"Wait for the batch to end."`
}

// Run implements kong's command.
func (c *batchSubmitCmd) Run(ctx context.Context) error {
	f, err := os.Open(c.File)
	if err != nil {
		return err
	}
	defer f.Close()
	api := c.client()
	id, err := api.upload(ctx, filepath.Base(c.File), f)
	if err != nil {
		return err
	}
	var b batchObject
	in := map[string]string{"input_file_id": id, "endpoint": c.Endpoint, "completion_window": c.Window}
	if err := api.call(ctx, http.MethodPost, "/v1/batches", in, &b); err != nil {
		return err
	}
	if c.Wait {
		return waitBatch(ctx, api, b.ID)
	}
	fmt.Println(b)
	return nil
}

type batchStatusCmd struct {
	remote
	ID string `arg:"" help:"Batch, as aloft batch submit printed it."`
}

// Run implements kong's command.
func (c *batchStatusCmd) Run(ctx context.Context) error {
	return c.showID(ctx, http.MethodGet, "/v1/batches/%s", c.ID, func(b []byte) error {
		var v batchObject
		if err := json.Unmarshal(b, &v); err != nil {
			return err
		}
		fmt.Println(v)
		return nil
	})
}

// showID is show of one object: path has %s for its id, which may be short.
func (r remote) showID(ctx context.Context, method, path, id string, say func([]byte) error) error {
	id, err := r.client().full(ctx, id)
	if err != nil {
		return err
	}
	return r.show(ctx, method, fmt.Sprintf(path, url.PathEscape(id)), say)
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
	remote
	ID string `arg:"" help:"Batch, as aloft batch submit printed it."`
}

// Run implements kong's command.
func (c *batchWaitCmd) Run(ctx context.Context) error {
	api := c.client()
	id, err := api.full(ctx, c.ID)
	if err != nil {
		return err
	}
	return waitBatch(ctx, api, id)
}

// waitBatch shows progress until a batch ends; one that did not complete is an error.
func waitBatch(ctx context.Context, api *client, id string) error {
	live := term.IsTerminal(int(os.Stderr.Fd()))
	b, err := api.wait(ctx, id, func(b batchObject) {
		if live {
			fmt.Fprintf(os.Stderr, "\r\033[K%s%s", progressBar(b), eta(b))
		}
	})
	if live {
		fmt.Fprintln(os.Stderr)
	}
	if err != nil {
		return err
	}
	fmt.Println(b)
	if b.Status != "completed" {
		return fmt.Errorf("batch %s %s", id, b.Status)
	}
	return nil
}

func progressBar(b batchObject) string {
	n := b.RequestCounts
	const width = 30
	filled := width * (n.Completed + n.Failed) / max(1, n.Total)
	return fmt.Sprintf("%s [%s%s] %d/%d", b.Status, strings.Repeat("#", filled), strings.Repeat(".", width-filled), n.Completed+n.Failed, n.Total)
}

// eta extrapolates the rows so far.
func eta(b batchObject) string {
	done := b.RequestCounts.Completed + b.RequestCounts.Failed
	if b.InProgressAt == 0 || done == 0 || b.ended() {
		return ""
	}
	each := time.Since(time.Unix(b.InProgressAt, 0)) / time.Duration(done)
	return fmt.Sprintf(", about %v left", (each * time.Duration(b.RequestCounts.Total-done)).Round(time.Second))
}

type batchResultsCmd struct {
	remote
	ID     string `arg:"" help:"Batch, as aloft batch submit printed it."`
	Output string `short:"o" help:"File; default: standard output." placeholder:"FILE"`
	Errors bool   `help:"The rows that failed instead."`
}

// Run implements kong's command.
func (c *batchResultsCmd) Run(ctx context.Context) error {
	api := c.client()
	whole, err := api.full(ctx, c.ID)
	if err != nil {
		return err
	}
	var b batchObject
	if err := api.call(ctx, http.MethodGet, "/v1/batches/"+url.PathEscape(whole), nil, &b); err != nil {
		return err
	}
	id, what := b.OutputFileID, "output"
	if c.Errors {
		id, what = b.ErrorFileID, "error"
	}
	if id == "" {
		return fmt.Errorf("batch %s is %s and has no %s file", c.ID, b.Status, what)
	}
	if c.Output == "" {
		return api.download(ctx, id, os.Stdout)
	}
	f, err := os.Create(c.Output)
	if err != nil {
		return err
	}
	return errors.Join(api.download(ctx, id, f), f.Close())
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

type batchCancelCmd struct {
	remote
	ID string `arg:"" help:"Batch, as aloft batch submit printed it."`
}

// Run implements kong's command.
func (c *batchCancelCmd) Run(ctx context.Context) error {
	return c.showID(ctx, http.MethodPost, "/v1/batches/%s/cancel", c.ID, printID)
}

func printID(b []byte) error {
	var v struct{ ID, Status, State string }
	if err := json.Unmarshal(b, &v); err != nil {
		return err
	}
	fmt.Println(v.ID, cmp.Or(v.Status, v.State))
	return nil
}

type jobsSubmitCmd struct {
	remote
	Template string            `arg:"" help:"Template of the server's configuration."`
	Params   map[string]string `arg:"" optional:"" help:"Values of the template's parameters, as NAME=VALUE." placeholder:"NAME=VALUE"`
}

// Run implements kong's command.
func (c *jobsSubmitCmd) Run(ctx context.Context) error {
	var raw json.RawMessage
	if err := c.client().call(ctx, http.MethodPost, "/aloft/v1/jobs", map[string]any{"template": c.Template, "params": c.Params}, &raw); err != nil {
		return err
	}
	if c.JSON {
		fmt.Println(string(raw))
		return nil
	}
	return printID(raw)
}

type jobsListCmd struct{ remote }

// Run implements kong's command.
func (c *jobsListCmd) Run(ctx context.Context) error {
	return c.show(ctx, http.MethodGet, "/aloft/v1/jobs", func(b []byte) error {
		var v struct{ Data []jobObject }
		if err := json.Unmarshal(b, &v); err != nil {
			return err
		}
		for _, j := range v.Data {
			fmt.Println(j)
		}
		return nil
	})
}

type jobsShowCmd struct {
	remote
	ID string `arg:"" help:"Job, as aloft jobs list shows it."`
}

// Run implements kong's command.
func (c *jobsShowCmd) Run(ctx context.Context) error {
	return c.showID(ctx, http.MethodGet, "/aloft/v1/jobs/%s", c.ID, func(b []byte) error {
		var j jobObject
		if err := json.Unmarshal(b, &j); err != nil {
			return err
		}
		fmt.Println(j)
		return nil
	})
}

type jobsCancelCmd struct {
	remote
	ID string `arg:"" help:"Job, as aloft jobs list shows it."`
}

// Run implements kong's command.
func (c *jobsCancelCmd) Run(ctx context.Context) error {
	return c.showID(ctx, http.MethodPost, "/aloft/v1/jobs/%s/cancel", c.ID, printID)
}

type whyCmd struct {
	remote
	About string        `arg:"" optional:"" help:"A slice (as g0/s2), model or job (as jobs list or top shows it); default: everything."`
	Since time.Duration `help:"Only the last so long, as 5m." placeholder:"DURATION"`
	At    string        `help:"A moment, as 14:05, 14:05:30 or 2027-01-31 14:05: a minute on either side, or --since before it." placeholder:"TIME"`
	Limit int           `help:"At most so many, the newest." default:"50"`
}

// Run implements kong's command.
func (c *whyCmd) Run(ctx context.Context) error {
	q := url.Values{"limit": {fmt.Sprint(c.Limit)}}
	var err error
	if c.About, err = c.client().full(ctx, c.About); err != nil {
		return err
	}
	if c.About != "" {
		q.Set("about", c.About)
	}
	from, until, err := c.while(time.Now())
	if err != nil {
		return err
	}
	if !from.IsZero() {
		q.Set("since", from.Format(time.RFC3339Nano))
	}
	if !until.IsZero() {
		q.Set("until", until.Format(time.RFC3339Nano))
	}
	return c.show(ctx, http.MethodGet, "/aloft/v1/decisions?"+q.Encode(), func(b []byte) error {
		var v struct {
			Data []struct {
				Time time.Time
				Text string
			}
		}
		if err := json.Unmarshal(b, &v); err != nil {
			return err
		}
		if len(v.Data) == 0 {
			if err := c.known(ctx); err != nil {
				return err
			}
			fmt.Println("no decision in that time")
		}
		for i := len(v.Data) - 1; i >= 0; i-- {
			layout := "15:04:05.000"
			if at := v.Data[i].Time.Local(); at.Format(time.DateOnly) != time.Now().Format(time.DateOnly) {
				layout = "2006-01-02 15:04:05.000"
			}
			fmt.Println(v.Data[i].Time.Local().Format(layout), v.Data[i].Text)
		}
		return nil
	})
}

// around is how much before and after a moment is shown.
const around = time.Minute

// while is what is asked about; zero = without that end. A time of day that has
// not come yet is yesterday's.
func (c *whyCmd) while(now time.Time) (from, until time.Time, err error) {
	if c.Since < 0 {
		return from, until, fmt.Errorf("--since %v: want how long ago, for example 5m", c.Since)
	}
	if c.At == "" {
		if c.Since > 0 {
			from = now.Add(-c.Since)
		}
		return from, until, nil
	}
	var at time.Time
	for _, layout := range []string{"15:04", "15:04:05"} {
		if t, e := time.ParseInLocation(layout, c.At, now.Location()); e == nil {
			at = time.Date(now.Year(), now.Month(), now.Day(), t.Hour(), t.Minute(), t.Second(), 0, now.Location())
			if at.After(now) {
				at = at.AddDate(0, 0, -1)
			}
		}
	}
	for _, layout := range []string{"2006-01-02 15:04", "2006-01-02 15:04:05", time.RFC3339} {
		if t, e := time.ParseInLocation(layout, c.At, now.Location()); e == nil {
			at = t
		}
	}
	if at.IsZero() {
		return from, until, fmt.Errorf("--at %s: want a time as 14:05, 14:05:30 or \"2027-01-31 14:05\"", c.At)
	}
	if from = at.Add(-around); c.Since > 0 {
		from = at.Add(-c.Since)
	}
	return from, at.Add(around), nil
}

// known is an error if nothing is called what was asked about.
func (c *whyCmd) known(ctx context.Context) error {
	api := c.client()
	var s Status
	if c.About == "" || api.call(ctx, http.MethodGet, "/aloft/v1/status", nil, &s) != nil {
		return nil
	}
	for _, m := range s.Models {
		if m.Name == c.About {
			return nil
		}
	}
	for _, sl := range s.Slices {
		if sl.ID == c.About {
			return nil
		}
	}
	var job json.RawMessage
	err := api.call(ctx, http.MethodGet, "/aloft/v1/jobs/"+url.PathEscape(c.About), nil, &job)
	var answer *apiError
	if errors.As(err, &answer) && answer.status == http.StatusNotFound {
		return fmt.Errorf("there is no model, slice or job %q", c.About)
	}
	return nil
}
