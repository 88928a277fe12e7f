package loadgen

import (
	"strings"
	"testing"
)

func assertReport() *Report {
	first := Quantiles{N: 10, P99: 800, Mean: 300, Max: 900}
	return &Report{Results: []Result{
		{Name: "chat", Phase: "steady", Tally: Tally{Offered: 100, OK: 99, Failed: 1}, Attainment: 0.99, Quantiles: Quantiles{N: 99, P50: 1500, P999: 9000}, TTFT: &first, Rates: Rates{Good: 50, Over: 2, Achieved: 51}},
		{Name: "chat", Phase: "peak", Tally: Tally{Offered: 100, OK: 80, Shed: 20}, Attainment: 0.8, Quantiles: Quantiles{N: 80, P50: 1600}, TTFT: &Quantiles{}, Rates: Rates{Good: 40, Over: 2}},
		{Name: "v1.2", Phase: "p", Tally: Tally{Offered: 1, OK: 1}, Attainment: 1, SendLag: Quantiles{N: 1, P99: 0.5}},
	}, Cuts: []Cut{
		{Workload: "chat", By: "tenant", Name: "a", Tally: Tally{Offered: 10, OK: 10}, Attainment: 1, E2E: Quantiles{N: 10, P99: 700}, TTFT: &first},
		{Workload: "chat", By: "tenant", Name: "b,{c}", Tally: Tally{Offered: 10, OK: 5, Shed: 5}, Attainment: 0.5},
		{Workload: "chat", By: "class", Name: "interactive", Tally: Tally{Offered: 10, OK: 9}, Attainment: 0.9, E2E: Quantiles{N: 10, P99: 750}},
		{Workload: "chat", By: "input_tokens", Name: "12-80", Tally: Tally{Offered: 4, OK: 4}, Attainment: 1},
	}}
}

