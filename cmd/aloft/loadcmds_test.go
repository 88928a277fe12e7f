package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"aloft/loadgen"
)

// A profile is sent to the server and with the model that flags name, and a flag
// that it has no use for is refused, not forgotten.
func TestLoadFlagsBesideAProfile(t *testing.T) {
	t.Setenv("ALOFT_URL", "")
	t.Setenv("ALOFT_API_KEY", "")
	shipped := func(name string) string { return filepath.Join("..", "..", "configs", "loadgen", name) }
	keyed := write(t, "keyed.yaml", `{workloads: [{name: a, kind: chat, url: "http://other:1", model: m, key: its, phases: [{name: p, duration: 1s, process: {kind: poisson, rate: 1}}]}]}`)
	for _, c := range []struct {
		args            []string
		url, model, key string
		fails           string
	}{
		{nil, "http://127.0.0.1:8080", "aloft-encoder", "", ""},
		{[]string{"--kind", "chat"}, "http://127.0.0.1:8080", "aloft-lm", "", ""},
		{[]string{"--kind", "chat", "--model", "qwen", "--key", "k", "--url", "http://gpu:8000"}, "http://gpu:8000", "qwen", "k", ""},
		{[]string{keyed}, "http://other:1", "m", "its", ""},
		{[]string{keyed, "--url", "http://gpu:8000", "--model", "qwen", "--key", "k"}, "http://gpu:8000", "qwen", "its", ""},
		{[]string{shipped("chat-stream.yaml"), "--key", "k"}, "http://127.0.0.1:8080", "aloft-lm", "k", ""},
		{[]string{shipped("job-submit.yaml"), "--model", "qwen"}, "http://127.0.0.1:8080", "", "", ""}, // a job has none
		{[]string{shipped("burst.yaml"), "--model", "qwen"}, "", "", "", "workloads of aloft-encoder and of aloft-lm"},
		{[]string{shipped("burst.yaml"), "--rate", "3"}, "", "", "", "--rate is for a load without a profile"},
		{[]string{shipped("burst.yaml"), "--url", "gpu:8000"}, "", "", "", "want http://HOST:PORT"},
	} {
		var cmd struct {
			Plan loadPlanCmd `cmd:""`
		}
		k, err := kong.Must(&cmd).Parse(append([]string{"plan", "-o", "-"}, c.args...))
		if err != nil {
			t.Fatal(err)
		}
		opt, err := cmd.Plan.options(k)
		if c.fails != "" {
			if err == nil || !strings.Contains(err.Error(), c.fails) {
				t.Errorf("%q: %v, want an error with %q", c.args, err, c.fails)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", c.args, err)
			continue
		}
		if w := opt.Workloads[0]; w.URL != c.url || w.Model != c.model || w.Key != c.key {
			t.Errorf("%q: %s, model %q, key %q, want %s, %q, %q", c.args, w.URL, w.Model, w.Key, c.url, c.model, c.key)
		}
	}
}

// --ca and --insecure reach every workload, with and without a profile, which
// keeps its own where no flag is given; only one of them is taken.
func TestLoadCAFlag(t *testing.T) {
	t.Setenv("ALOFT_URL", "")
	ca := write(t, "ca.pem", "")
	own := write(t, "own.yaml", `{workloads: [{name: a, kind: chat, url: "https://other:1", model: m, ca: its.pem, phases: [{name: p, duration: 1s, process: {kind: poisson, rate: 1}}]}]}`)
	for _, c := range []struct {
		args     []string
		ca       string
		insecure bool
		fails    string
	}{
		{[]string{"--url", "https://gpu:1", "--ca", ca}, ca, false, ""},
		{[]string{"--url", "https://gpu:1", "--insecure"}, "", true, ""},
		{[]string{own}, "its.pem", false, ""},
		{[]string{own, "--ca", ca}, ca, false, ""},
		{[]string{own, "--insecure"}, "", true, ""},
		{[]string{"--url", "http://gpu:1", "--ca", ca}, "", false, "belong to https"},
		{[]string{"--ca", ca, "--insecure"}, "", false, "can't be used together"},
		{[]string{"--ca", ca + ".none"}, "", false, "no such file"},
	} {
		var cmd struct {
			Plan loadPlanCmd `cmd:""`
		}
		var opt loadgen.Options
		k, err := kong.Must(&cmd).Parse(append([]string{"plan", "-o", "-"}, c.args...))
		if err == nil {
			opt, err = cmd.Plan.options(k)
		}
		if err != nil {
			if c.fails == "" || !strings.Contains(err.Error(), c.fails) {
				t.Errorf("%q: %v, want %q", c.args, err, c.fails)
			}
			continue
		}
		if w := opt.Workloads[0]; c.fails != "" || w.CA != c.ca || w.Insecure != c.insecure {
			t.Errorf("%q: ca %q, insecure %v, want %q, %v, error %q", c.args, w.CA, w.Insecure, c.ca, c.insecure, c.fails)
		}
	}
}

// A run of which nothing was answered says why, and what to look at.
func TestLoadNothingAnswered(t *testing.T) {
	for problem, want := range map[string]string{
		"no answer: connect: connection refused": "--url",
		"HTTP 401: {}":                           "--key",
		"HTTP 404: {}":                           "/v1/models",
		"HTTP 500: {}":                           "HTTP 500",
	} {
		r := &loadgen.Report{Results: []loadgen.Result{{Tally: loadgen.Tally{Offered: 5, Failed: 5}, FailedBy: map[loadgen.Outcome]int{"a": 1, "b": 4},
			Problems: map[loadgen.Outcome]string{"a": "rare", "b": problem}}}}
		if err := answered(r); err == nil || !strings.Contains(err.Error(), problem) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "rare") {
			t.Errorf("%v, want one with %q and %q", err, problem, want)
		}
		r.Results[0].Failed, r.Results[0].FailedBy[loadgen.Cancelled] = 7, 2
		r.Results[0].Offered = 7
		if err := answered(r); err == nil || !strings.Contains(err.Error(), "all 5 requests") {
			t.Errorf("%v, want no word of what was cancelled", err)
		}
		r.Results[0].Failed--
		if err := answered(r); err != nil {
			t.Errorf("one was answered: %v", err)
		}
	}
}

