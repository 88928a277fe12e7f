package loadgen

import (
	"math"
	"math/rand/v2"
	"testing"
)

// The textbook's tables of distribution-free intervals.
func TestQuantileRanks(t *testing.T) {
	for _, c := range []struct {
		n      int
		q      float64
		lo, hi int
	}{
		{10, 0.5, 2, 9},
		{100, 0.5, 40, 61},
		{5, 0.5, 0, 6},       // 5 values do not bound a median at 95 %: 2 / 2⁵ = 6.25 %
		{6, 0.5, 1, 6},       // 6 do: 2 / 2⁶ = 3.1 %
		{100, 0.99, 97, 101}, // no upper end: 0.99¹⁰⁰ = 37 % of all runs are below it
		{1, 0.99, 1, 2},      // it is below the quantile in 99 % of all runs
	} {
		if lo, hi := quantileRanks(c.n, c.q, 0.95); lo != c.lo || hi != c.hi {
			t.Errorf("quantile %v of %d: ranks %d to %d, want %d to %d", c.q, c.n, lo, hi, c.lo, c.hi)
		}
	}
}

// A 95 % interval holds the truth in 95 % of all runs or more, of a skew
// distribution too.
func TestQuantileIntervalHoldsTheTruth(t *testing.T) {
	const runs, values = 400, 500
	r := rand.New(rand.NewPCG(7, 7))
	held := map[float64]int{}
	for range runs {
		var d dist
		for range values {
			d.one(ofMillis(100*r.ExpFloat64()), false)
		}
		q := d.quantiles(values, true)
		for _, at := range []float64{0.5, 0.95, 0.99} {
			in, truth := q.interval(at, values), -100*math.Log(1-at)
			if in.Lo <= truth*1.001 && (in.Open || truth <= in.Hi*1.001) {
				held[at]++
			}
		}
	}
	for at, n := range held {
		if n < runs*93/100 {
			t.Errorf("the interval of quantile %v held in %d of %d runs, want 95 %%", at, n, runs)
		}
	}
	if len(held) != 3 {
		t.Errorf("held %v", held)
	}
}

// Steps that hang together make the interval wider than Wilson's.
func TestBatchMeans(t *testing.T) {
	points := make([]Point, 20)
	for i := range points { // 1000 requests a step; in every fourth all fail
		points[i] = Point{Offered: 1000, Good: 1000}
		if i%4 == 3 {
			points[i].Good = 0
		}
	}
	r := Result{Tally: Tally{Offered: 20_000, OK: 15_000}, Timeline: points}
	got, plain := attained(&r), wilson(15_000, 20_000)
	// Stretches of two steps: all good, or half of them. 0.264 / √10 · 2.26 = ±0.19.
	if got.Lo < 0.50 || got.Lo > 0.60 || got.Hi < 0.90 || got.Hi > 0.96 {
		t.Errorf("%+v, want about 0.55 to 0.95; Wilson alone says %+v", got, plain)
	}
	if got := batchMeans(points[:9], nil, nil); !got.Open {
		t.Errorf("%+v of 9 steps, want an open one", got)
	}
}

// A 95 % interval of the attainment holds the truth nearly as often where a good
// second is followed by a good one and a bad one by a bad. With a memory of 0.8
// stretches of 12 seconds still share something; drawing seconds one by one, as a
// plain bootstrap does, holds in 68 % there.
func TestAttainmentIntervalHoldsTheTruth(t *testing.T) {
	const runs, steps, offered = 1000, 120, 50
	for memory, least := range map[float64]int{0: 92, 0.5: 92, 0.8: 82} {
		r := rand.New(rand.NewPCG(3, 3))
		held, width := 0, 0.0
		for range runs {
			result := Result{Tally: Tally{Offered: steps * offered}}
			state := r.NormFloat64()
			for range steps {
				state = memory*state + math.Sqrt(1-memory*memory)*r.NormFloat64()
				share := 0.85 + 0.1*math.Erfc(-state/math.Sqrt2)/2 // 0.85 to 0.95
				p := Point{Offered: offered}
				for range offered {
					if r.Float64() < share {
						p.Good++
					}
				}
				result.OK += p.Good
				result.Timeline = append(result.Timeline, p)
			}
			in := attained(&result)
			if width += in.Hi - in.Lo; in.Lo <= 0.9 && 0.9 <= in.Hi {
				held++
			}
		}
		if held < runs*least/100 || width/runs > 0.04 {
			t.Errorf("memory %v: the interval held in %d of %d runs and is %.4f wide, want %d %%", memory, held, runs, width/runs, least)
		}
	}
}

func TestIntervalsApart(t *testing.T) {
	for _, c := range []struct {
		a, b         Interval
		apart, below bool
	}{
		{Interval{1, 2, false}, Interval{3, 4, false}, true, true},
		{Interval{3, 4, false}, Interval{1, 2, false}, true, false},
		{Interval{1, 3, false}, Interval{3, 4, false}, false, false},
		{Interval{1, 2, true}, Interval{3, 4, false}, false, false},
		{Interval{3, 4, true}, Interval{1, 2, false}, true, false},
	} {
		if apart, below := c.a.apart(c.b); apart != c.apart || below != c.below {
			t.Errorf("%+v and %+v: %v %v", c.a, c.b, apart, below)
		}
	}
}

// The ends of a quantile's interval are those order statistics, none beside them.
func TestQuantileIntervalIsOfItsRanks(t *testing.T) {
	for n := 1; n <= 300; n++ {
		var d dist
		for i := range n {
			d.one(ofMillis(float64(i+1)), false)
		}
		q := d.quantiles(n, true)
		for _, at := range []float64{0.5, 0.9, 0.95, 0.99} {
			lo, hi := quantileRanks(n, at, Confidence)
			in := q.interval(at, n)
			if math.Round(in.Lo) != float64(lo) || in.Open != (hi > n) || !in.Open && math.Round(in.Hi) != float64(hi) {
				t.Errorf("quantile %v of 1, 2 … %d: %+v, want %d to %d", at, n, in, lo, hi)
			}
		}
	}
}
