package evaluation

import (
	"math"
	"testing"
)

func TestEstimates(t *testing.T) {
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[i] = float64(i + 1)
	}
	id := func(v float64) float64 { return v }
	for name, c := range map[string]struct {
		got  *Estimate
		want Estimate
		from float64
	}{
		"share":             {share(95, 100), Estimate{0.95, 0.888250, 0.978457, 100}, 2e-6},
		"mean of one":       {mean([]float64{3}), Estimate{3, 3, 3, 1}, 0},
		"mean":              {mean(hundred), Estimate{50.5, 50.5 - 1.96*2.887, 50.5 + 1.96*2.887, 100}, 0.5}, // 28.87/√100
		"ratio of sums":     {ratio([]float64{1, 3}, []float64{1, 1}, id), Estimate{2, 1, 3, 2}, 0},
		"weighted by under": {ratio([]float64{10, 10}, []float64{1, 9}, id), Estimate{2, 10. / 9, 10, 2}, 1e-12},
		"median":            {quantile(hundred, 0.5), Estimate{50, 41, 60, 100}, 0}, // ranks ceil(40.38), ceil(59.62)
		"p99":               {quantile(hundred, 0.99), Estimate{99, 95, 100, 100}, 0},
		"p99 of one":        {quantile([]float64{7}, 0.99), Estimate{7, 7, 7, 1}, 0},
	} {
		if c.got == nil {
			t.Errorf("%s: nil", name)
			continue
		}
		for i, d := range []float64{c.got.Value - c.want.Value, c.got.Low - c.want.Low, c.got.High - c.want.High} {
			if !(math.Abs(d) <= c.from) || c.got.N != c.want.N {
				t.Errorf("%s: figure %d of %+v, want %+v", name, i, *c.got, c.want)
			}
		}
	}
	if mean(nil) != nil || share(0, 0) != nil || quantile(nil, 0.5) != nil {
		t.Error("an estimate of nothing is not nil")
	}
}

func TestDecodeVersions(t *testing.T) {
	for in, ok := range map[string]bool{
		`{"version":1,"set":{"name":"a","sha256":"","rows":3},"model":{"name":"m","failed":0}}`: true,
		`{"version":2}`: false, `{}`: false, `[`: false,
	} {
		if _, err := Decode([]byte(in)); (err == nil) != ok {
			t.Errorf("%s: %v", in, err)
		}
	}
}
