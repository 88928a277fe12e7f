package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

type jobsCmd struct {
	Submit      jobsSubmitCmd      `cmd:"" help:"Submit a job from a template."`
	List        jobsListCmd        `cmd:"" help:"List jobs, the newest first."`
	Show        jobsShowCmd        `cmd:"" help:"Show a job."`
	Logs        jobsLogsCmd        `cmd:"" help:"Print what a job's program wrote."`
	Events      jobsEventsCmd      `cmd:"" help:"Say what happened to a job."`
	Checkpoints jobsCheckpointsCmd `cmd:"" help:"List a job's checkpoints."`
	Wait        jobsWaitCmd        `cmd:"" help:"Wait for a job to end; the exit code says how."`
	Cancel      jobsCancelCmd      `cmd:"" help:"Cancel a job; its checkpoints are kept."`
	Pause       jobsPauseCmd       `cmd:"" help:"Let a job save, and hold it back until it is resumed."`
	Resume      jobsResumeCmd      `cmd:"" help:"Let a paused job go on."`
	Retry       jobsRetryCmd       `cmd:"" help:"Run a failed or cancelled job again, from its last checkpoint."`
	Delete      jobsDeleteCmd      `cmd:"" help:"Delete a job that has ended, with all that is kept of it."`
	Templates   jobsTemplatesCmd   `cmd:"" help:"List the templates, with what may be filled in."`
}

// theJob is the argument of commands about one job.
type theJob struct {
	remote
	Job string `arg:"" help:"Job: its id, the beginning of it, its short form, its name, or latest."`
}

// at finds the job and returns the path of what is asked of it.
func (c theJob) at(ctx context.Context, suffix string) (string, error) {
	id, err := c.client().findJob(ctx, c.Job)
	return "/aloft/v1/jobs/" + url.PathEscape(id) + suffix, err
}

// ask prints what becomes of the job.
func (c theJob) ask(ctx context.Context, method, suffix string) error {
	path, err := c.at(ctx, suffix)
	if err != nil {
		return err
	}
	return c.show(ctx, method, path, printID)
}

type jobsSubmitCmd struct {
	remote
	waiting
	What []string `arg:"" help:"TEMPLATE NAME=VALUE…: a template of the server's and values for its parameters. With --kind the program and its arguments instead, after --." placeholder:"TEMPLATE"`

	Kind  string `help:"Run a program of your own as train, quantize, evaluate or session; only for admin keys, and if the server allows it." placeholder:"KIND"`
	Model string `help:"Model that the job is about." placeholder:"NAME"`
	Name  string `help:"What to call the job." placeholder:"NAME"`
	Once  string `name:"idempotency-key" help:"Submitting again under the same key returns the same job." placeholder:"KEY"`

	After     []string      `help:"Job that must have succeeded first (repeatable)." placeholder:"JOB"`
	NotBefore string        `help:"Do not start earlier: 2h, 22:30, 2027-01-31 22:00." placeholder:"TIME"`
	Deadline  string        `help:"Expire if it has not started by then." placeholder:"TIME"`
	Retries   int           `help:"Run again after a failure, so many times." placeholder:"N"`
	Keep      time.Duration `help:"Keep results, log and checkpoints for so long after the end; default: the template's." placeholder:"DURATION"`
	Expected  time.Duration `help:"How long it runs on one slice, about." placeholder:"DURATION"`

	Priority int           `help:"Higher goes first; at most the template's." placeholder:"N"`
	Shape    string        `help:"Smallest MIG profile that will do." placeholder:"PROFILE"`
	Width    string        `help:"Slices: 2, or from 1 to 4 as 1:4." placeholder:"N[:M]"`
	Grace    time.Duration `help:"From the checkpoint signal to the kill." placeholder:"DURATION"`

	Wait bool `help:"Wait for the job to end."`
}

// Run implements kong's command.
func (c *jobsSubmitCmd) Run(ctx context.Context) error {
	api := c.client()
	in, err := c.body(time.Now())
	if err != nil {
		return err
	}
	var after []string
	for _, ref := range c.After {
		id, err := api.findJob(ctx, ref)
		if err != nil {
			return fmt.Errorf("--after: %w", err)
		}
		after = append(after, id)
	}
	put(in, "depends_on", after, len(after) > 0)
	raw, id, err := api.make(ctx, "/aloft/v1/jobs", in)
	if err != nil {
		return err
	}
	if c.Wait {
		return c.waitJob(ctx, api, c.remote, id)
	}
	return c.printMade(raw)
}

// make posts what makes a job, and returns the answer and the job's id.
func (c *client) make(ctx context.Context, path string, in map[string]any) (raw json.RawMessage, id string, err error) {
	var j struct{ ID string }
	if err := c.call(ctx, http.MethodPost, path, in, &raw); err != nil {
		return nil, "", err
	}
	err = json.Unmarshal(raw, &j)
	return raw, j.ID, err
}

