package llama

import (
	"math"
	"slices"
	"strings"
	"testing"

	"aloft/backends/serve"
)

func TestHoldback(t *testing.T) {
	cases := []struct {
		name    string
		stops   []string
		pieces  []string
		want    string // what is emitted, pieces parted by |
		stopped bool
	}{
		{"no stops", nil, []string{"a", "b"}, "a|b", false},
		{"inside one piece", []string{"X"}, []string{"aXb", "c"}, "a", true},
		{"across pieces", []string{"END"}, []string{"one", "E", "N", "D", "two"}, "one", true},
		{"across pieces, text before in the same piece", []string{"END"}, []string{"oneE", "ND"}, "one", true},
		{"false alarm", []string{"END"}, []string{"E", "N", "x"}, "E|N|x", false},
		{"false alarm at the end is flushed", []string{"END"}, []string{"a", "EN"}, "a|EN", false},
		{"the earliest wins", []string{"cd", "b"}, []string{"abcd"}, "a", true},
		{"overlapping start", []string{"aab"}, []string{"a", "a", "a", "b"}, "a", true},
		{"at once", []string{"a"}, []string{"a"}, "", true},
		{"multi-byte", []string{"日本"}, []string{"x\xe6", "\x97", "\xa5", "\xe6\x9c", "\xac"}, "x", true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			h := holdback{stops: c.stops}
			var got []string
			emit := func(p serve.Piece) { got = append(got, p.Text) }
			stopped := false
			for _, p := range c.pieces {
				if stopped = h.push(serve.Piece{Text: p}, emit); stopped {
					break
				}
			}
			if !stopped {
				h.flush(emit)
			}
			if strings.Join(got, "|") != c.want || stopped != c.stopped {
				t.Errorf("emitted %q, stopped %v; want %q, %v", got, stopped, c.want, c.stopped)
			}
		})
	}
}

func FuzzHoldback(f *testing.F) {
	f.Add("one END two", "END", "two", uint8(2))
	f.Add("aaab", "aab", "b", uint8(1))
	f.Fuzz(func(t *testing.T, text, stop1, stop2 string, cut uint8) {
		if stop1 == "" || stop2 == "" {
			t.Skip("empty stop strings are refused by the server")
		}
		want, wantStop := text, false
		for _, s := range []string{stop1, stop2} {
			if at := strings.Index(text, s); at >= 0 {
				want, wantStop = want[:min(at, len(want))], true
			}
		}
		h := holdback{stops: []string{stop1, stop2}}
		var got strings.Builder
		emit := func(p serve.Piece) { got.WriteString(p.Text) }
		stopped := false
		for rest, n := text, int(cut%5)+1; rest != "" && !stopped; {
			n = min(n, len(rest))
			stopped = h.push(serve.Piece{Text: rest[:n]}, emit)
			rest = rest[n:]
		}
		if !stopped {
			h.flush(emit)
		}
		// Of two stop strings the one that is complete first wins, so the
		// text may end later than the earliest start, never inside a stop.
		if stopped != wantStop || !stopped && got.String() != want || stopped && !strings.HasPrefix(text, got.String()) {
			t.Fatalf("text %q stops %q %q: got %q %v, want %q %v", text, stop1, stop2, got.String(), stopped, want, wantStop)
		}
		for _, s := range []string{stop1, stop2} {
			if strings.Contains(got.String(), s) {
				t.Fatalf("emitted %q, which holds the stop string %q", got.String(), s)
			}
		}
	})
}

func TestSamplerPick(t *testing.T) {
	nan := float32(math.NaN())
	cases := []struct {
		name   string
		s      sampler
		logits []float32
		want   []int // tokens that may come; all must within 2000 draws
	}{
		{"greedy", sampler{temperature: 0, topP: 1}, []float32{1, 3, 2}, []int{1}},
		{"all", sampler{temperature: 1, topP: 1}, []float32{1, 1, 1}, []int{0, 1, 2}},
		{"nucleus of one", sampler{temperature: 1, topP: 0.1}, []float32{1, 3, 2}, []int{1}},
		{"nucleus of two", sampler{temperature: 1, topP: 0.75}, []float32{0, 2, 2}, []int{1, 2}},
		{"NaN is impossible", sampler{temperature: 1, topP: 1}, []float32{nan, 1, nan}, []int{1}},
		{"all NaN", sampler{temperature: 1, topP: 0.5}, []float32{nan, nan}, []int{1}},
		{"minus infinity", sampler{temperature: 1, topP: 1}, []float32{float32(math.Inf(-1)), 1}, []int{1}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			seen := map[int]bool{}
			for range 2000 {
				seen[c.s.pick(c.logits)] = true
			}
			var got []int
			for k := range seen {
				got = append(got, k)
			}
			slices.Sort(got)
			if !slices.Equal(got, c.want) {
				t.Errorf("tokens %v, want %v", got, c.want)
			}
		})
	}
}

