package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"aloft/loadgen/arrivals"
	"aloft/sim/scenario"
	"aloft/sim/study"
)

func TestSeeds(t *testing.T) {
	for list, want := range map[string]string{"1": "[1]", "1,2,3": "[1 2 3]", "2-4, 9": "[2 3 4 9]", "3,1-3": "[3 1 2]"} {
		if got, err := seedsOf(list); err != nil || fmt.Sprint(got) != want {
			t.Errorf("%s: %v, %v, want %s", list, got, err, want)
		}
	}
	for _, list := range []string{"", "a", "1-", "-1", "1-5000", "18446744073709551616"} {
		if got, err := seedsOf(list); err == nil {
			t.Errorf("%q is taken as %v", list, got)
		}
	}
}

// A terminal has one line that is drawn again, and is clean at the end; a log has a
// line each five seconds.
func TestProgress(t *testing.T) {
	at := time.Unix(0, 0)
	for redraw, want := range map[bool]string{
		true:  "\r[######..................]  25 %  1 of 4 runs, 0:30 left  ours, seed 2\x1b[K\r\x1b[K",
		false: "simulated 25 %, 1 of 4 runs, 0:10, 0:30 left: ours, seed 2\n",
	} {
		var b strings.Builder
		p := &progress{out: &b, redraw: redraw, width: func() int { return 0 }, began: at, next: at.Add(plainEvery)}
		for _, after := range []time.Duration{time.Second, 10 * time.Second} { // the first is too early
			p.now = func() time.Time { return at.Add(after) }
			studied(p)(study.Progress{Done: 1, Runs: 4, Share: 0.25, Now: []string{"ours, seed 2"}})
		}
		p.close()
		if b.String() != want {
			t.Errorf("redraw %v: %q, want %q", redraw, b.String(), want)
		}
	}
	var none *progress
	studied(none)(study.Progress{})
	none.close()
}

// A recording with its configuration and fits is a scenario; what is not known is
// named.
func TestRecordedScenario(t *testing.T) {
	config := write(t, "aloft.yaml", `
node: {devices: simulated, simulated: [{family: A100-80GB, layout: [1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb]}]}
models:
  - {name: e, engine: synthetic, endpoints: [embeddings], shape: 1g.10gb, replicas: {min: 1, max: 3}, target: 500ms, law: {alpha: 5ms, beta: 50us}, batch: {max_tokens: 4096}}
  - {name: lm, engine: synthetic, endpoints: [chat], shape: 1g.10gb, replicas: {min: 1, max: 2}, slots: 8, target: 1s, law: {alpha: 5ms, beta: 50us}}
`)
	record := func(models ...string) string {
		var b strings.Builder
		w := arrivals.NewWriter(&b)
		for i := range 600 {
			if err := w.Write(arrivals.Record{Offset: time.Duration(i) * time.Second, Endpoint: "embeddings", Model: models[i%len(models)], InputTokens: 100, OutputTokens: 10}); err != nil {
				t.Fatal(err)
			}
		}
		_ = w.Flush()
		return write(t, "rec.jsonl", b.String())
	}
	status := write(t, "status.json", `{"devices":[{"index":0},{"index":1}],"models":[{"name":"e","batching":{"fits":[{"shape":"1g.10gb","alpha_ms":7,"beta_us_per_token":40,"largest_tokens":2048}]}}]}`)
	text, missing, err := (&simulateRecording{Trace: record("e"), Status: status}).text(config)
	if err != nil || len(missing) > 0 {
		t.Fatal(err, missing)
	}
	s, err := scenario.Parse(text)
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	if m := s.Models[0]; s.Cluster.GPUs != 2 || s.Cluster.Jobs != 11 || m.Service.AlphaMs != 7 || m.Service.BetaMsPerToken != 0.04 || m.Service.MaxTokens != 2048 || m.SLO.TTFTS != 0.5 || m.Static != 3 || m.Replicas != (scenario.Replicas{Min: 1, Max: 3}) {
		t.Errorf("scenario\n%s", text)
	}
	w, err := s.Draw(1, scenario.DrawOptions{})
	if err != nil || len(w.Traffic[0].Arrivals) != 600 {
		t.Fatalf("%v: the world has not the 600 requests of the recording", err)
	}
	if text, missing, err = (&simulateRecording{Trace: record("e", "lm")}).text(config); err != nil || len(missing) != 2 || !strings.Contains(string(text), "# To be filled in: "+missing[1]+"\n") || !strings.Contains(missing[0], "models.lm.service_time.alpha_ms") {
		t.Errorf("%v, missing %q in\n%s", err, missing, text)
	}
	if _, _, err = (&simulateRecording{Trace: record("other")}).text(config); err == nil || !strings.Contains(err.Error(), `no model of the configuration is in the recording, whose first request is for "other"`) {
		t.Errorf("another model: %v", err)
	}
	if err := os.WriteFile(config, []byte("models: [{name: m, shape: 2g.20gb}]"), 0o644); err == nil {
		if _, _, err = (&simulateRecording{Trace: record("m")}).text(config); err == nil {
			t.Error("a shape that is not modelled is taken")
		}
	}
}
