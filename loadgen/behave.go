package loadgen

import (
	"bytes"
	"cmp"
	"math"
	"net/http"
	"strconv"
	"time"

	"aloft/loadgen/arrivals"
	"aloft/loadgen/wire"
)

// Bounds of what clients do.
const (
	maxTurns   = 1000
	maxRetries = 100
	maxPause   = 10 * time.Minute // the longest wait that a server may ask for
	// maxBackoff is where doubling ends, as in the OpenAI and AWS clients.
	maxBackoff  = 30 * time.Second
	defaultBase = 500 * time.Millisecond
	// maxHistory bounds what a turn repeats, in bytes. What is older is left out,
	// whole turns at a time, as chat windows do.
	maxHistory = 256 << 10
)

// talk is a session under way. It belongs to whoever has its shot.
type talk struct {
	turns int   // of the whole session
	ends  []int // of the turns in the shot's said
}

// ending is what an answer says to its client.
type ending struct {
	outcome Outcome
	end     time.Duration
	wait    time.Duration // how long the server asked to wait; -1: it did not
	again   advice
	said    []byte // of chat and responses: the answer's text, as the inside of a JSON string
	file    []byte // of a batch's first step
}

// begin decides for a request of the plan how its client will behave.
func (m *maker) begin(sh *shot) {
	if s := m.w.Sessions; s != nil {
		m.client(sh, drawTurns)
		sh.talk = &talk{turns: min(s.Turns.Draw(m.r), maxTurns)}
		sh.hear = sh.talk.turns > 1
	}
	m.stay(sh)
}

// client sets the random stream to what the client of a request draws now.
func (m *maker) client(sh *shot, what int) {
	m.pcg.Seed(arrivals.Scramble(m.seed+uint64(what)), arrivals.Scramble(arrivals.Scramble(uint64(sh.index))+uint64(sh.turn)<<32+uint64(sh.retries)))
}

// stay decides when the client of a turn leaves, though its answer may not be
// whole, if at all.
func (m *maker) stay(sh *shot) {
	a := m.w.Abandon
	if a == nil {
		return
	}
	sh.leave = 0
	if m.client(sh, drawLeaving); m.r.Float64() < a.Share {
		sh.leave = sh.intended + cmp.Or(a.After, m.w.goal(sh.tenant).Target)
	}
}

// next says what follows an answer, if anything: the second step of a batch, a
// further attempt, or the next turn. Its body is not made yet.
func (m *maker) next(sh *shot, e ending, spans []arrivals.Span) (again shot, ok bool) {
	good := e.outcome == OK || e.outcome == Late
	again = *sh
	again.body, again.waited = nil, false
	switch {
	case good && m.w.Kind == Batch && sh.step == 0:
		again.step, again.due, again.same = 1, e.end, true
		again.file = append([]byte(nil), e.file...)
		return again, true
	case m.w.Retry != nil && sh.retries < m.w.Retry.Most && m.w.Retry.again(e):
		again.retries++
		again.due, again.same = e.end+m.pause(&again, e), true
		until, _ := sh.deadline(cmp.Or(m.w.Timeout, defaultTimeout))
		return again, again.due < until
	case good && sh.talk != nil && sh.turn+1 < sh.talk.turns:
		at := e.end + m.think(sh)
		for i, span := range spans {
			if at < span.To { // after the last nothing is offered
				m.remember(&again, e.said)
				again.phase, again.warm = i, at < 0
				again.turn, again.retries, again.same = sh.turn+1, 0, false
				again.intended, again.due = at, at
				again.hear = again.turn+1 < sh.talk.turns
				m.resize(&again)
				m.stay(&again)
				return again, true
			}
		}
	}
	return shot{}, false
}

// follows is the next of every workload but a closed loop.
func follows(l *line, s *sample) (shot, bool) {
	said := l.plain.said
	if l.Stream {
		said = l.stream.heard
	}
	return l.make.next(&l.shot, ending{s.outcome, s.end, s.wait, s.again, said, l.plain.file}, l.w.plan.Spans)
}

// advice is what a server says of sending a refused request again.
type advice int8