// The sampled shares must be the softmax's, within five standard deviations.
func TestSamplerShares(t *testing.T) {
	logits := []float32{0, float32(math.Log(2)), float32(math.Log(5))} // 1/8 2/8 5/8
	s := sampler{temperature: 1, topP: 1, seed: 7}
	const n = 20000
	count := make([]float64, 3)
	for range n {
		count[s.pick(logits)]++
	}
	for i, p := range []float64{0.125, 0.25, 0.625} {
		if sd := math.Sqrt(p * (1 - p) / n); math.Abs(count[i]/n-p) > 5*sd {
			t.Errorf("token %d came with share %.4f, want %.4f", i, count[i]/n, p)
		}
	}
}

// Logits that differ by rounding, as they do between batch shapes, must nearly
// always give the same draws.
func TestSamplerShrugsOffRounding(t *testing.T) {
	for _, topP := range []float64{1, 0.9} {
		a, b := sampler{temperature: 1, topP: topP, seed: 3}, sampler{temperature: 1, topP: topP, seed: 3}
		logits, other := make([]float32, 500), make([]float32, 500)
		differ := 0
		const n = 2000
		for step := range n {
			for i := range logits {
				logits[i] = float32(i*37%500) / 50
				other[i] = logits[i] + 1e-4*float32((i*7+step)%3-1)
			}
			if a.pick(logits) != b.pick(other) {
				differ++
			}
		}
		if differ > n/200 {
			t.Errorf("top_p %v: %d of %d draws differ", topP, differ, n)
		}
	}
}

// BenchmarkPick draws from a large vocabulary with Zipf's distribution.
func BenchmarkPick(b *testing.B) {
	logits := make([]float32, 128000)
	for i := range logits {
		logits[i] = -1.5 * float32(math.Log(float64(i*7919%len(logits)+1)))
	}
	s := sampler{temperature: 1, topP: 0.95}
	for b.Loop() {
		s.pick(logits)
	}
}

func TestLogprobs(t *testing.T) {
	logits := []float32{0, float32(math.Log(2)), float32(math.Log(5)), float32(math.NaN())}
	p, top := logprobs(logits, 0, 2)
	if math.Abs(p-math.Log(0.125)) > 1e-6 {
		t.Errorf("logprob %v, want %v", p, math.Log(0.125))
	}
	if len(top) != 2 || top[0].token != 2 || top[1].token != 1 || math.Abs(top[0].p-math.Log(0.625)) > 1e-6 {
		t.Errorf("top %v", top)
	}
	if _, top := logprobs(logits, 0, 0); len(top) != 0 {
		t.Errorf("asked for none, got %v", top)
	}
}

func TestAllot(t *testing.T) {
	gen := func() *sequence { return &sequence{prompt: make([]prompted, 3), pos: 5} }
	read := func(n, order int) *sequence { return &sequence{prompt: make([]prompted, n), order: order} }
	cases := []struct {
		name  string
		slots []*sequence
		room  int
		want  []int
	}{
		{"generation first", []*sequence{gen(), read(100, 1), gen()}, 10, []int{1, 8, 1}},
		{"oldest prompt first", []*sequence{read(6, 2), read(6, 1)}, 8, []int{2, 6}},
		{"free slots", []*sequence{nil, gen()}, 8, []int{0, 1}},
		{"no room for prompts", []*sequence{gen(), gen(), read(5, 1)}, 2, []int{1, 1, 0}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			allot(c.slots, c.room)
			for i, s := range c.slots {
				if s != nil && s.take != c.want[i] {
					t.Errorf("slot %d takes %d, want %d", i, s.take, c.want[i])
				}
			}
		})
	}
}

func TestOptionsValidate(t *testing.T) {
	cases := []struct {
		opt  Options
		want string
	}{
		{Options{Model: "m.gguf"}, ""},
		{Options{}, "no model"},
		{Options{Model: "m", Slots: -1}, "slots is -1"},
		{Options{Model: "m", Threads: 1000}, "threads"},
		{Options{Model: "m", Context: 2}, "context is 2"},
		{Options{Model: "m", Slots: 16, BatchTokens: 8}, "batch_tokens is 8"},
		{Options{Model: "m", MaxQueue: -5}, "max_queue"},
	}
	for _, c := range cases {
		err := c.opt.Validate()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: %v, want %q", c.opt, err, c.want)
		}
	}
}

func TestUnit(t *testing.T) {
	if v := unit([]float32{3, 4, 12}, 2); len(v) != 2 || math.Abs(float64(v[0])-0.6) > 1e-6 || math.Abs(float64(v[1])-0.8) > 1e-6 {
		t.Errorf("got %v, want [0.6 0.8]", v)
	}
	if v := unit([]float32{float32(math.NaN()), 1}, 0); v[0] != 0 || v[1] != 0 {
		t.Errorf("NaN gave %v, want zeros", v)
	}
}
