package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"aloft/jobs"
)

// eventObject is what the client commands read of an event.
type eventObject struct {
	Seq            int     `json:"seq"`
	At             float64 `json:"created_at"`
	Level, Message string
}

func (e eventObject) String() string {
	layout, at := "15:04:05.000", time.UnixMilli(int64(e.At*1000)).Local()
	if at.Format(time.DateOnly) != time.Now().Format(time.DateOnly) {
		layout = "2006-01-02 15:04:05.000"
	}
	level := ""
	if e.Level != "info" {
		level = strings.ToUpper(e.Level) + " "
	}
	return at.Format(layout) + " " + level + e.Message
}

type jobsEventsCmd struct {
	theJob
	Follow bool `short:"f" help:"Go on until the job has ended."`
	After  int  `help:"Only those after this number." placeholder:"SEQ"`
	Limit  int  `help:"At most so many, the oldest; at most 500, which is what is kept." default:"500"`
}

// Run implements kong's command.
func (c *jobsEventsCmd) Run(ctx context.Context) error {
	path, err := c.at(ctx, "/events")
	if err != nil {
		return err
	}
	q := url.Values{"after": {strconv.Itoa(c.After)}}
	if c.Follow {
		return c.follow(ctx, path, q)
	}
	q.Set("limit", strconv.Itoa(c.Limit))
	return c.show(ctx, http.MethodGet, path+"?"+q.Encode(), func(raw []byte) error {
		var page struct{ Data []eventObject }
		if err := json.Unmarshal(raw, &page); err != nil {
			return err
		}
		for _, e := range page.Data {
			fmt.Println(e)
		}
		return nil
	})
}

// follow prints events as they come, with --json one object a line.
func (c *jobsEventsCmd) follow(ctx context.Context, path string, q url.Values) error {
	q.Set("follow", "true")
	resp, err := c.client().open(ctx, http.MethodGet, path+"?"+q.Encode(), "", nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok {
			continue
		}
		if string(data) == "[DONE]" {
			return nil
		}
		if c.JSON {
			fmt.Println(string(data))
			continue
		}
		var e eventObject
		if err := json.Unmarshal(data, &e); err != nil {
			return fmt.Errorf("event %.100s: %w", data, err)
		}
		fmt.Println(e)
	}
	if ctx.Err() != nil {
		return nil
	}
	if err = lines.Err(); err == nil {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("the events broke off: %w", err)
}

// checkpointObject is what the client commands read of a checkpoint.
type checkpointObject struct {
	Path  string
	Step  int64
	Bytes int64
	At    float64 `json:"created_at"`
}

type jobsCheckpointsCmd struct{ theJob }

// Run implements kong's command.
func (c *jobsCheckpointsCmd) Run(ctx context.Context) error {
	path, err := c.at(ctx, "/checkpoints")
	if err != nil {
		return err
	}
	return c.show(ctx, http.MethodGet, path, func(raw []byte) error {
		var page struct{ Data []checkpointObject }
		if err := json.Unmarshal(raw, &page); err != nil {
			return err
		}
		for _, p := range page.Data {
			size := "size not known"
			if p.Bytes > 0 {
				size = fmt.Sprintf("%.1f MB", float64(p.Bytes)/1e6)
			}
			fmt.Printf("%s  step %d, %s, %s\n", time.UnixMilli(int64(p.At*1000)).Local().Format(time.DateTime), p.Step, size, p.Path)
		}
		return nil
	})
}

// templateObject is what the client commands read of a template.
type templateObject struct {
	Name, Kind, Shape string

	MinWidth int `json:"min_width"`
	MaxWidth int `json:"max_width"`
	Priority int
	Params   []struct {
		Name, Type, Default string
		Required            bool
		Min, Max            *float64
		Choices             []string
	}
}

func (t templateObject) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %s", t.Name, t.Kind)
	if t.Shape != "" {
		fmt.Fprintf(&b, " on %s", t.Shape)
	}
	if t.MaxWidth > 1 {
		fmt.Fprintf(&b, ", %d to %d slices", t.MinWidth, t.MaxWidth)
	}
	if t.Priority != 0 {
		fmt.Fprintf(&b, ", priority %d", t.Priority)
	}
	for _, p := range t.Params {
		fmt.Fprintf(&b, "\n  %s=%s", p.Name, strings.ToUpper(p.Type))
		switch {
		case len(p.Choices) > 0:
			fmt.Fprintf(&b, ", one of %s", strings.Join(p.Choices, ", "))
		case p.Type == "text" && p.Max != nil:
			fmt.Fprintf(&b, " of at most %s bytes", jobs.Bound(*p.Max))
		case p.Min != nil && p.Max != nil:
			fmt.Fprintf(&b, " from %s to %s", jobs.Bound(*p.Min), jobs.Bound(*p.Max))
		}
		if p.Required {
			b.WriteString(", must be given")
		} else {
			fmt.Fprintf(&b, ", default %s", p.Default)
		}
	}
	return b.String()
}