// A run that sent nothing is no good run, unless it was ended before its time;
// one whose requests were all cancelled at its end says nothing of a wrong address.
func TestLoadNothingSent(t *testing.T) {
	if err := answered(&loadgen.Report{Results: []loadgen.Result{{}}}); err == nil || !strings.Contains(err.Error(), "nothing was sent") {
		t.Errorf("%v, want an error", err)
	}
	for name, r := range map[string]*loadgen.Report{
		"ended early":     {Interrupted: true},
		"all left":        {Results: []loadgen.Result{{Tally: loadgen.Tally{Abandoned: 3}}}},
		"only unanswered": {Interrupted: true, Results: []loadgen.Result{{Tally: loadgen.Tally{Offered: 3, Failed: 3}, FailedBy: map[loadgen.Outcome]int{loadgen.Cancelled: 3}}}},
	} {
		if err := answered(r); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A run that was ended early has not shown that what is demanded holds.
func TestLoadDemandsOfAnEndedRun(t *testing.T) {
	demands, err := loadgen.ParseAsserts("attainment>=0.99")
	if err != nil {
		t.Fatal(err)
	}
	good := loadgen.Report{Results: []loadgen.Result{{Tally: loadgen.Tally{Offered: 5, OK: 5}, Attainment: 1}}}
	if err := held(&good, demands); err != nil {
		t.Errorf("a whole run: %v", err)
	}
	good.Interrupted = true
	if err := held(&good, demands); err == nil || !strings.Contains(err.Error(), "before its time") {
		t.Errorf("an ended run: %v, want an error", err)
	}
	if err := held(&good, nil); err != nil {
		t.Errorf("nothing demanded: %v", err)
	}
}