func TestAsserts(t *testing.T) {
	for text, want := range map[string]string{ // what is wrong with it; "" = nothing
		"chat/steady.attainment>=0.99":                        "",
		"chat/steady.attainment >= 99%":                       "",
		"chat/steady.attainment>0.99":                         "chat, phase steady: expected chat/steady.attainment>0.99, got 99.00 %",
		"chat/steady.attainment==0.99":                        "",
		"chat/steady.attainment!=0.99":                        "expected chat/steady.attainment!=0.99, got 99.00 %",
		"chat.attainment>=0.9":                                "chat, phase peak: expected chat.attainment>=0.9, got 80.00 %",
		"attainment>=0.75, shed<=20%":                         "",
		"attainment>=0.75, chat.shed<20%":                     "chat, phase peak: expected chat.shed<20%, got 20.00 %",
		"chat/steady.failed<=1%":                              "",
		"chat/steady.failed<1%":                               "got 1.00 %",
		"chat/steady.ttft_p99<=800ms":                         "",
		"chat/steady.ttft_p99<0.8s":                           "chat, phase steady: expected chat/steady.ttft_p99<0.8s, got 800 ms",
		"chat/steady.ttft_mean<301ms,chat/steady.ttft_max<1s": "",
		"chat/peak.ttft_p99<800ms":                            "chat, phase peak: expected chat/peak.ttft_p99<800ms, but there is no ttft_p99",
		"v1.2.tpot_p50<1s":                                    "there is no tpot_p50",
		"v1.2.lag_p99<=500us":                                 "",
		"v1.2/p.lag_p99<500us":                                "got 0.50 ms",
		"chat.e2e_p50<=1600ms":                                "",
		"chat/steady.e2e_p999<9s":                             "got 9000 ms",
		"chat.goodput>=40/s":                                  "",
		"chat.goodput>45":                                     "chat, phase peak: expected chat.goodput>45, got 40.00/s",
		"chat/steady.achieved==51/s":                          "",
		"nobody.shed<1%":                                      "expected nobody.shed<1%, but no such workload and phase was run; there is chat/steady, chat/peak, v1.2/p",
		"attainment{tenant=a}>=0.99":                          "",
		"attainment{ tenant = a } >= 99%, shed<20.1%":         "",
		"chat.attainment{tenant}>=0.99":                       `chat, tenant=b,{c}: expected chat.attainment{tenant}>=0.99, got 50.00 %`,
		`attainment{tenant="b,{c}"}>0.5,e2e_p99{tenant=a}<1s`: `chat, tenant=b,{c}: expected attainment{tenant="b,{c}"}>0.5, got 50.00 %`,
		"e2e_p99{class=interactive}<=750ms":                   "",
		"e2e_p99{class=interactive}<750ms":                    "chat, class=interactive: expected e2e_p99{class=interactive}<750ms, got 750 ms",
		"ttft_p99{class=interactive}<1s":                      "there is no ttft_p99",
		"attainment{input_tokens=12-80}==1":                   "",
		"attainment{tenant=x}>0":                              `expected attainment{tenant=x}>0, but no such part of a workload was seen; there is chat {tenant=a}, chat {tenant=b,{c}}, chat {class=interactive}, chat {input_tokens=12-80}`,
		"v1.2.failed{class}<1%":                               "no such part of a workload",
		"chat/never.shed<1%":                                  "no such workload and phase",
	} {
		demands, err := ParseAsserts(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		err = assertReport().Check(demands)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	demands, err := ParseAsserts("chat/steady.shed==1,chat/peak.shed==0")
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(assertReport().Check(demands).Error(), "\n") + 1; got != 2 {
		t.Errorf("%d lines, want one for each of the two", got)
	}
}

func TestAssertsThatAreNone(t *testing.T) {
	for text, want := range map[string]string{
		"":                               `assert 1, "": no operator`,
		"attainment":                     "no operator after the metric, want one of <= >= == != < >",
		"attainment=0.9":                 `at character 11: "=" is no operator`,
		"attainment>=0.9,":               `assert 2, "": no operator`,
		"attainment>=":                   `at "": want a share, such as 0.99 or 99%`,
		"attainment>=99":                 "want a share",
		"attainment>=NaN":                "want a share",
		"attainment>=-1%":                "want a share",
		"attainment>=9 9":                "want a share",
		"goodput>5ms":                    "want a number, such as 50 or 50/s",
		"ttft_p99<800":                   "want a time with its unit",
		"ttft_p99<-1s":                   "want a time with its unit",
		"ttft_p42<1s":                    `unknown metric "ttft_p42"`,
		"p99_ttft<1s":                    "one of e2e, e2e_sent, lag",
		"shed<1%,latency<1s":             `assert 2, "latency<1s": unknown metric "latency"`,
		".shed<1%":                       "no workload before the dot",
		"/steady.shed<1%":                "no workload before the dot",
		"chat/steady.<1%":                `unknown metric ""`,
		"attainment><0.9":                `at "<0.9": want a share`,
		"attainment=>0.9":                "is no operator",
		"attainment{tenant=a}":           "no operator after the metric",
		"attainment{tenant=a":            "at character 11: a { without its }",
		"attainment{model=a}>0":          `nothing is cut by "model", want tenant, class, input_tokens`,
		"attainment{tenant=a,class=b}>0": `a cut is by one thing, and "a,class=b" is no name`,
		"attainment{tenant=}>0":          "no name after the =, want {tenant=name}, or {tenant} for each",
		`attainment{tenant="a"b}>0`:      `"b" after the name, want }`,
		"goodput{tenant=a}>0":            "goodput is not known of cuts, want attainment, late, shed, failed, or one of e2e, ttft, tpot",
		"itl_p99{tenant}<1s":             "itl_p99 is not known of cuts",
		"chat/steady.shed{tenant}<1%":    "a cut is over all phases: leave out /steady",
		"attainment{tenant=a}=1":         `at character 21: "=" is no operator`,
		"latency{tenant=a}<1s":           "unknown metric",
	} {
		if got, err := ParseAsserts(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, error %v, want %q", text, got, err, want)
		}
	}
}

// Every metric can be demanded by its name.
func TestEveryMeasureHasAName(t *testing.T) {
	for _, m := range overall {
		if got, ok := measureNamed(m.name); !ok || got.name != m.name {
			t.Errorf("%s is not found", m.name)
		}
	}
	for _, d := range Metrics() {
		for _, q := range quantileNames {
			if got, ok := measureNamed(d + "_" + q.name); !ok || got.name != d+"_"+q.name || got.unit != asTime {
				t.Errorf("%s_%s is not found", d, q.name)
			}
		}
	}
}

func FuzzParseAsserts(f *testing.F) {
	f.Add("chat/steady.ttft_p99<=800ms, attainment>=99%")
	f.Add("a.b/c.d!=1/s")
	f.Add(`shed{tenant="a,}"}<1%,late{class=b}<1,failed{class}<1`)
	f.Fuzz(func(t *testing.T, text string) {
		demands, err := ParseAsserts(text)
		if err != nil {
			return
		}
		for _, a := range demands {
			if a.Op == "" || a.Metric == "" || a.Value < 0 {
				t.Errorf("%q became %+v", text, a)
			}
		}
		_ = assertReport().Check(demands)
	})
}
