package known

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"aloft/loadgen"
)

// A cut that holds a request too many, or a time of another's, has to be found.
func TestWrongCutsAreFound(t *testing.T) {
	s := tenants()
	start := time.Unix(1000, 0)
	var mine []asked
	for i := range 3 {
		r := &record{script: s.server.scripts[6], arrived: start}
		for _, ms := range []int{0, 60, 90, 100} {
			r.writes = append(r.writes, start.Add(time.Duration(ms)*msec))
		}
		mine = append(mine, asked{r, start, start, []loadgen.Outcome{loadgen.OK, loadgen.OK, loadgen.Late}[i]})
	}
	always := func(ms float64) *loadgen.Quantiles {
		return &loadgen.Quantiles{N: 3, P50: ms, P95: ms, P99: ms, Max: ms}
	}
	for name, c := range map[string]struct {
		change func(*loadgen.Cut)
		want   []string
	}{
		"right":             {func(*loadgen.Cut) {}, nil},
		"one of another":    {func(c *loadgen.Cut) { c.Offered, c.OK = 4, 3 }, []string{"offered", "ok"}},
		"late is ok":        {func(c *loadgen.Cut) { c.OK, c.Late, c.Attainment = 3, 0, 1 }, []string{"ok", "late", "attainment"}},
		"a failure more":    {func(c *loadgen.Cut) { c.Failed++ }, []string{"failed"}},
		"time of another":   {func(c *loadgen.Cut) { c.E2E.Max = 102 }, []string{fromIntended + ", ms"}},
		"no first token":    {func(c *loadgen.Cut) { c.TTFT = nil }, []string{firstToken + ", ms"}},
		"tokens of another": {func(c *loadgen.Cut) { c.TPOT = always(20) }, []string{perToken + ", ms"}},
	} {
		cut := loadgen.Cut{Tally: loadgen.Tally{Offered: 3, OK: 2, Late: 1}, Attainment: 2. / 3, E2E: *always(100), TTFT: always(60), TPOT: always(30)}
		c.change(&cut)
		var rows tally
		s.cut(&rows, "", mine, &cut)
		var wrong []string
		for _, r := range rows.rows {
			if !r.OK {
				wrong = append(wrong, r.Metric)
			}
		}
		if !slices.Equal(wrong, c.want) {
			t.Errorf("%s: wrong rows %q, want %q", name, wrong, c.want)
		}
	}
}

// A turn that forgets a word of what was said before has to be found.
func TestHistoryIsCompared(t *testing.T) {
	const user, second = `{"role":"user","content":"hello"}`, `,{"role":"user","content":"more"}`
	for name, c := range map[string]struct {
		messages       string
		follows, whole bool
	}{
		"whole":              {user + `,{"role":"assistant","content":"answer 0"}` + second, true, true},
		"another question":   {`{"role":"user","content":"hi"},{"role":"assistant","content":"answer 0"}` + second, true, false},
		"more than was said": {user + "," + user + `,{"role":"assistant","content":"answer 0"}` + second, true, false},
		"nothing new":        {user + `,{"role":"assistant","content":"answer 0"},{"role":"user","content":""}`, true, false},
		"never said":         {user + `,{"role":"assistant","content":"answer 7"}` + second, false, false},
		"a first turn":       {user, false, false},
	} {
		s := session("s", unary, 2, time.Second)
		s.talking(func(turn int, said string) script { return chatSaying(0, said) })
		for _, messages := range []string{user, c.messages} {
			r := &record{body: []byte(`{"model":"known","messages":[` + messages + `]}`)}
			r.script = s.server.choose(r)
			s.server.records = append(s.server.records, r)
		}
		r := s.server.records[1]
		if follows := r.before == s.server.records[0]; follows != c.follows || r.whole != c.whole {
			t.Errorf("%s: follows %v, whole %v", name, follows, r.whole)
		}
	}
}

// Each length of a text tells its place in the ten, cut at a word as it may be.
func TestPlaceIsByLength(t *testing.T) {
	for place := range tens {
		for _, cut := range []int{0, 16} {
			text := slices.Repeat([]byte("a"), 4*lengthOf(place)-cut)
			r := &record{body: fmt.Appendf(nil, `{"messages":[{"role":"user","content":%q}]}`, text)}
			if got := placeOf(r); got != place {
				t.Errorf("%d bytes are of place %d, want %d", len(text), got, place)
			}
		}
	}
}
