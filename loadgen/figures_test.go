package loadgen

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"aloft/loadgen/arrivals"
)

func ofMillis(v float64) time.Duration { return time.Duration(v * float64(time.Millisecond)) }

// collecting is a collector of one streaming workload of two tenants, one phase
// of 10 s.
func collecting(opt Options, n int) *collector {
	opt = opt.withDefaults()
	plan := arrivals.Plan{Offsets: make([]time.Duration, n), Spans: []arrivals.Span{{Name: "steady", To: 10 * time.Second, N: n}}}
	return newCollector(opt, []arrivals.Plan{plan}, time.Now())
}

func twoTenants() Options {
	return Options{Workloads: []Workload{{
		Name: "chat", Kind: Chat, Model: "m", Stream: true, Goal: Goal{Target: time.Second},
		Tenants: []Tenant{{Name: "big", Share: 3, Class: "standard"}, {Name: "small", Share: 1, Class: "offline", Goal: &Goal{}}},
	}}}
}

// One stream by hand: meant for 1000 ms, sent at 1005, first byte at 1010, a
// chunk with only a role at 1020, reasoning at 1050, content at 1090, then 8
// tokens in two chunks of one read at 1170 and 2 tokens in one chunk at 1190;
// 14 tokens in 7 chunks.
func oneStream() sample {
	return sample{
		outcome: OK, wasSent: true,
		times: times{
			intended: 1000 * msec, sent: 1005 * msec, byte: 1010 * msec, role: 1020 * msec, first: 1050 * msec,
			visible: 1090 * msec, last: 1310 * msec, end: 1320 * msec, worst: 12 * msec,
		},
		tokens: tokens{prompt: 30, completion: 14, chunks: 7},
		gaps:   []gap{{40 * msec, 1}, {80 * msec, 2}, {20 * msec, 1}, {120 * msec, 2}},
	}
}

func TestEveryFigureOfOneStream(t *testing.T) {
	col := collecting(twoTenants(), 10)
	s := oneStream()
	col.add(&s)
	r := &col.report(false).Results[0]
	for name, want := range map[string]float64{
		"e2e": 320, "e2e_sent": 315, "lag": 5, "ttfb": 10, "ttfb_sent": 5, "role": 20, "role_sent": 15,
		"ttft": 50, "ttft_sent": 45, "visible": 90, "visible_sent": 85, "tpot": 20, "lateness": 12,
		"gap": 120, "itl": 30, // the greatest: 120 ms for 2 chunks of 2 tokens each
	} {
		q := r.Figure(name)
		if q == nil {
			t.Fatalf("no figure %s", name)
		}
		near(t, name, q.Max, want)
		if q.LeftOut != 0 || q.AtLeast != 0 {
			t.Errorf("%s: %+v, want nothing left out", name, q)
		}
	}
	// Gaps 20, 40, 80, 120. By token: 40 ms for 2 tokens, 80 for 4, 20 for 2 and 120
	// for 4, so 2 of 10 ms, 2 + 4 of 20 and 4 of 30.
	if r.Gap.N != 4 || r.ITL.N != 12 {
		t.Errorf("%d gaps and %d tokens after the first, want 4 and 12", r.Gap.N, r.ITL.N)
	}
	near(t, "gap mean", r.Gap.Mean, 65)
	near(t, "gap p50", r.Gap.P50, 40)
	near(t, "ITL mean", r.ITL.Mean, 260.0/12)
	near(t, "ITL p50", r.ITL.P50, 20)
	near(t, "good tokens/s", r.GoodTokens, 1.4)
	near(t, "goodput", r.Good, 0.1)
	if r.Figure("nothing") != nil {
		t.Error("there is a figure called nothing")
	}
}

// A quantile is the least value that at least its share does not exceed: by the
// nearest rank, never below it. p99 of less than 100 values is the greatest.
func TestQuantilesByNearestRank(t *testing.T) {
	for n := 1; n <= 250; n++ {
		var whole dist
		var part packedDist
		for i := range n {
			whole.one(ofMillis(float64(i+1)), false)
			part.add(int64(i+1)*1000, false)
		}
		q, cut := whole.quantiles(n, true), part.quantiles(n)
		for name, per := range map[string]int{"p50": 500, "p90": 900, "p95": 950, "p99": 990, "p999": 999, "max": 1000} {
			want := float64((per*n + 999) / 1000)
			got, _ := q.At(name)
			ofCut, _ := cut.At(name)
			if math.Round(got) != want || math.Round(ofCut) != want || math.Round(q.HDR.Quantile(float64(per)/1000)) != want {
				t.Errorf("%s of 1, 2 … %d is %v, of a cut %v, by HDR %v, want %v", name, n, got, ofCut, q.HDR.Quantile(float64(per)/1000), want)
			}
		}
	}
}

