package known

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"aloft/loadgen"
	"aloft/loadgen/arrivals"
)

// message is one of a chat.
type message struct{ Role, Content string }

func messages(body []byte) []message {
	var of struct{ Messages []message }
	_ = json.Unmarshal(body, &of) // what is no JSON has none
	return of.Messages
}

// talking has each answer say something else, so that the next turn tells which
// one it follows.
func (s *subject) talking(answer func(turn int, said string) script) {
	s.server.choose = func(r *record) script {
		said := messages(r.body)
		if n := len(said); n >= 3 && said[n-2].Role == "assistant" {
			at, err := strconv.Atoi(strings.TrimPrefix(said[n-2].Content, "answer "))
			if err == nil && at >= 0 && at < len(s.server.records) {
				r.before = s.server.records[at]
				right := slices.Concat(messages(r.before.body), said[n-2:n-1])
				r.whole = slices.Equal(said[:n-1], right) && said[n-1].Role == "user" && said[n-1].Content != ""
			}
		}
		return answer(r.attempt(), fmt.Sprintf("answer %d", len(s.server.records)))
	}
}

// session makes a subject of 20 sessions of 3 turns that begin within a second.
func session(name string, load loadgen.Workload, offered int, lasts time.Duration) *subject {
	load.Sessions = &loadgen.Sessions{Turns: loadgen.Dist{Kind: "fixed", Mean: 3}}
	s := &subject{name: name, n: offered, rate: float64(offered) / lasts.Seconds(), load: load}
	s.file = recording(sessions, sessionGap, func(int) arrivals.Record { return arrivals.Record{} })
	return s
}

const (
	sessions   = 20
	sessionGap = 50 * msec
)

// histories is the row of how many turns repeat what was said before.
func histories(further int) func(*subject, *loadgen.Report) []Row {
	return func(s *subject, _ *loadgen.Report) []Row {
		t, whole := tally{server: s.name}, 0
		for _, r := range s.server.seen() {
			if r.whole {
				whole++
			}
		}
		t.exact("further turns with all that was said before", further, whole)
		return t.rows
	}
}

// conversations go on as soon as there is an answer, so that its end is when the
// next turn is meant to start.
func conversations() *subject {
	s := session("sessions of three turns, streamed", streaming, 3*sessions, 2*time.Second)
	s.talking(func(_ int, said string) script {
		first, rest, _ := strings.Cut(said, " ")
		return stream(3, at(20*msec, says(first)), at(40*msec, says(" ")), at(60*msec, says(rest)), end(60*msec, 3))
	})
	s.pair = func(s *subject, started time.Time) []asked {
		var out []asked
		begun := 0
		for _, r := range s.server.seen() {
			due := started.Add(time.Duration(begun) * sessionGap)
			if r.before != nil {
				due = r.before.ended()
			} else {
				begun++
			}
			out = append(out, asked{r, due, due, loadgen.OK})
		}
		return out
	}
	s.more = histories(2 * sessions)
	return s
}

// says is a chunk of so much of an answer.
func says(text string) event {
	return event{data(fmt.Sprintf(`{"choices":[{"index":0,"delta":{"content":%q},"finish_reason":null}]}`, text)), chunky | content | visible, 1}
}

// chatSaying is a plain answer to chat.
func chatSaying(d time.Duration, text string) script {
	s := plain(d, "200 OK", "", strings.Replace(chatReply, "four words of text", text, 1))
	s.tokens = chatTokens
	return s
}

// talks are sessions of which only outcomes and counts are checked. A turn that
// would begin after the phase is never sent, so that they have a second or more to
// spare: on a busy machine answers may be as late as that.
func talks() []*subject {
	ending := session("sessions that fail at their second turn", unary, 2*sessions, 4*time.Second)
	ending.wants = []loadgen.Outcome{loadgen.OK, loadgen.HTTPError}
	ending.talking(func(turn int, said string) script {
		if turn == 1 {
			return plain(0, "500 Internal Server Error", "", `{}`)
		}
		return chatSaying(20*msec, said)
	})
	ending.more = histories(sessions)

	// Eight begin at once, and their second turns after a second. Their third ones and
	// those of the others, who begin from 1.08 s on, would come after the end, at 2 s.
	const second = 8
	past := session("sessions that go on past the end", unary, sessions+second, 2*time.Second)
	past.file = recording(sessions, 10*msec, func(i int) (r arrivals.Record) {
		if i >= second {
			r.Offset = time.Second
		}
		return r
	})
	past.talking(func(_ int, said string) script { return chatSaying(time.Second, said) })
	past.more = histories(second)

	thinking := session("sessions with think time", unary, 3*sessions, 4*time.Second)
	thinking.load.Sessions.Think, thinking.load.Sessions.Most = thought100, thought100
	thinking.talking(func(_ int, said string) script { return chatSaying(20*msec, said) })
	thinking.more = thinks
	out := []*subject{ending, past, thinking}
	for _, s := range out {
		s.counted = true
	}
	return out
}

// thought100 is both the mean and the bound of an exponential think time: the
// longest e⁻¹ = 37 % of it are cut to the bound, p80 among them.
const thought100 = 100 * msec

func thinks(s *subject, report *loadgen.Report) []Row {
	var took []float64
	for _, r := range s.server.seen() {
		if r.before != nil {
			took = append(took, float64(r.arrived.Sub(r.before.ended()))/float64(msec))
		}
	}
	t := tally{server: s.name}
	if slices.Sort(took); len(took) > 0 {
		took = took[len(took)*8/10:][:1]
	}
	t.times("think time p80, by the server's clock", []float64{100}, took)
	return append(t.rows, histories(2*sessions)(s, report)...)
}
