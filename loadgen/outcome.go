package loadgen

import (
	"math"
	"net/http"
	"sync"
	"time"
)

// Outcome is how one request ended. Exactly one holds for each request, and
// only OK is good.
type Outcome string

// The outcomes. A stream that ends in an error is not a success, whatever its
// status line said.
const (
	OK          Outcome = "ok"           // complete and within every target
	Late        Outcome = "late"         // complete but over a target, or unfinished at the drain deadline and over it
	Shed        Outcome = "shed"         // 429 or 503: refused because of load
	HTTPError   Outcome = "http_error"   // any other status than 200
	StreamError Outcome = "stream_error" // an error event inside a stream
	Truncated   Outcome = "truncated"    // the answer ended before its end: cut off, no [DONE] or no finish_reason
	Connect     Outcome = "connect"      // no connection, or it was lost before the first byte of an answer
	Timeout     Outcome = "timeout"      // given up by the generator
	Protocol    Outcome = "protocol"     // an answer that is not what the API promises
	Cancelled   Outcome = "cancelled"    // ended by us: the run was, or its client left early as planned
)

// Failed reports whether the outcome is one of the failures: neither answered
// (ok, late) nor refused (shed).
func (o Outcome) Failed() bool { return o != OK && o != Late && o != Shed }

// sample is what is known of one request when it is over.
type sample struct {
	workload, phase, tenant int
	outcome                 Outcome
	times
	tokens

	wasSent    bool
	waited     bool          // for a free slot in the generator
	unfinished bool          // at the drain deadline
	retryAfter bool          // a shed that said when to come back
	wait       time.Duration // as it said; below 0 if it did not
	again      advice        // what else it said
	retries    int           // attempts after the first
	warm       bool          // of the warm-up
	abandoned  bool          // its client left, as planned, before the answer was whole
	further    bool          // a session's turn after the first: it is in no plan
	starved    bool          // this machine had nothing left to connect with
	problem    string

	// gaps are the times between reads that brought content, with the tokens
	// each brought; the collector gives them back once they are counted.
	gaps []gap
}

// times of a request, from the start of the run; 0 = there was none.
type times struct {
	intended time.Duration
	due      time.Duration // when it was to be sent: intended, but for an attempt after the first
	sent     time.Duration // meaningless unless wasSent
	connect  time.Duration // from sent on, how long opening a connection took, TLS included; 0 = it had one
	byte     time.Duration // first byte of the answer
	role     time.Duration // first chunk of a stream, be it empty
	first    time.Duration // first content, reasoning or tool argument: TTFT ends here
	visible  time.Duration // first content that a reader sees: no reasoning
	last     time.Duration // last token of a stream
	end      time.Duration
	worst    time.Duration // by how much the worst token was late against the playback line
}

// tokens of a request.
type tokens struct {
	prompt, completion int  // as the server counted them
	chunks             int  // of a stream that had content
	estimated          bool // no usage: completion was counted from chunks
	input              int  // tokens that the request was made to have; 0 = as its text is
}

// gap is the time since the read with content before it, and what came then.
type gap struct {
	took   time.Duration
	chunks int32 // with content, in this read
}

// gapLists are the lists of gaps that are counted and free for the next stream.
// A sync.Pool would allocate for each list that it takes back.
var gapLists struct {
	sync.Mutex
	free [][]gap
}

// maxGapLists bounds the free lists: as many as results may wait to be counted.
const maxGapLists = queue

// newGaps returns an empty list for the gaps of one stream.
func newGaps() []gap {
	gapLists.Lock()
	defer gapLists.Unlock()
	if n := len(gapLists.free); n > 0 {
		g := gapLists.free[n-1]
		gapLists.free = gapLists.free[:n-1]
		return g
	}
	return make([]gap, 0, 128)
}