// A cut's distribution is that of a phase with the same values, no quantile is
// above its greatest, and it holds no histogram of 200 KB: a report may have a
// thousand cuts.
func TestCutsArePacked(t *testing.T) {
	var whole dist
	var part, first, second packedDist
	for i := range int64(100) {
		us := 366_000 - 17*i // 366.0 ms lies in a bucket that ends at 366.1
		whole.add(time.Duration(us)*time.Microsecond, 1)
		part.add(us, false)
		if i%2 == 0 {
			first.add(us, false)
		} else {
			second.add(us, false)
		}
	}
	second.merge(&first)
	q := whole.quantiles(100, true)
	for name, cut := range map[string]Quantiles{"whole": part.quantiles(100), "merged": second.quantiles(100)} {
		if cut.Max != 366 || cut.P99 > cut.Max || cut.P99 != q.P99 || cut.P50 != q.P50 {
			t.Errorf("%s: %+v, want the quantiles of %+v", name, cut, q)
		}
		if cut.HDR.h != nil {
			t.Errorf("%s: holds a whole histogram", name)
		}
		ofCut, err := cut.HDR.MarshalText()
		ofPhase, _ := q.HDR.MarshalText()
		if err != nil || !bytes.Equal(ofCut, ofPhase) || cut.HDR.N() != 100 || cut.HDR.Quantile(0.5) != q.HDR.Quantile(0.5) || len(cut.HDR.Buckets()) != len(q.HDR.Buckets()) {
			t.Errorf("%s: its histogram is another (%v)", name, err)
		}
	}
}

// Quantiles of 1, 2, … 1000 ms.
func TestQuantilesByHand(t *testing.T) {
	var d dist
	for i := range 1000 {
		d.one(time.Duration(i+1)*msec, i >= 990)
	}
	q := d.quantiles(1250, true)
	for name, want := range map[string]float64{"mean": 500.5, "p50": 500, "p90": 900, "p95": 950, "p99": 990, "p999": 999, "max": 1000} {
		got, ok := q.At(name)
		if !ok {
			t.Errorf("no %s", name)
		}
		near(t, name, got, want)
	}
	if q.N != 1000 || q.LeftOut != 250 || q.AtLeast != 10 {
		t.Errorf("n %d, left out %d, at least %d, want 1000, 250, 10", q.N, q.LeftOut, q.AtLeast)
	}
	text, err := json.Marshal(q)
	if err != nil {
		t.Fatal(err)
	}
	var back Quantiles
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	if !back.HDR.h.Equals(q.HDR.h) || back.HDR.N() != 1000 {
		t.Error("the histogram came back as another one")
	}
	near(t, "quantile 0.25", back.HDR.Quantile(0.25), 250)
	n := int64(0)
	for _, b := range back.HDR.Buckets() {
		if n += b.Count; b.From > b.To || b.Count <= 0 {
			t.Errorf("bucket %+v", b)
		}
	}
	if n != 1000 {
		t.Errorf("%d values in the buckets, want 1000", n)
	}
	if text, _ = json.Marshal((&dist{}).quantiles(0, true)); strings.Contains(string(text), "hdr") {
		t.Errorf("without values: %s, want no histogram", text)
	}
	for _, bad := range []string{`{"hdr":"nonsense!"}`, `{"hdr":""}`, `{"hdr":"AAAA"}`} {
		if err := json.Unmarshal([]byte(bad), &back); err == nil {
			t.Errorf("%s was read", bad)
		}
	}
	if _, ok := q.At("p42"); ok {
		t.Error("there is a p42")
	}
}

