package known

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"aloft/loadgen"
	"aloft/loadgen/arrivals"
)

// planned are servers whose load is more than requests at equal gaps.
func planned() []*subject {
	before := paced("warm-up that ends after what counts began", unary, loadgen.OK, chat(20*msec))
	slow := chat(300 * msec)
	before.warm, before.server.warmUp = 500*msec, &slow
	open := held(unary, loadgen.Goal{Target: 475 * msec})
	drained := &subject{name: "open at the end of the run", n: 20, rate: 20, load: open, drain: 200 * msec,
		server: server{scripts: []script{without(script{end: hang})}}}
	for i := range drained.n { // the oldest is 1.2 s old then, the youngest 250 ms
		want := loadgen.Timeout
		if drained.span()+drained.drain-drained.due(i) > open.Target {
			want = loadgen.Late
		}
		drained.wants = append(drained.wants, want)
	}
	return append(warmed(tenants()), before, drained)
}

// recording is n arrivals, as a file. What an arrival says of its offset is added
// to those of equal gaps.
func recording(n int, gap time.Duration, of func(i int) arrivals.Record) []byte {
	var b bytes.Buffer
	w := arrivals.NewWriter(&b)
	for i := range n {
		r := of(i)
		r.Offset, r.Endpoint = r.Offset+time.Duration(i)*gap, "chat"
		if err := w.Write(r); err != nil {
			panic(fmt.Sprintf("BUG: %v", err))
		}
	}
	if err := w.Flush(); err != nil {
		panic(fmt.Sprintf("BUG: %v", err))
	}
	return b.Bytes()
}

// Of every ten requests six are of tenant a, of which one fails, three of b and
// one of c. Each of the ten has a length of its own, in an order in which
// neighbours are different tenants'.
const (
	tens   = "aaaaaabbbc"
	failed = 5
)

func lengthOf(place int) int { return 10 + 10*(3*place%10) }

// placeOf is a request's place in its ten by the length of its text: 4 bytes a
// token, less up to a word at which it is cut.
func placeOf(r *record) int {
	n := 0
	for _, m := range messages(r.body) {
		n += len(m.Content)
	}
	length := (n + 39) / 40 * 10
	for place := range tens {
		if lengthOf(place) == length {
			return place
		}
	}
	return failed // whatever it is, it is none of these
}

// tenants is one server for which three send, told apart by their keys.
func tenants() *subject {
	load := streaming
	load.Tenants = []loadgen.Tenant{
		{Name: "a", Share: 6, Key: "key-a", Class: "interactive", Deadline: 2 * time.Second},
		{Name: "b", Share: 3, Key: "key-b", Class: "interactive"},
		{Name: "c", Share: 1, Key: "key-c", Class: "offline", Goal: &loadgen.Goal{Target: 100 * msec}},
	}
	answers := map[rune]script{
		'a': stream(2, at(20*msec, word), at(40*msec, word), end(50*msec, 2)),
		'b': stream(2, at(60*msec, word), at(90*msec, word), end(100*msec, 2)),
		'c': stream(2, at(120*msec, word), at(180*msec, word), end(200*msec, 2)),
	}
	s := paced("three tenants, ten lengths", load, loadgen.OK)
	for place, who := range tens {
		s.server.scripts, s.wants = append(s.server.scripts, answers[who]), append(s.wants, loadgen.OK)
		if who == 'c' {
			s.wants[place] = loadgen.Late
		}
	}
	s.server.scripts[failed], s.wants[failed] = plain(0, "500 Internal Server Error", "", `{}`), loadgen.HTTPError
	s.server.choose = func(r *record) script { return s.server.scripts[placeOf(r)] }
	s.pair = func(s *subject, started time.Time) (out []asked) {
		var tenth [len(tens)]int
		for _, r := range s.server.seen() { // those of one place are 100 ms apart
			place := placeOf(r)
			due := started.Add(s.due(10*tenth[place] + place))
			tenth[place]++
			out = append(out, asked{r, due, due, s.wants[place]})
		}
		return out
	}
	s.file = recording(s.n, 10*msec, func(i int) arrivals.Record {
		return arrivals.Record{Tenant: tens[i%10 : i%10+1], InputTokens: lengthOf(i % 10)}
	})
	s.more = (*subject).cuts
	return s
}

