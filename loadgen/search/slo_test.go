package search

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"aloft/loadgen"
)

func TestParseSLO(t *testing.T) {
	got, err := ParseSLO(" ttft_p99 < 800ms, tpot_mean<=50ms ,e2e_p99.9<1.5s,visible_p50<250us")
	if err != nil {
		t.Fatal(err)
	}
	want := []Clause{
		{TTFT, false, 0.99, 800 * time.Millisecond, true, "p99"},
		{TPOT, true, 0, 50 * time.Millisecond, false, "mean"},
		{E2E, false, 0.99900000000000011, 1500 * time.Millisecond, true, "p99.9"},
		{Visible, false, 0.5, 250 * time.Microsecond, true, "p50"},
	}
	if len(got.Clauses) != len(want) {
		t.Fatalf("%d clauses, want %d", len(got.Clauses), len(want))
	}
	for i, c := range got.Clauses {
		if w := want[i]; c.Metric != w.Metric || c.Mean != w.Mean || c.Bound != w.Bound || c.Strict != w.Strict || c.stat != w.stat || c.Quantile-w.Quantile > 1e-12 || w.Quantile-c.Quantile > 1e-12 {
			t.Errorf("clause %d is %+v, want %+v", i, c, w)
		}
	}
	if text := "ttft_p99<800ms,tpot_mean<=50ms,e2e_p99.9<1500ms,visible_p50<250us"; got.String() != text {
		t.Errorf("as text %s, want %s", got, text)
	}
}

func TestParseSLOSaysWhatAndWhere(t *testing.T) {
	for text, want := range map[string]string{
		"":                               "character 1: want one of ttfb_",
		"ttft":                           "character 1: want one of ttfb_",
		"ttft_p99<800ms,":                "character 16: want one of",
		"ttft_p99<800ms;tpot_p99<50ms":   `character 15: want a comma or the end, got ";tpot_p99<50ms"`,
		"ttft_99<800ms":                  "character 6: want mean or a quantile",
		"ttft_p0<800ms":                  "character 7: want a quantile above 0 and below 100",
		"ttft_p100<800ms":                "character 7: want a quantile above 0 and below 100",
		"ttft_p99.<800ms":                "character 7: want a quantile",
		"ttft_p99>800ms":                 `character 9: want < or <=, got ">800ms"`,
		"ttft_p99=800ms":                 "character 9: want < or <=",
		"ttft_p99<ms":                    "character 10: want a number",
		"ttft_p99<-1ms":                  "character 10: want a number",
		"ttft_p99<800":                   "character 13: want a unit: ns, us, ms or s, got the end",
		"ttft_p99<800m":                  "character 13: want a unit",
		"ttft_p99<0ms":                   "character 10: want a duration of 1ns to 1h0m0s",
		"ttft_p99<3601s":                 "character 10: want a duration",
		"ttft_p99<1s,ttft_p99<2s":        "want another figure than ttft_p99",
		"ttft_p99<1s tpot_p99<2s":        "character 13: want a comma or the end",
		"\xff_p99<1s":                    "character 1: want one of",
		"latency_p99<1s":                 `got "latency_p99<1s"`,
		strings.Repeat("ttft_p1<1s,", 3): "want another figure",
	} {
		if _, err := ParseSLO(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want one with %q", text, err, want)
		}
	}
}

func FuzzParseSLO(f *testing.F) {
	for _, s := range []string{"ttft_p99<800ms,tpot_p99<50ms", "e2e_mean<=1.5s", "gap_p99.9<3us, itl_p50<1ns", "role_p99<1s,itl_max<2s", "ttfb_p1<0.1s,", "x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseSLO(text)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "search: slo, character ") {
				t.Fatalf("%q: error without its place: %v", text, err)
			}
			return
		}
		again, err := ParseSLO(s.String())
		if err != nil || again.String() != s.String() || len(again.Clauses) != len(s.Clauses) {
			t.Fatalf("%q reads as %q, which reads as %q: %v", text, s, again, err)
		}
		for _, c := range s.Clauses {
			if c.Bound <= 0 || c.Bound > maxBound || (!c.Mean && !(c.Quantile > 0 && c.Quantile <= 1)) {
				t.Fatalf("%q gives %+v", text, c)
			}
		}
	})
}