// What was given up took at least its age, to its end and to every mark that it
// had not reached.
func TestGivenUpCountsWithItsAge(t *testing.T) {
	col := collecting(twoTenants(), 10)
	silent := sample{outcome: Timeout, wasSent: true, times: times{intended: 0, sent: 10 * msec, end: 400 * msec}}
	begun := sample{outcome: Late, unfinished: true, wasSent: true, times: times{intended: 0, sent: 10 * msec, byte: 20 * msec, first: 30 * msec, end: 500 * msec}, gaps: []gap{{msec, 1}}}
	waiting := sample{outcome: Timeout, waited: true, times: times{intended: 0, end: 600 * msec}}
	broken := sample{outcome: StreamError, wasSent: true, times: times{intended: 0, byte: msec, first: 2 * msec, end: 3 * msec}}
	for _, s := range []sample{silent, begun, waiting, broken} {
		col.add(&s)
	}
	r := &col.report(false).Results[0]
	for _, c := range []struct {
		name             string
		n                int64
		leftOut, atLeast int
		least, most      float64
	}{
		{"e2e", 3, 1, 3, 400, 600},
		{"e2e_sent", 2, 2, 2, 390, 490},
		{"ttfb", 3, 1, 2, 20, 600},
		{"ttft", 3, 1, 2, 30, 600},
		{"ttft_sent", 2, 2, 1, 20, 390},
		{"visible", 3, 1, 3, 400, 600},
		{"tpot", 0, 4, 0, 0, 0},
		{"gap", 0, 4, 0, 0, 0},
		{"lag", 3, 1, 0, 0, 10},
	} {
		q := r.Figure(c.name)
		if q.N != c.n || q.LeftOut != c.leftOut || q.AtLeast != c.atLeast {
			t.Errorf("%s: n %d, left out %d, at least %d, want %d, %d, %d", c.name, q.N, q.LeftOut, q.AtLeast, c.n, c.leftOut, c.atLeast)
		}
		if c.n > 0 {
			near(t, c.name+" least", q.HDR.Quantile(0), c.least)
			near(t, c.name+" max", q.Max, c.most)
		}
	}
}

// Twelve requests, every outcome once or more, with those that count apart.
func TestTalliesByHand(t *testing.T) {
	opt := twoTenants()
	opt.WarmUp = time.Second
	col := collecting(opt, 12)
	at := func(sec float64, o Outcome) sample {
		d := time.Duration(sec * float64(time.Second))
		return sample{outcome: o, wasSent: true, times: times{intended: d, sent: d, byte: d + msec, first: d + 2*msec, last: d + 5*msec, end: d + 100*msec}}
	}
	for _, s := range []func() sample{
		func() sample { s := at(0.1, OK); s.completion = 4; return s },
		func() sample { s := at(0.2, OK); s.retries = 2; return s },
		func() sample { s := at(0.95, Late); s.end += 1500 * msec; return s }, // open at the end of steps 0 and 1
		func() sample { s := at(1.1, Shed); s.retryAfter, s.retries = true, 1; return s },
		func() sample { return at(1.2, Shed) },
		func() sample { return at(1.3, HTTPError) },
		func() sample { return at(1.4, StreamError) },
		func() sample { return at(1.5, Truncated) },
		func() sample { s := at(3.1, Connect); s.tenant = 1; return s },
		func() sample { s := at(3.2, Timeout); s.tenant = 1; return s },
		func() sample { return at(3.3, Protocol) },
		func() sample { return at(3.4, Cancelled) },
		func() sample { s := at(3.5, Cancelled); s.abandoned = true; return s },
		func() sample { s := at(3.6, OK); s.abandoned = true; return s }, // was answered before it left
		func() sample { s := at(0.5, OK); s.warm = true; return s },
		func() sample { s := at(0.6, Shed); s.warm = true; return s },
	} {
		x := s()
		col.add(&x)
	}
	report := col.report(false)
	r := report.Results[0]
	if want := (Tally{Offered: 13, OK: 3, Late: 1, Shed: 2, Failed: 7, RetryAfter: 1, Retries: 3, Abandoned: 1}); r.Tally != want {
		t.Errorf("tally %+v, want %+v", r.Tally, want)
	}
	for _, o := range failures {
		if r.FailedBy[o] != 1 {
			t.Errorf("%d %s, want 1", r.FailedBy[o], o)
		}
	}
	if want := (Tally{Offered: 2, OK: 1, Shed: 1}); *report.WarmUp != want {
		t.Errorf("warm-up %+v, want %+v", *report.WarmUp, want)
	}
	near(t, "attainment", r.Attainment, 3.0/13)
	near(t, "retries/s", r.Extra, 0.3)
	near(t, "good/s", r.Good, 0.3)
	near(t, "sent/s", r.Achieved, 1.4) // the one that left was sent too
	if r.LeftOut != 13-5 || r.N != 5 {
		t.Errorf("%d in the latencies and %d left out, want 3 + 1 + 1 and 8", r.N, r.LeftOut)
	}
	want := []Point{
		{At: 0, Offered: 3, Good: 2, Late: 1, Tokens: 4, P50: 100, P99: 1600, InFlight: 1},
		{At: 1, Offered: 5, Shed: 2, Failed: 3, InFlight: 1},
		{At: 2},
		{At: 3, Offered: 5, Good: 1, Failed: 4, P50: 100, P99: 100},
	}
	if len(r.Timeline) != len(want) || report.Step != 1 {
		t.Fatalf("time line %+v in steps of %v s, want %+v", r.Timeline, report.Step, want)
	}
	for i, p := range r.Timeline {
		if math.Abs(p.P50-want[i].P50) <= want[i].P50/100 && math.Abs(p.P99-want[i].P99) <= want[i].P99/100 {
			p.P50, p.P99 = want[i].P50, want[i].P99
		}
		if p != want[i] {
			t.Errorf("step %d: %+v, want %+v", i, p, want[i])
		}
	}
	for i, want := range []Cut{
		{Workload: "chat", By: "tenant", Name: "big", Tally: Tally{Offered: 11, OK: 3, Late: 1, Shed: 2, Failed: 5, RetryAfter: 1, Retries: 3, Abandoned: 1}, Attainment: 3.0 / 11},
		{Workload: "chat", By: "tenant", Name: "small", Tally: Tally{Offered: 2, Failed: 2}},
		{Workload: "chat", By: "class", Name: "offline", Tally: Tally{Offered: 2, Failed: 2}},
		{Workload: "chat", By: "class", Name: "standard", Tally: Tally{Offered: 11, OK: 3, Late: 1, Shed: 2, Failed: 5, RetryAfter: 1, Retries: 3, Abandoned: 1}, Attainment: 3.0 / 11},
	} {
		got := report.Cuts[i]
		if i == 0 {
			near(t, "p99 of a tenant", got.E2E.P99, 1600)
			near(t, "TTFT of a tenant", got.TTFT.P99, 2)
		}
		got.E2E, got.TTFT, got.TPOT = Quantiles{}, nil, nil
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("cut %d: %+v, want %+v", i, got, want)
		}
	}
}

