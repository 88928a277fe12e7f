package loadgen

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"aloft/loadgen/wire"
)

// read takes the whole answer. On success it has set the times and tokens of s;
// else it says which failure it was.
func (l *line) read(head wire.Head, s *sample, deadline time.Time) (Outcome, error) {
	if !l.Kind.accepts(head.Status) {
		s.wait, s.again = comeBack(head, l.start.Add(l.now())), shouldRetry(head.ShouldRetry)
		s.retryAfter = s.wait >= 0
		var text []byte
		if l.conn.Deadline(soon(deadline)) == nil {
			text, _ = l.whole(maxProblem) // what there is of it: the status says enough
		}
		return refusal(head.Status), fmt.Errorf("HTTP %d: %s", head.Status, bytes.TrimSpace(text))
	}
	if len(head.Coding) > 0 && !bytes.EqualFold(head.Coding, identity) {
		return Protocol, fmt.Errorf("answer is coded as %.40q, which was not asked for", head.Coding)
	}
	if l.Stream {
		if !isEventStream(head.Type) {
			return Protocol, fmt.Errorf("asked for a stream, got content type %.80q", head.Type)
		}
		return l.readStream(s)
	}
	body, err := l.whole(maxBody + 1)
	s.end = l.now()
	switch {
	case err != nil:
		return lost(err), fmt.Errorf("read answer: %w", err)
	case len(body) > maxBody:
		return Protocol, fmt.Errorf("answer exceeds %d bytes", maxBody)
	}
	outcome, err := l.plain.judge(l.Kind, l.shot.want, body, s)
	if errors.Is(err, errPlainNotJSON) && l.conn.EndsWithConnection() && (len(body) == 0 || body[0] == '{') {
		// Without a length or chunks, that the JSON has no end is the only sign of a cut.
		return Truncated, fmt.Errorf("%w, and ended with its connection", err)
	}
	return outcome, err
}

// accepts reports whether a status is the answer that was asked for. What is
// created or accepted for later need not be 200.
func (k Kind) accepts(status int) bool {
	return status == http.StatusOK || status/100 == 2 && (k == Batch || k == Job)
}

var (
	eventStream = []byte("text/event-stream")
	identity    = []byte("identity")
)

// isEventStream reports whether a content type is that of a stream, with
// parameters or without.
func isEventStream(contentType []byte) bool {
	media, _, _ := bytes.Cut(contentType, []byte(";"))
	return bytes.EqualFold(bytes.TrimSpace(media), eventStream)
}

// whole reads a plain body to its end, or the first limit bytes of it. What it
// returns is valid until the next request of the line.
func (l *line) whole(limit int) ([]byte, error) {
	l.body = l.body[:0]
	for {
		part, _, err := l.conn.Body()
		if err == io.EOF && len(l.body) == 0 && len(part) <= limit {
			return part, nil // all in one read, as most are: no copy
		}
		l.body = append(l.body, part[:min(len(part), limit-len(l.body))]...)
		switch {
		case err == io.EOF || len(l.body) == limit:
			return l.body, nil
		case err != nil:
			return l.body, err
		}
	}
}

// readStream takes server-sent events until their end. Every event of one read
// has that read's time: it was there then, and no finer time is known.
func (l *line) readStream(s *sample) (Outcome, error) {
	st := &l.stream
	st.reset(l.Kind == Responses, l.shot.hear)
	l.events.reset()
	s.gaps = newGaps()
	for {
		part, at, err := l.conn.Body()
		before := *st
		if ferr := l.events.feed(part, l.take); ferr != nil {
			return st.class(ferr), ferr
		}
		s.mark(&before, st, at)
		if st.done || err != nil {
			if outcome, problem := st.complete(l.shot.want.count, err); problem != nil {
				if err != nil && err != io.EOF {
					outcome = lost(err)
				}
				return outcome, problem
			}
			break
		}
	}
	s.prompt, s.completion, s.chunks = st.prompt, st.completion, st.chunks
	// A server that counts none where there are some does not count.
	if s.estimated = !st.usage || st.completion == 0 && st.chunks > 0; s.estimated {
		s.completion = st.chunks
	}
	return OK, nil
}

// mark enters what a read at the given time brought.
func (s *sample) mark(before, st *stream, at time.Duration) {
	if before.begun == 0 && st.begun > 0 {
		s.role = at
	}
	if before.visible == 0 && st.visible > 0 {
		s.visible = at
	}
	s.end = at
	n := st.chunks - before.chunks
	if n == 0 {
		return
	}
	if before.chunks == 0 { // no gap: what came before it is the TTFT
		s.first = at
	} else {
		s.gaps = append(s.gaps, gap{took: at - s.last, chunks: int32(n)})
	}
	s.last = at
}

// playback is what a token takes in a playback without a TPOT target: 20 tokens/s,
// about three times as fast as people read.
const playback = 50 * time.Millisecond

// lateness returns by how much the worst token came after a playback that starts
// with the first and goes on at perToken. A chunk is taken for as many tokens as
// the chunks of the answer had on average by usage.
func (s *sample) lateness(perToken time.Duration) time.Duration {
	if s.chunks == 0 {
		return 0
	}
	perChunk := float64(perToken) * float64(s.completion) / float64(s.chunks)
	var at, worst time.Duration // from the first token
	before := s.chunks          // chunks: those of the first read, of which no gap tells
	for _, g := range s.gaps {
		before -= int(g.chunks)
	}
	for _, g := range s.gaps {
		at += g.took
		worst = max(worst, at-time.Duration(float64(before)*perChunk))
		before += int(g.chunks)
	}
	return worst
}