// cuts are the rows of the requests of each tenant, class and length.
func (s *subject) cuts(report *loadgen.Report) []Row {
	all := s.all(report.Started)
	t := tally{server: s.name}
	signed, found := 0, 0
	for _, r := range all {
		who := s.load.Tenants[strings.IndexByte("abc", tens[placeOf(r.record)])]
		right := sign{key: who.Key, class: who.Class}
		if who.Deadline > 0 {
			right.deadline = strconv.FormatInt(who.Deadline.Milliseconds(), 10)
		}
		if r.sign == right {
			signed++
		}
	}
	t.exact("requests with their tenant's key, class and deadline", s.n, signed)
	check := func(by, name string, in func(place int) bool) {
		var mine []asked
		for _, r := range all {
			if in(placeOf(r.record)) {
				mine = append(mine, r)
			}
		}
		at := slices.IndexFunc(report.Cuts, func(c loadgen.Cut) bool { return c.By == by && c.Name == name })
		c := loadgen.Cut{TTFT: &loadgen.Quantiles{}, TPOT: &loadgen.Quantiles{}}
		if at >= 0 {
			c, found = report.Cuts[at], found+1
		}
		s.cut(&t, by+" "+name+": ", mine, &c)
	}
	for _, who := range []string{"a", "b", "c"} {
		check("tenant", who, func(place int) bool { return tens[place:place+1] == who })
	}
	check("class", "interactive", func(place int) bool { return tens[place] != 'c' })
	check("class", "offline", func(place int) bool { return tens[place] == 'c' })
	for length := 10; length <= 100; length += 10 {
		check("input_tokens", strconv.Itoa(length), func(place int) bool { return lengthOf(place) == length })
	}
	t.exact("any other cut", 0, len(report.Cuts)-found)
	return t.rows
}

// cut compares one cut with what the server saw of its requests.
func (s *subject) cut(t *tally, name string, mine []asked, c *loadgen.Cut) {
	n := map[loadgen.Outcome]int{}
	for _, r := range mine {
		n[r.want]++
	}
	t.exact(name+"offered", len(mine), c.Offered)
	t.exact(name+"ok", n[loadgen.OK], c.OK)
	t.exact(name+"late", n[loadgen.Late], c.Late)
	t.exact(name+"failed", n[loadgen.HTTPError], c.Failed)
	t.number(name+"attainment", float64(n[loadgen.OK])/float64(max(1, len(mine))), c.Attainment)
	right := s.truthOf(mine)
	for _, m := range []struct {
		metric string
		got    *loadgen.Quantiles
	}{{fromIntended, &c.E2E}, {firstToken, c.TTFT}, {perToken, c.TPOT}} {
		if right, got := quantilesOf(right[m.metric]), measured(m.got); right != nil || got != nil {
			t.times(name+m.metric, right, got)
		}
	}
}

// clients are servers whose clients do more than ask once and wait.
func clients() []*subject {
	return []*subject{
		batches(),
		leaving(),
		retried("refused twice, asked again after 50 and 100 ms", loadgen.Retry{Most: 3, Base: 50 * msec}, "", 50*msec, 100*msec),
		retried("refused with Retry-After: 0.2, which is obeyed", loadgen.Retry{Most: 3, Base: 10 * msec, Obey: true}, "Retry-After: 0.2\r\n", 200*msec),
		conversations(),
	}
}

// batches take an upload and a second request. Their latency is that of both,
// and their send that of the second.
func batches() *subject {
	s := paced("batches of an upload and a creation", loadgen.Workload{Kind: loadgen.Batch, Content: loadgen.Content{Inputs: 3}}, loadgen.OK)
	s.steps = s.n
	s.server.choose = batchOf(30*msec, plain(20*msec, "200 OK", "", `{"id":"b1","object":"batch","status":"validating"}`))
	s.pair = func(s *subject, started time.Time) []asked {
		var out []asked
		intended, uploads := map[*record]time.Time{}, 0
		for _, r := range s.server.seen() {
			switch {
			case r.before != nil:
				out = append(out, asked{r, intended[r.before], r.before.ended(), loadgen.OK})
			case r.path == "/v1/files":
				intended[r] = started.Add(s.due(uploads))
				uploads++
			}
		}
		return out
	}
	return s
}