// What is sent long after the phase because of an answer, a batch's second step, a
// further attempt or a session's next turn, is not behind a schedule.
func TestFollowUpsDoNotSlowTheRate(t *testing.T) {
	col := collecting(twoTenants(), 2)
	for _, s := range []sample{
		{outcome: OK, wasSent: true, times: times{intended: 9 * time.Second, due: 14 * time.Second, sent: 14 * time.Second, end: 15 * time.Second}},
		{outcome: Shed, wasSent: true, retries: 3, times: times{intended: 9 * time.Second, due: 15 * time.Second, sent: 15*time.Second + 2*msec, end: 16 * time.Second}},
		{outcome: OK, wasSent: true, further: true, times: times{intended: 18 * time.Second, sent: 18 * time.Second, end: 19 * time.Second}},
	} {
		col.add(&s)
	}
	r := col.report(false).Results[0]
	near(t, "planned with the turn", r.Planned, 0.3)
	near(t, "sent/s", r.Achieved, 0.3)
	near(t, "retries/s", r.Extra, 0.3)
	near(t, "lag of the attempt", r.SendLag.Max, 2)
}

func TestTenthsOfTheLength(t *testing.T) {
	col := collecting(twoTenants(), 200)
	for i := range 100 { // planned lengths 1 to 100, the long half late; the server's own count is not asked
		s := sample{outcome: OK, times: times{end: time.Duration(i+1) * msec}, tokens: tokens{input: i + 1, prompt: 9999}}
		if i >= 50 {
			s.outcome = Late
		}
		col.add(&s)
	}
	cuts := col.report(false).Cuts
	var names []string
	for _, c := range cuts {
		if c.By != "input_tokens" {
			continue
		}
		names = append(names, c.Name)
		if want := map[bool]float64{true: 1}[c.E2E.P99 < 51]; c.Offered != 10 && c.Offered != 9 && c.Offered != 11 || c.Attainment != want {
			t.Errorf("%s: %d offered, attainment %v", c.Name, c.Offered, c.Attainment)
		}
	}
	// Above 63 lengths are gathered by twos.
	if got, want := strings.Join(names, " "), "1-10 11-20 21-30 31-40 41-50 51-60 61-71 72-81 82-91 92-100"; got != want {
		t.Errorf("tenths %s, want %s", got, want)
	}
	same := collecting(twoTenants(), 10)
	for range 10 { // only the server's count is known
		same.add(&sample{outcome: OK, times: times{end: msec}, tokens: tokens{prompt: 128}})
	}
	same.add(&sample{outcome: Shed, times: times{end: msec}}) // of unknown length
	if got := same.report(false).Cuts; got[len(got)-1].Name != "128" || got[len(got)-1].Offered != 10 {
		t.Errorf("one length: %+v, want one tenth of all 10", got[len(got)-1])
	}
}

