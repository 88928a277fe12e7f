package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

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
		if c.At == "" {
			c.waits(ctx)
		}
		return nil
	})
}

// waits says how a job stands that has no slice now: most of what waits in a queue
// no decision has been about.
func (c *whyCmd) waits(ctx context.Context) {
	if !wholeID.MatchString(c.About) {
		return
	}
	one := "/aloft/v1/jobs/" + url.PathEscape(c.About)
	var job jobObject
	var events struct{ Data []eventObject }
	if c.client().call(ctx, http.MethodGet, one, nil, &job) != nil || job.State != "queued" ||
		c.client().call(ctx, http.MethodGet, one+"/events", nil, &events) != nil || len(events.Data) == 0 {
		return
	}
	fmt.Println(events.Data[len(events.Data)-1])
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