// batchOf takes uploads, each after d and with an id of its own, and has a script
// for the batches of them.
func batchOf(d time.Duration, created script) func(*record) script {
	files := map[string]*record{}
	return func(r *record) script {
		if r.path == "/v1/files" {
			id := fmt.Sprintf("file-%d", len(files))
			files[id] = r
			return without(plain(d, "200 OK", "", fmt.Sprintf(`{"id":%q,"object":"file"}`, id)))
		}
		var of struct {
			File string `json:"input_file_id"`
		}
		_ = json.Unmarshal(r.body, &of) // what is no JSON has no file
		if r.before = files[of.File]; r.before == nil {
			return plain(0, "404 Not Found", "", `{}`)
		}
		return without(created)
	}
}

// leaving is a server some of whose clients leave after half the time.
func leaving() *subject {
	load := unary
	load.Abandon = &loadgen.Abandon{Share: 0.3, After: 100 * msec}
	s := paced("clients of whom some leave after 100 ms", load, loadgen.OK, chat(200*msec))
	s.server.watch = true
	s.more = func(s *subject, report *loadgen.Report) []Row {
		left := truth{}
		for _, r := range leavers(s.all(report.Started)) {
			left.add("", r.left.Sub(r.intended))
		}
		t, took := tally{server: s.name}, quantilesOf(left[""])
		t.times("left after, median by the server's clock", []float64{100}, took[:min(1, len(took))])
		return t.rows
	}
	return s
}

// retried is a server that refuses each request as often as there are pauses. An
// attempt is meant to be sent a pause after the refusal, and send lag is from there.
func retried(name string, how loadgen.Retry, fields string, pauses ...time.Duration) *subject {
	load := unary
	load.Retry, load.Requests = &how, name
	s := &subject{name: name, n: 50, rate: 50, load: load}
	s.retries = s.n * len(pauses)
	var b bytes.Buffer
	for i := range s.n { // so that attempts tell whose they are
		fmt.Fprintf(&b, "{\"user\":\"%d\",\"messages\":[{\"role\":\"user\",\"content\":\"a word\"}]}\n", i)
	}
	s.file = b.Bytes()
	s.server.choose = func(r *record) script {
		for _, old := range s.server.records {
			if bytes.Equal(old.body, r.body) { // every attempt sends the same
				r.before = old
			}
		}
		if r.attempt() < len(pauses) {
			return plain(0, "429 Too Many Requests", fields, `{}`)
		}
		return chat(20 * msec)
	}
	s.pair = func(s *subject, started time.Time) []asked {
		var out []asked
		for _, r := range s.server.seen() {
			if n := r.attempt(); n == len(pauses) {
				out = append(out, asked{r, started.Add(s.due(asker(r))), r.before.ended().Add(pauses[n-1]), loadgen.OK})
			}
		}
		return out
	}
	return s
}

// asker is who asks: the number that its body says; -1 if it says none.
func asker(r *record) int {
	var of struct{ User string }
	_ = json.Unmarshal(r.body, &of)
	n, err := strconv.Atoi(of.User)
	if err != nil {
		return -1
	}
	return n
}

// attempt is how many came before it.
func (r *record) attempt() int {
	n := 0
	for b := r.before; b != nil; b = b.before {
		n++
	}
	return n
}

// habits are clients of which only outcomes and counts are checked.
func habits() []*subject {
	again, away := unary, streaming
	again.Retry = &loadgen.Retry{Most: 10, Base: 10 * msec}
	away.Abandon = &loadgen.Abandon{Share: 1, After: 100 * msec}
	refusal := plain(0, "429 Too Many Requests", "", `{}`)
	served := paced("refused, and served when asked again", again, loadgen.OK, refusal, chat(0))
	served.wants = served.wants[:1]
	served.retries = faulty // every second attempt is refused, whoever's it is
	again.Retry = &loadgen.Retry{Most: 2, Base: 10 * msec, Jitter: 0.5}
	refused := paced("refused each time", again, loadgen.Shed, refusal)
	refused.retries = 2 * faulty
	silence := without(stream(0, at(0, role), at(20*msec, word)).ends(hang))
	left := paced("clients that leave", away, loadgen.Cancelled, silence)
	left.abandoned = faulty
	late := paced("clients that leave when it is too late", held(away, loadgen.Goal{Target: 50 * msec}), loadgen.Late, silence)
	return []*subject{served, refused, left, late}
}