// However requests end, every one offered is in exactly one class, everywhere.
func TestTalliesSumToOffered(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 0))
	all := []Outcome{OK, Late, Shed, HTTPError, StreamError, Truncated, Connect, Timeout, Protocol, Cancelled}
	for range 50 {
		n := r.IntN(300)
		col := collecting(twoTenants(), n)
		left, warm := 0, 0
		for range n {
			begin := time.Duration(r.Int64N(int64(10 * time.Second)))
			s := sample{
				outcome: all[r.IntN(len(all))], tenant: r.IntN(2), wasSent: r.IntN(4) > 0, waited: r.IntN(2) == 0, retryAfter: r.IntN(2) == 0,
				abandoned: r.IntN(4) == 0, warm: r.IntN(8) == 0, retries: r.IntN(3),
				times: times{intended: begin, sent: begin, end: begin + time.Duration(r.Int64N(int64(20*time.Second)))}, tokens: tokens{input: r.IntN(3000)},
			}
			s.unfinished = (s.outcome == Late || s.outcome == Timeout) && r.IntN(2) == 0
			switch {
			case s.warm:
				warm++
			case s.left():
				left++
			}
			col.add(&s)
		}
		report := col.report(false)
		x := report.Results[0]
		sums := func(where string, a Tally) {
			if a.Offered != a.OK+a.Late+a.Shed+a.Failed {
				t.Errorf("seed %d: %s: %+v does not sum up", seed, where, a)
			}
		}
		sums("result", x.Tally)
		if x.Offered+left+warm != n || x.Abandoned != left {
			t.Errorf("seed %d: %d offered, %d left, %d warm of %d", seed, x.Offered, left, warm, n)
		}
		failed := 0
		for _, v := range x.FailedBy {
			failed += v
		}
		if failed != x.Failed {
			t.Errorf("seed %d: %d failed, by kind %v", seed, x.Failed, x.FailedBy)
		}
		by, points := map[string]int{}, 0
		for _, c := range report.Cuts {
			sums(c.By+" "+c.Name, c.Tally)
			by[c.By] += c.Offered
		}
		for _, p := range x.Timeline {
			points += p.Offered
			if p.Offered != p.Good+p.Late+p.Shed+p.Failed || p.InFlight < 0 {
				t.Errorf("seed %d: %+v does not sum up", seed, p)
			}
		}
		if points != x.Offered || by["tenant"] != x.Offered || by["class"] != x.Offered || by["input_tokens"] > x.Offered {
			t.Errorf("seed %d: %d offered, %d in the time line, %v in the cuts", seed, x.Offered, points, by)
		}
		for m := range metrics {
			if q := x.figure(m); q.LeftOut < 0 || m < itl && q.N+int64(q.LeftOut) != int64(x.Offered) && m != sendLag {
				t.Errorf("seed %d: %s: %d values and %d left out of %d", seed, metricNames[m].name, q.N, q.LeftOut, x.Offered)
			}
		}
	}
}

func TestLongRunsHaveLongerSteps(t *testing.T) {
	for total, want := range map[time.Duration]time.Duration{
		0: time.Second, time.Minute: time.Second, time.Hour: time.Second, time.Hour + 1: 2 * time.Second, 24 * time.Hour: 24 * time.Second,
	} {
		if got := stepFor(total); got != want {
			t.Errorf("step of %v is %v, want %v", total, got, want)
		}
	}
}