// recycle gives the gaps back.
func (s *sample) recycle() {
	if cap(s.gaps) == 0 {
		return
	}
	gapLists.Lock()
	defer gapLists.Unlock()
	if len(gapLists.free) < maxGapLists {
		gapLists.free = append(gapLists.free, s.gaps[:0])
	}
	s.gaps = nil
}

// latency is from the intended start: the headline.
func (s *sample) latency() time.Duration { return s.end - s.intended }

// lag is how late it was sent.
func (s *sample) lag() time.Duration { return s.sent - max(s.intended, s.due) }

// perToken is the mean time of each token after the first, 0 when there are
// fewer than two.
func (s *sample) perToken() time.Duration {
	if s.first == 0 || s.completion < 2 {
		return 0
	}
	return (s.last - s.first) / time.Duration(s.completion-1)
}

// goal is what the requests of a tenant are held to.
func (w *Workload) goal(tenant int) Goal {
	if tenant < len(w.Tenants) && w.Tenants[tenant].Goal != nil {
		return *w.Tenants[tenant].Goal
	}
	return w.Goal
}

// judge says whether a complete answer came in time.
func (w *Workload) judge(s *sample) Outcome {
	over := func(got, target time.Duration) bool { return target > 0 && got > target }
	g := w.goal(s.tenant)
	if over(s.latency(), g.Target) || over(s.perToken(), g.TPOTTarget) || over(s.worst, g.Smooth) || s.tardy(g) {
		return Late
	}
	if g.TTFTTarget > 0 && s.first == 0 {
		return Late
	}
	if g.ITLTarget > 0 || g.GapTarget > 0 {
		if itl, gap := s.longest(); over(itl, g.ITLTarget) || over(gap, g.GapTarget) {
			return Late
		}
	}
	return OK
}

// tardy: something that came had come too late.
func (s *sample) tardy(g Goal) bool {
	over := func(at, target time.Duration) bool { return target > 0 && at > 0 && at-s.intended > target }
	return over(s.byte, g.TTFBTarget) || over(s.role, g.RoleTarget) || over(s.first, g.TTFTTarget) || over(s.visible, g.VisibleTarget)
}

// missing: something that every answer has had not come, and would be too late.
func (s *sample) missing(g Goal) bool {
	over := func(at, target time.Duration) bool { return target > 0 && at == 0 && s.latency() >= target }
	return over(s.byte, g.TTFBTarget) || over(s.role, g.RoleTarget) || over(s.first, g.TTFTTarget)
}

// longest are the slowest token and the longest gap between reads with content.
func (s *sample) longest() (itl, between time.Duration) {
	s.eachGap(func(took time.Duration, tokens int64) {
		itl, between = max(itl, took/time.Duration(tokens)), max(between, took)
	})
	return itl, between
}

// eachGap goes through the gaps with the tokens that the read after each brought.
// A chunk may hold several tokens and a read several chunks; tokens come to
// chunks as they do over the whole answer.
func (s *sample) eachGap(take func(took time.Duration, tokens int64)) {
	perChunk := 1.0
	if s.chunks > 0 && s.completion > 0 {
		perChunk = float64(s.completion) / float64(s.chunks)
	}
	for _, g := range s.gaps {
		take(g.took, max(1, int64(math.Round(float64(g.chunks)*perChunk))))
	}
}

// abandon says what a request is that was unfinished at the drain deadline:
// late if its target had passed, since then no answer could have been in time.
func (w *Workload) abandon(s *sample) Outcome {
	if target := w.goal(s.tenant).Target; target > 0 && s.latency() > target {
		return Late
	}
	return Timeout
}

// leave says what a request is whose client left before the answer was whole:
// late if it was too late for a good one, and otherwise nothing can be said.
func (w *Workload) leave(s *sample) Outcome {
	g := w.goal(s.tenant)
	if g.Target > 0 && s.latency() >= g.Target || s.tardy(g) || s.missing(g) {
		return Late
	}
	return Cancelled
}

// refusal classes a status other than 200.
func refusal(status int) Outcome {
	if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		return Shed
	}
	return HTTPError
}