const (
	dontRetry advice = iota - 1
	noAdvice
	doRetry
)

// shouldRetry reads x-should-retry.
func shouldRetry(value []byte) advice {
	switch string(value) {
	case "true":
		return doRetry
	case "false":
		return dontRetry
	}
	return noAdvice
}

// again says whether a client sends a refused request again. One that obeys asks
// the server first, as those of OpenAI do.
func (r *Retry) again(e ending) bool {
	if r.Obey && e.again != noAdvice && (e.outcome == Shed || e.outcome == HTTPError) {
		return e.again == doRetry
	}
	return e.outcome == Shed
}

// pause is how long the client waits before an attempt.
func (m *maker) pause(sh *shot, e ending) time.Duration {
	r := m.w.Retry
	back := backoff(cmp.Or(r.Base, defaultBase), sh.retries)
	m.client(sh, drawPause)
	jitter := time.Duration(r.Jitter * m.r.Float64() * float64(back))
	if r.Obey && e.wait >= 0 { // and no sooner: the jitter keeps clients from coming back as one
		return e.wait + jitter
	}
	return back - jitter
}

// backoff doubles base with each attempt after the first.
func backoff(base time.Duration, attempt int) time.Duration {
	return time.Duration(min(float64(base)*math.Pow(2, float64(attempt-1)), float64(max(base, maxBackoff))))
}

// think is the pause between the answer to a turn and the next turn.
func (m *maker) think(sh *shot) time.Duration {
	s := m.w.Sessions
	m.client(sh, drawThink)
	drawn := time.Duration(m.r.ExpFloat64() * float64(s.Think))
	return min(drawn, cmp.Or(s.Most, 4*s.Think))
}

// remember appends the turn and its answer to what was said.
func (m *maker) remember(sh *shot, answer []byte) {
	said := append(m.appendTurn(sh.said, &sh.order), `,{"role":"assistant","content":"`...)
	said = append(append(said, answer...), `"},`...)
	ends := append(sh.talk.ends, len(said))
	gone := 0
	for gone < len(ends)-1 && len(said)-turnStart(ends, gone) > maxHistory {
		gone++
	}
	if from := turnStart(ends, gone); from > 0 {
		said = said[:copy(said, said[from:])]
		ends = ends[:copy(ends, ends[gone:])]
		for i := range ends {
			ends[i] -= from
		}
	}
	sh.said, sh.talk.ends = said, ends
}

// turnStart is where a turn begins.
func turnStart(ends []int, turn int) int {
	if turn == 0 {
		return 0
	}
	return ends[turn-1]
}

// resize draws the lengths of a request that is in no plan: a further turn, or
// one of a closed loop.
func (m *maker) resize(sh *shot) {
	m.client(sh, drawSizes)
	if d := m.w.InputTokens; d != nil {
		sh.shape.Input = uint32(d.Draw(m.r))
	}
	if d := m.w.OutputTokens; d != nil {
		sh.shape.Output = uint32(d.Draw(m.r))
	}
}

// comeBack is how long an answer asks to wait, below 0 if it does not: in
// milliseconds if it says so, else as Retry-After has it, in the order in which
// the clients of OpenAI look. now is the wall clock.
func comeBack(head wire.Head, now time.Time) time.Duration {
	if ms, err := strconv.ParseFloat(string(bytes.TrimSpace(head.RetryAfterMS)), 64); err == nil && ms >= 0 {
		return time.Duration(min(ms, float64(maxPause/time.Millisecond)) * float64(time.Millisecond))
	}
	return retryAfter(head.RetryAfter, now)
}

// retryAfter reads a Retry-After header: seconds, which some servers send with a
// fraction, or a date. It is below 0 if that says nothing. now is the wall clock.
func retryAfter(value []byte, now time.Time) time.Duration {
	value = bytes.TrimSpace(value)
	if s, err := strconv.ParseFloat(string(value), 64); err == nil && s >= 0 {
		return time.Duration(min(s, maxPause.Seconds()) * float64(time.Second))
	}
	if at, err := http.ParseTime(string(value)); err == nil {
		return min(max(at.Sub(now), 0), maxPause)
	}
	return -1
}