// printMade prints a job that was made: its id and state for people.
func (r remote) printMade(raw json.RawMessage) error {
	if r.JSON {
		return r.print(raw, nil)
	}
	return printID(raw)
}

// nameValues reads the values that a template is filled in with.
func nameValues(list []string) (map[string]string, error) {
	params := map[string]string{}
	for _, p := range list {
		k, v, ok := strings.Cut(p, "=")
		if _, twice := params[k]; twice {
			return nil, fmt.Errorf("%s is given twice", k)
		}
		if !ok || k == "" {
			return nil, fmt.Errorf("%q: want NAME=VALUE", p)
		}
		params[k] = v
	}
	return params, nil
}

func put(in map[string]any, key string, v any, given bool) {
	if given {
		in[key] = v
	}
}

// body is the request, but for the jobs that it depends on.
func (c *jobsSubmitCmd) body(now time.Time) (map[string]any, error) {
	in := map[string]any{}
	if c.Kind != "" {
		in["kind"], in["command"] = c.Kind, c.What
	} else {
		params, err := nameValues(c.What[1:])
		if err != nil {
			return nil, fmt.Errorf("%w (a program of your own needs --kind)", err)
		}
		in["template"], in["params"] = c.What[0], params
	}
	for flag, text := range map[string]string{"not_before": c.NotBefore, "deadline": c.Deadline} {
		if text == "" {
			continue
		}
		at, err := ahead(text, now)
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", strings.ReplaceAll(flag, "_", "-"), err)
		}
		in[flag] = float64(at.UnixMilli()) / 1000
	}
	if c.Width != "" {
		least, most, ranged := strings.Cut(c.Width, ":")
		if !ranged {
			most = least
		}
		from, err := strconv.Atoi(least)
		to, err2 := strconv.Atoi(most)
		if err != nil || err2 != nil {
			return nil, fmt.Errorf("--width %s: want a number of slices, or two as 1:4", c.Width)
		}
		in["min_width"], in["max_width"] = from, to
	}
	for key, d := range map[string]time.Duration{"keep_for_seconds": c.Keep, "expected_seconds": c.Expected, "grace_seconds": c.Grace} {
		put(in, key, d.Seconds(), d != 0)
	}
	for key, text := range map[string]string{"name": c.Name, "model": c.Model, "shape": c.Shape, "idempotency_key": c.Once} {
		put(in, key, text, text != "")
	}
	put(in, "retries", c.Retries, c.Retries != 0)
	put(in, "priority", c.Priority, c.Priority != 0)
	return in, nil
}

// ahead reads a moment to come: a duration from now, a time of day (tomorrow's if
// today's is over), or a whole time.
func ahead(text string, now time.Time) (time.Time, error) {
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return now.Add(d), nil
	}
	for _, layout := range []string{"15:04", "15:04:05"} {
		if t, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			at := time.Date(now.Year(), now.Month(), now.Day(), t.Hour(), t.Minute(), t.Second(), 0, now.Location())
			if !at.After(now) {
				at = at.AddDate(0, 0, 1)
			}
			return at, nil
		}
	}
	for _, layout := range []string{"2006-01-02 15:04", "2006-01-02 15:04:05", time.RFC3339} {
		if t, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("%q: want 2h, 22:30, \"2027-01-31 22:00\" or RFC 3339", text)
}

type jobsListCmd struct {
	remote
	State    []string `help:"Only those in this state (repeatable)." placeholder:"STATE"`
	Kind     string   `help:"Only those of this kind." placeholder:"KIND"`
	Name     string   `help:"Only those of this name." placeholder:"NAME"`
	Template string   `help:"Only those of this template." placeholder:"NAME"`
	Tenant   string   `help:"Only those of this tenant; for admin keys." placeholder:"TENANT"`
	Limit    int      `help:"At most so many, the newest." default:"100"`
	After    string   `help:"Go on after this job, the last of a list." placeholder:"JOB"`
}

// Run implements kong's command.
func (c *jobsListCmd) Run(ctx context.Context) error {
	q := url.Values{"limit": {strconv.Itoa(c.Limit)}, "state": c.State}
	for key, text := range map[string]string{"kind": c.Kind, "name": c.Name, "template": c.Template, "tenant": c.Tenant} {
		if text != "" {
			q.Set(key, text)
		}
	}
	if c.After != "" {
		id, err := c.client().findJob(ctx, c.After)
		if err != nil {
			return err
		}
		q.Set("after", id)
	}
	return c.show(ctx, http.MethodGet, "/aloft/v1/jobs?"+q.Encode(), func(raw []byte) error {
		var page struct {
			Data []jobObject
			More bool   `json:"has_more"`
			Last string `json:"last_id"`
		}
		if err := json.Unmarshal(raw, &page); err != nil {
			return err
		}
		for _, j := range page.Data {
			line := j.String()
			if j.Tenant != "" {
				line = fmt.Sprintf("%-12s ", j.Tenant) + line
			}
			fmt.Println(line)
		}
		if page.More {
			fmt.Fprintf(os.Stderr, "there are more: --after %s\n", page.Last)
		}
		return nil
	})
}

