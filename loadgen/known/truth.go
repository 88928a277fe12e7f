package known

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"aloft/loadgen"
)

// The metrics of the table.
const (
	fromIntended = "E2E from intended start"
	fromSend     = "E2E from send"
	sendLag      = "send lag"
	firstByte    = "TTFB"
	roleChunk    = "time to role chunk"
	firstToken   = "TTFT"
	firstVisible = "first visible token"
	perToken     = "TPOT"
	interToken   = "ITL, by token"
	chunkGap     = "gap of chunks"
	lateness     = "worst token late by"
	sinceSend    = ", from send"
)

// truth is what really happened, by the server's clock: for each metric the
// values of all requests, in ms.
type truth map[string][]float64

func (t truth) add(metric string, d time.Duration) {
	t[metric] = append(t[metric], float64(d)/float64(msec))
}

// asked is one request of the plan as the server saw it.
type asked struct {
	*record            // of its last attempt or step
	intended time.Time // from where its latency counts
	due      time.Time // when the last was to be sent
	want     loadgen.Outcome
}

// all pairs the records of a run that began at started with their intended
// starts, in the order in which they came: they are sent in that order, further
// apart than their ways to the server differ. Where that tells nothing the
// subject has a way of its own, or its times are not checked.
func (s *subject) all(started time.Time) []asked {
	if s.pair != nil {
		return s.pair(s, started)
	}
	var out []asked
	for i, r := range s.server.seen() {
		due := started.Add(s.due(i))
		out = append(out, asked{r, due, due, s.want(i)})
	}
	return out
}

// truth reads the records of a run that began at started.
func (s *subject) truth(started time.Time) truth { return s.truthOf(s.all(started)) }

func (s *subject) truthOf(all []asked) truth {
	t := truth{}
	for _, r := range all {
		t.add(sendLag, r.arrived.Sub(r.due))
		gaveUp := r.want == loadgen.Timeout || s.drain > 0
		whole := (r.want == loadgen.OK || r.want == loadgen.Late) && len(r.writes) == len(r.script.parts) && !gaveUp
		if !whole && !gaveUp {
			continue
		}
		both := func(metric, since string, at time.Time) {
			if at.IsZero() && gaveUp {
				at = r.left // its age then
			}
			if !at.IsZero() {
				t.add(metric, at.Sub(r.intended))
				t.add(since, at.Sub(r.arrived))
			}
		}
		var begin, end time.Time
		if len(r.writes) > 0 {
			begin = r.writes[0]
		}
		if whole {
			end = r.writes[len(r.writes)-1]
		}
		both(fromIntended, fromSend, end)
		both(firstByte, firstByte+sinceSend, begin)
		if !s.load.Stream {
			continue
		}
		both(roleChunk, roleChunk+sinceSend, r.first(chunky))
		both(firstToken, firstToken+sinceSend, r.first(content))
		both(firstVisible, firstVisible+sinceSend, r.first(visible))
		if whole {
			t.addTokens(r.record, cmp.Or(s.load.TPOTTarget, playback))
		}
	}
	return t
}

// playback is what a token takes in the playback that tokens are held to when
// there is no TPOT target.
const playback = 50 * msec

// addTokens enters what the writes of a whole stream say of its tokens. Tokens
// come to chunks as they do over the whole answer.
func (t truth) addTokens(r *record, pace time.Duration) {
	tokens, chunks := r.completion(), 0
	for _, p := range r.script.parts {
		chunks += p.chunks
	}
	first, last, before := time.Time{}, time.Time{}, 0
	var worst time.Duration
	for i, p := range r.script.parts {
		if p.chunks == 0 {
			continue
		}
		at := r.writes[i]
		if first.IsZero() {
			first = at
		} else {
			gap, n := at.Sub(last), max(1, (p.chunks*tokens+chunks/2)/chunks)
			t.add(chunkGap, gap)
			for range n {
				t.add(interToken, gap/time.Duration(n))
			}
		}
		worst = max(worst, at.Sub(first)-pace*time.Duration(before*tokens)/time.Duration(chunks))
		last, before = at, before+p.chunks
	}
	t.add(lateness, worst)
	if tokens > 1 {
		t.add(perToken, last.Sub(first)/time.Duration(tokens-1))
	}
}

// first is when the first write was made that completed an event with the mark.
func (r *record) first(m marks) time.Time {
	for i, p := range r.script.parts {
		if p.is&m != 0 && i < len(r.writes) {
			return r.writes[i]
		}
	}
	return time.Time{}
}

// late counts the answers that took longer than the target, by the server's
// clock.
func (t truth) late(target time.Duration) int {
	n := 0
	for _, ms := range t[fromIntended] {
		if ms > float64(target)/float64(msec) {
			n++
		}
	}
	return n
}

// completion is how many tokens a generator has to count.
func (r *record) completion() int {
	if r.script.tokens > 0 {
		return r.script.tokens
	}
	n := 0
	for _, p := range r.script.parts {
		n += p.chunks
	}
	return n
}

// The quantiles of every time that are checked.
var quantiles = []float64{0.5, 0.95, 0.99, 1}

// quantilesOf are the quantiles by the nearest rank; nil without values.
func quantilesOf(v []float64) []float64 {
	if len(v) == 0 {
		return nil
	}
	v = slices.Sorted(slices.Values(v))
	out := make([]float64, len(quantiles))
	for i, q := range quantiles {
		out[i] = v[max(0, int(math.Ceil(q*float64(len(v))-1e-9))-1)]
	}
	return out
}

// measured are the same quantiles as the generator reports them.
func measured(q *loadgen.Quantiles) []float64 {
	if q == nil || q.N == 0 {
		return nil
	}
	return []float64{q.P50, q.P95, q.P99, q.Max}
}

// times are the rows of the metrics in time.
func (s *subject) times(r *loadgen.Result, started time.Time) []Row {
	t := s.truth(started)
	var rows []Row
	for _, m := range []struct {
		metric string
		got    *loadgen.Quantiles
	}{
		{fromIntended, &r.Quantiles}, {fromSend, &r.FromSend}, {sendLag, &r.SendLag},
		{firstByte, &r.TTFB}, {firstByte + sinceSend, &r.TTFBFromSend}, {roleChunk, r.Role}, {roleChunk + sinceSend, r.RoleFromSend},
		{firstToken, r.TTFT}, {firstToken + sinceSend, r.TTFTFromSend}, {firstVisible, r.Visible}, {firstVisible + sinceSend, r.VisibleFromSend},
		{perToken, r.TPOT}, {interToken, r.ITL}, {chunkGap, r.Gap}, {lateness, r.Lateness},
	} {
		if sent := m.metric == fromSend || m.metric == sendLag || strings.HasSuffix(m.metric, sinceSend); sent && s.dials {
			continue
		}
		right, got := quantilesOf(t[m.metric]), measured(m.got)
		if right == nil && got == nil {
			continue
		}
		row := Row{Server: s.name, Metric: m.metric + ", ms", Right: right, Measured: got}
		row.OK = near(right, got)
		rows = append(rows, row)
	}
	return rows
}

// The tolerances of issue 4.
const (
	tolerance = 0.01 // of the right value
	grain     = 1.0  // ms
)

// near reports whether every figure is within 1 % or 1 ms.
func near(right, got []float64) bool {
	if len(right) != len(got) {
		return false
	}
	for i := range right {
		if math.Abs(got[i]-right[i]) > max(grain, tolerance*math.Abs(right[i])) {
			return false
		}
	}
	return true
}
