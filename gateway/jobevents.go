package gateway

import (
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"aloft/backends/openai"
	"aloft/jobs"
)

// eventObject is an event as /aloft/v1/jobs/{id}/events shows it.
type eventObject struct {
	ID      string            `json:"id"`
	Object  string            `json:"object"`
	Seq     int               `json:"seq"` // counts up within the job
	Created float64           `json:"created_at"`
	Level   string            `json:"level"`
	Type    string            `json:"type"`
	Message string            `json:"message"`
	Data    map[string]string `json:"data,omitempty"`
}

func jobEventOf(e jobs.Event) eventObject {
	return eventObject{ID: strconv.Itoa(e.Seq), Object: "job.event", Seq: e.Seq, Created: seconds(e.At),
		Level: e.Level, Type: e.Kind, Message: e.Message, Data: e.Data}
}

// seconds are Unix seconds with their fraction, where a second is long.
func seconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }

// jobEvents lists what happened to a job, the oldest first, or with follow sends
// it as it happens.
func (s *Server) jobEvents(x *exchange) {
	j, err := s.ownJob(x)
	q := x.c.QueryArgs()
	limit, after, follow := 0, 0, false
	if err == nil {
		limit, err = pageLimit(q.Peek("limit"), 100, jobs.MaxEvents)
	}
	if err == nil {
		follow, err = flag("follow", q.Peek("follow"))
	}
	from := q.Peek("after")
	if id := x.c.Request.Header.Peek("Last-Event-ID"); follow && len(from) == 0 {
		from = id // of a client that comes back
	}
	if err == nil && len(from) > 0 {
		if after, err = strconv.Atoi(string(from)); err != nil || after < 0 {
			err = invalid("after", openai.CodeValue, "after is %.40q, want the seq of an event", from)
		}
	}
	if err == nil && follow {
		s.follow(x, "text/event-stream", &eventFeed{s: s, id: j.ID, after: after}, heartbeat)
		return
	}
	var list []jobs.Event
	if err == nil {
		list, err = s.deps.Jobs.Events(s.base, j.ID, after, limit+1)
	}
	if err != nil {
		s.fail(x, err)
		return
	}
	page := newPage[eventObject](len(list) > limit)
	for _, e := range list[:min(limit, len(list))] {
		page.add(strconv.Itoa(e.Seq), jobEventOf(e))
	}
	s.json(x, page)
}

// eventFeed is a job's events as a stream of server-sent events, up to its end.
type eventFeed struct {
	s     *Server
	id    string
	after int
}

// next implements source.
func (f *eventFeed) next() (piece []byte, over bool, err error) {
	// The end is looked for first: events of before it are then all there.
	ended, err := f.s.jobEnded(f.id)
	if err != nil {
		return nil, false, err
	}
	list, err := f.s.deps.Jobs.Events(f.s.base, f.id, f.after, jobs.MaxEvents)
	if errors.Is(err, jobs.ErrNotFound) {
		list, err = nil, nil // deleted meanwhile
	}
	if err != nil {
		return nil, false, err
	}
	for _, e := range list {
		data, err := json.Marshal(jobEventOf(e))
		if err != nil {
			return nil, false, err
		}
		piece = append(strconv.AppendInt(append(piece, "id: "...), int64(e.Seq), 10), '\n')
		piece = openai.AppendEvent(piece, data)
		f.after = e.Seq
	}
	if ended {
		piece = openai.AppendEvent(piece, []byte("[DONE]"))
	}
	return piece, ended, nil
}

// Close implements source.
func (f *eventFeed) Close() error { return nil }

// checkpointObject is a checkpoint as /aloft/v1/jobs/{id}/checkpoints shows it.
type checkpointObject struct {
	Object  string `json:"object"`
	Path    string `json:"path"`
	Step    int64  `json:"step"`
	Bytes   int64  `json:"bytes"` // 0 = the program did not say
	Created int64  `json:"created_at"`
}

// jobCheckpoints lists the checkpoints that are known, the newest first.
func (s *Server) jobCheckpoints(x *exchange) {
	j, err := s.ownJob(x)
	if err != nil {
		s.fail(x, err)
		return
	}
	page := newPage[checkpointObject](false)
	for i := len(j.Checkpoints) - 1; i >= 0; i-- {
		c := j.Checkpoints[i]
		path := c.Path
		if !x.admin() {
			path = j.ShownPath(path)
		}
		page.add(path, checkpointObject{"job.checkpoint", path, c.Step, c.Bytes, c.At.Unix()})
	}
	s.json(x, page)
}