type jobsShowCmd struct{ theJob }

// Run implements kong's command.
func (c *jobsShowCmd) Run(ctx context.Context) error {
	path, err := c.at(ctx, "")
	if err != nil {
		return err
	}
	return c.show(ctx, http.MethodGet, path, func(raw []byte) error {
		var j jobObject
		if err := json.Unmarshal(raw, &j); err != nil {
			return err
		}
		return j.write(os.Stdout, time.Now())
	})
}

type jobsCancelCmd struct{ theJob }

// Run implements kong's command.
func (c *jobsCancelCmd) Run(ctx context.Context) error { return c.ask(ctx, http.MethodPost, "/cancel") }

type jobsPauseCmd struct{ theJob }

// Run implements kong's command.
func (c *jobsPauseCmd) Run(ctx context.Context) error { return c.ask(ctx, http.MethodPost, "/pause") }

type jobsResumeCmd struct{ theJob }

// Run implements kong's command.
func (c *jobsResumeCmd) Run(ctx context.Context) error { return c.ask(ctx, http.MethodPost, "/resume") }

type jobsRetryCmd struct{ theJob }

// Run implements kong's command.
func (c *jobsRetryCmd) Run(ctx context.Context) error { return c.ask(ctx, http.MethodPost, "/retry") }

type jobsDeleteCmd struct{ theJob }

// Run implements kong's command.
func (c *jobsDeleteCmd) Run(ctx context.Context) error {
	path, err := c.at(ctx, "")
	if err != nil {
		return err
	}
	return c.show(ctx, http.MethodDelete, path, func(raw []byte) error {
		var v struct{ ID string }
		if err := json.Unmarshal(raw, &v); err != nil {
			return err
		}
		_, err := fmt.Println(v.ID, "deleted")
		return err
	})
}

type jobsWaitCmd struct {
	theJob
	waiting
}

// Run implements kong's command.
func (c *jobsWaitCmd) Run(ctx context.Context) error {
	api := c.client()
	id, err := api.findJob(ctx, c.Job)
	if err != nil {
		return err
	}
	return c.waitJob(ctx, api, c.remote, id)
}

// waitJob shows progress until the job has ended.
func (w waiting) waitJob(ctx context.Context, api *client, r remote, id string) error {
	var j jobObject
	raw, err := w.until(ctx, api, "/aloft/v1/jobs/"+url.PathEscape(id), func(now json.RawMessage) (bool, func() reached, error) {
		j = jobObject{}
		err := json.Unmarshal(now, &j)
		return j.ended(), func() reached { return j.reached(time.Now()) }, err
	})
	if err != nil {
		return err
	}
	return errors.Join(r.print(raw, j), j.outcome())
}

type jobsLogsCmd struct {
	theJob
	Follow bool `short:"f" help:"Go on until the job has ended."`
	Tail   int  `help:"Only the last so many lines; default: all that is kept." placeholder:"N"`
}

// Run implements kong's command.
func (c *jobsLogsCmd) Run(ctx context.Context) error {
	path, err := c.at(ctx, "/logs")
	if err != nil {
		return err
	}
	q := url.Values{}
	if c.Follow {
		q.Set("follow", "true")
	}
	if c.Tail != 0 {
		q.Set("tail", strconv.Itoa(c.Tail))
	}
	return c.client().log(ctx, path, q, os.Stdout)
}

// log copies a job's log. One that is followed goes on at the byte it had when
// the server was away, for as long as outageMost.
func (c *client) log(ctx context.Context, path string, q url.Values, w io.Writer) error {
	var last time.Time // something came
	for {
		resp, err := c.open(ctx, http.MethodGet, path+"?"+q.Encode(), "", nil)
		if err == nil {
			last = time.Now()
			at, _ := strconv.ParseInt(resp.Header.Get("X-Aloft-Log-Offset"), 10, 64)
			var n int64
			n, err = io.Copy(w, resp.Body)
			resp.Body.Close()
			q.Del("tail")
			q.Set("offset", strconv.FormatInt(at+n, 10))
			if err == nil || ctx.Err() != nil {
				return nil
			}
			if n > 0 {
				last = time.Now()
			}
			err = fmt.Errorf("the log broke off: %w", err)
		}
		if last.IsZero() || !q.Has("follow") || !passing(err) || time.Since(last) >= outageMost {
			return err
		}
		select {
		case <-time.After(pollEvery):
		case <-ctx.Done():
			return nil
		}
	}
}

type jobsTemplatesCmd struct{ remote }

// Run implements kong's command.
func (c *jobsTemplatesCmd) Run(ctx context.Context) error {
	return c.show(ctx, http.MethodGet, "/aloft/v1/templates", func(raw []byte) error {
		var page struct{ Data []templateObject }
		if err := json.Unmarshal(raw, &page); err != nil {
			return err
		}
		for _, t := range page.Data {
			fmt.Println(t)
		}
		return nil
	})
}
