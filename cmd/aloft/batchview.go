package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

// batchObject is what the client commands read of OpenAI's batch object.
type batchObject struct {
	ID            string
	Status        string
	Endpoint      string
	Model         string
	OutputFileID  string                                 `json:"output_file_id"`
	ErrorFileID   string                                 `json:"error_file_id"`
	CreatedAt     int64                                  `json:"created_at"`
	InProgressAt  int64                                  `json:"in_progress_at"`
	RequestCounts struct{ Total, Completed, Failed int } `json:"request_counts"`
	Errors        struct {
		Data []struct {
			Code, Message string
			Line          int
		}
	}
}

func (b batchObject) ended() bool {
	switch b.Status {
	case "completed", "failed", "expired", "cancelled":
		return true
	}
	return false
}

// done and rest count rows; failed ones are done, too.
func (b batchObject) done() int { return b.RequestCounts.Completed + b.RequestCounts.Failed }
func (b batchObject) rest() int { return b.RequestCounts.Total - b.done() }

func (b batchObject) String() string {
	n := b.RequestCounts
	s := fmt.Sprintf("%s  %-11s %d of %d rows done, %d failed", b.ID, b.Status, b.done(), n.Total, n.Failed)
	const shown = 5
	for i, e := range b.Errors.Data {
		if i == shown {
			return s + fmt.Sprintf("\n  and %d more (--json shows all)", len(b.Errors.Data)-shown)
		}
		s += fmt.Sprintf("\n  line %d: %s (%s)", e.Line, e.Message, e.Code)
	}
	return s
}

// outcome is nil for a batch that completed, else an error with an exit code.
func (b batchObject) outcome() error {
	switch b.Status {
	case "completed":
		return nil
	case "cancelled":
		return coded(exitCancelled, fmt.Errorf("batch %s was cancelled", b.ID))
	case "expired":
		return coded(exitExpired, fmt.Errorf("batch %s expired: its completion window was over", b.ID))
	}
	return coded(exitFailed, fmt.Errorf("batch %s failed", b.ID))
}

// beside are the batches of a list that share the model's replicas with b.
func (b batchObject) beside(list []batchObject) (out []batchObject) {
	for _, o := range list {
		if o.ID != b.ID && o.Model == b.Model && o.Status == "in_progress" {
			out = append(out, o)
		}
	}
	return out
}

// meanRate is the rows per second of all together, each by its mean since it
// began: what is known without having watched.
func meanRate(all []batchObject, now time.Time) (rate float64) {
	for _, b := range all {
		if ran := now.Sub(time.Unix(b.InProgressAt, 0)).Seconds(); b.Status == "in_progress" && ran >= 1 {
			rate += float64(b.done()) / ran
		}
	}
	return rate
}

// rowsBefore is how many rows run until the last of rest does: these, and of each
// other batch at most as many, since batches of a model take turns row by row.
func rowsBefore(rest int, others []batchObject) int {
	n := rest
	for _, o := range others {
		n += min(o.rest(), rest)
	}
	return n
}

// rowRate measures rows per second over the last paceWindow, so that an hour without
// a replica does not weigh on what comes.
type rowRate struct{ points []point }

type point struct {
	at   time.Time
	done int
}

const (
	paceWindow = time.Minute
	paceLeast  = 3 * time.Second // less than this is noise
)

// add takes how many rows are done, and returns the rate; 0 = not known yet.
func (p *rowRate) add(at time.Time, done int) float64 {
	if n := len(p.points); n > 0 && done < p.points[n-1].done { // others are counted now
		p.points = nil
	}
	p.points = append(p.points, point{at, done})
	for len(p.points) > 2 && at.Sub(p.points[0].at) > paceWindow {
		p.points = p.points[1:]
	}
	first := p.points[0]
	if took := at.Sub(first.at); took >= paceLeast {
		return float64(done-first.done) / took.Seconds()
	}
	return 0
}

// forecast says in words when a batch is done: 812 rows/s, about 1:02 left (14:05).
func (b batchObject) forecast(others []batchObject, rate float64, now time.Time) string {
	switch {
	case b.ended() || b.Status == "cancelling" || b.Status == "finalizing":
		return ""
	case b.Status != "in_progress":
		return "the file is checked first"
	case rate <= 0 && len(others) == 0:
		return "no row has come back yet"
	}
	behind := ""
	if n := rowsBefore(b.rest(), others) - b.rest(); n > 0 {
		behind = fmt.Sprintf(", %d rows of %d other batches come between", n, len(others))
	}
	if rate <= 0 {
		return "no row has come back yet" + behind
	}
	left := time.Duration(float64(rowsBefore(b.rest(), others)) / rate * float64(time.Second))
	return fmt.Sprintf("%.3g rows/s, about %s left (%s)%s", rate, clock(left), dayTime(now.Add(left), now), behind)
}

// dayTime writes a time for people, with its day if that is not today.
func dayTime(t, now time.Time) string {
	if t = t.Local(); t.Format(time.DateOnly) != now.Local().Format(time.DateOnly) {
		return t.Format("2006-01-02 15:04")
	}
	return t.Format("15:04")
}

// reached is the batch for a progress bar.
func (b batchObject) reached(forecast string) reached {
	n := b.RequestCounts
	text := fmt.Sprintf("%s %d/%d", b.Status, b.done(), n.Total)
	if n.Failed > 0 {
		text += fmt.Sprintf(", %d failed", n.Failed)
	}
	if forecast != "" {
		text += ", " + forecast
	}
	return reached{share: float64(b.done()) / float64(max(1, n.Total)), beside: text, line: b.ID + " " + text}
}

func (c *client) batch(ctx context.Context, id string) (b batchObject, err error) {
	return b, c.call(ctx, http.MethodGet, "/v1/batches/"+url.PathEscape(id), nil, &b)
}

// batches are the newest of the caller's.
func (c *client) batches(ctx context.Context) ([]batchObject, error) {
	var page struct{ Data []batchObject }
	return page.Data, c.call(ctx, http.MethodGet, "/v1/batches?limit=100", nil, &page)
}