func TestSLOIsText(t *testing.T) {
	var v struct{ SLO SLO }
	if err := json.Unmarshal([]byte(`{"SLO":"e2e_p99<1s"}`), &v); err != nil || v.SLO.Clauses[0].Bound != time.Second {
		t.Fatalf("%+v, %v", v, err)
	}
	if err := json.Unmarshal([]byte(`{"SLO":"e2e_p99<1"}`), &v); err == nil {
		t.Error("a bound without a unit was read")
	}
}

// A clause bounds each request from its attainment on; stricter ones win, and a
// strict bound is one nanosecond less.
func TestSLOSetsTargets(t *testing.T) {
	s := slo(t, "ttft_p99<800ms,ttft_p99.9<=2s,tpot_p99<=50ms,e2e_p50<1s,visible_p99<=3ms")
	g := loadgen.Goal{Target: time.Minute, TTFTTarget: time.Hour}
	s.goal(&g, true, 0.99)
	if want := (loadgen.Goal{Target: time.Minute, TTFTTarget: 800*time.Millisecond - 1, TPOTTarget: 50 * time.Millisecond, VisibleTarget: 3 * time.Millisecond}); g != want {
		t.Errorf("a stream's targets are %+v, want %+v", g, want)
	}
	g = loadgen.Goal{}
	slo(t, "role_p99<=1s,itl_max<=40ms,gap_max<=90ms,itl_p99<=20ms").goal(&g, true, 0.9)
	if want := (loadgen.Goal{RoleTarget: time.Second, ITLTarget: 40 * time.Millisecond, GapTarget: 90 * time.Millisecond}); g != want {
		t.Errorf("targets of what an answer has many of are %+v, want %+v", g, want)
	}
	g = loadgen.Goal{}
	slo(t, "ttft_p99<800ms,e2e_p99<1s,ttfb_p99<=2ms,visible_p99<=3ms").goal(&g, false, 0.99)
	if want := (loadgen.Goal{Target: time.Second - 1, TTFBTarget: 2 * time.Millisecond}); g != want {
		t.Errorf("targets of a workload without a stream are %+v, want %+v", g, want)
	}
}

// Clauses beside the attainment: what failed counts as beyond a quantile, and a
// figure that is not known is not taken to hold.
func TestClausesBesideTheAttainment(t *testing.T) {
	result := loadgen.Result{Tally: loadgen.Tally{Offered: 100, OK: 100}}
	result.Quantiles = loadgen.Quantiles{N: 100, Mean: 40, P50: 30, P90: 80, P99: 200}
	result.Gap = &loadgen.Quantiles{N: 4000, LeftOut: 2, P99: 70}
	failing := result
	failing.Tally = loadgen.Tally{Offered: 110, OK: 100, Failed: 10}
	failing.LeftOut = 10
	for _, c := range []struct {
		slo  string
		in   loadgen.Result
		want Reason
	}{
		{"e2e_p99<1ms", result, ""}, // the attainment's own
		{"e2e_p50<=30ms", result, ""},
		{"e2e_p50<30ms", result, ClauseMiss},
		{"e2e_mean<41ms", result, ""},
		{"e2e_mean<39ms", result, ClauseMiss},
		{"gap_p99<80ms", result, ""},
		{"gap_p99<60ms", result, ClauseMiss},
		{"gap_max<1ms", result, ""}, // each request's own
		{"gap_mean<1s,gap_p99<60ms", result, ClauseMiss},
		{"ttft_p50<1s", result, NoFigures},
		{"e2e_p42<1s", result, NoFigures}, // kept of whole runs alone
		{"e2e_p50<1s", failing, NoFigures},
		{"e2e_p95<1s", failing, ClauseMiss}, // 9 % have no end
	} {
		if got := slo(t, c.slo).beside([]loadgen.Result{c.in}, 0.99); got != c.want {
			t.Errorf("%s: %q, want %q", c.slo, got, c.want)
		}
	}
}
