package gateway

import (
	"context"
	"time"

	"aloft/backends/openai"
	"aloft/jobs"
)

// JobSessions reaches the terminals of sessions.
type JobSessions interface {
	// Terminal is that of a session that runs now.
	Terminal(ctx context.Context, id string) (*jobs.Terminal, error)
	Heartbeat(ctx context.Context, id string) error
}

const sessionsPath = "/aloft/v1/sessions"

// maxInput bounds one piece of a session's input, in bytes.
const maxInput = 64 << 10

// sessionRoutes are what sessions have beyond other jobs. Two requests make a
// duplex: the output comes as one answer that goes on, the input in pieces, each
// answered when the program's terminal has taken it, so that neither side of a
// slow pair fills memory here.
func (s *Server) sessionRoutes(get func(handler) map[string]handler) []*route {
	post := func(h handler) map[string]handler { return map[string]handler{"POST": h} }
	all := get(s.listJobs)
	all["POST"] = s.createSession
	const one = sessionsPath + "/"
	return []*route{
		{path: sessionsPath, role: either, methods: all},
		{path: one, suffix: "/output", role: either, methods: map[string]handler{"GET": s.sessionOutput}},
		{path: one, suffix: "/input", role: either, methods: post(s.sessionInput)},
		{path: one, suffix: "/resize", role: either, methods: post(s.sessionResize)},
		{path: one, suffix: "/heartbeat", role: either, methods: post(s.sessionHeartbeat)},
	}
}

// sessionWish is the body that asks for a session.
type sessionWish struct {
	jobWish
	Idle    float64 `json:"idle_seconds"`
	Longest float64 `json:"longest_seconds"`
}

// sessionObject is what a job of kind session shows beyond others.
type sessionObject struct {
	Idle    float64  `json:"idle_seconds"`    // reclaimed after so long without use
	Longest float64  `json:"longest_seconds"` // the longest that it runs
	Active  *float64 `json:"active_at"`       // when it was last used
	Warned  *float64 `json:"warned_at"`       // when it was told that it will be reclaimed
	Ends    *float64 `json:"ends_at"`         // when it ends if nobody uses it
}

func sessionOf(j jobs.Job) *sessionObject {
	if j.Session == nil {
		return nil
	}
	at := func(t time.Time) *float64 {
		if t.IsZero() {
			return nil
		}
		v := seconds(t)
		return &v
	}
	o := &sessionObject{Idle: j.Session.Idle.Seconds(), Longest: j.Session.Life.Seconds(), Active: at(j.Session.Active)}
	if !j.State.Terminal() {
		o.Warned, o.Ends = at(j.Session.Warned), at(j.Session.Ends)
	}
	return o
}

// createSession makes a session of a template of that kind, or of a command
// where the caller may run one.
func (s *Server) createSession(x *exchange) {
	var in sessionWish
	err := s.decode(x, &in, onlyKnown)
	if err == nil {
		err = in.once(x.c.Request.Header.Peek("Idempotency-Key"))
	}
	session := &jobs.Session{}
	for _, d := range []struct {
		name    string
		seconds float64
		into    *time.Duration
	}{{"idle_seconds", in.Idle, &session.Idle}, {"longest_seconds", in.Longest, &session.Life}} {
		if err == nil && !(d.seconds >= 0 && d.seconds <= longest.Seconds()) { // before it becomes a Duration
			err = invalid(d.name, openai.CodeValue, "%v is not from 0 to %v", d.seconds, longest.Seconds())
		}
		if err == nil {
			*d.into = time.Duration(d.seconds * float64(time.Second))
		}
	}
	var j jobs.Job
	switch {
	case err != nil:
	case in.Kind != "" && in.Kind != jobs.KindSession || in.Batch != nil:
		err = invalid("kind", openai.CodeValue, "kind is %.40q, this makes sessions", in.Kind)
	case (in.Template == "") == (len(in.Command) == 0):
		err = invalid("template", openai.CodeMissing, "either template or command is required")
	default:
		in.Kind = jobs.KindSession
		j, err = s.submit(x, &in.jobWish, session)
	}
	s.job(x, j, err)
}

// ownTerminal is that of the caller's session.
func (s *Server) ownTerminal(x *exchange) (*jobs.Terminal, error) {
	j, err := s.ownJob(x)
	if err != nil {
		return nil, err
	}
	return s.deps.Jobs.Terminal(s.base, j.ID)
}

// terminalFeed is a view of a terminal as what is followed.
type terminalFeed struct{ *jobs.View }

// next implements source.
func (f terminalFeed) next() (piece []byte, over bool, err error) {
	piece, over = f.Next()
	return piece, over, nil
}

// sessionOutput attaches the caller: what is kept of the output, and what comes,
// until the session ends, the client leaves, or another attaches.
func (s *Server) sessionOutput(x *exchange) {
	t, err := s.ownTerminal(x)
	if err != nil {
		s.fail(x, err)
		return
	}
	s.follow(x, "application/octet-stream", terminalFeed{t.Attach()}, nil)
}

// sessionInput gives the program what was typed. A web page cannot send this type
// unasked.
func (s *Server) sessionInput(x *exchange) {
	t, err := s.ownTerminal(x)
	if err == nil && string(x.c.Request.Header.ContentType()) != "application/octet-stream" {
		err = unsupported("content type %q is not supported, want application/octet-stream", x.c.Request.Header.ContentType())
	}
	if err != nil {
		s.fail(x, err)
		return
	}
	body, err := s.readAny(x.c)
	defer func() { s.bodies.Add(-weight(body)) }()
	taken := 0
	switch {
	case err != nil:
	case len(body) > maxInput:
		err = invalid("", "", "a piece of input has %d bytes, at most %d", len(body), maxInput)
	default:
		taken, err = t.Write(body)
	}
	if err != nil {
		s.fail(x, err)
		return
	}
	s.json(x, map[string]any{"taken": taken})
}

// sessionResize tells the program the size of the caller's window.
func (s *Server) sessionResize(x *exchange) {
	var in struct {
		Rows int `json:"rows"`
		Cols int `json:"cols"`
	}
	t, err := s.ownTerminal(x)
	if err == nil {
		err = s.decode(x, &in, onlyKnown)
	}
	if err == nil {
		err = t.Resize(in.Rows, in.Cols)
	}
	if err != nil {
		s.fail(x, err)
		return
	}
	s.json(x, map[string]any{"rows": in.Rows, "cols": in.Cols})
}

// sessionHeartbeat says that the session is used although nothing is typed.
func (s *Server) sessionHeartbeat(x *exchange) {
	j, err := s.ownJob(x)
	if err == nil {
		err = s.deps.Jobs.Heartbeat(s.base, j.ID)
	}
	if err == nil {
		j, err = s.deps.Jobs.Get(s.base, j.ID)
	}
	s.job(x, j, err)
}
