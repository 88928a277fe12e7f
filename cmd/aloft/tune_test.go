package main

import (
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"aloft/loadgen/arrivals"
)

// A model that is busy in the first quarter of two hours lends afterwards; what
// is proposed is a configuration, and a bolder risk never lends less.
func TestTune(t *testing.T) {
	conf, err := parseConfig([]byte(goodModel + "    replicas: {min: 0, max: 4}\n"))
	if err != nil {
		t.Fatal(err)
	}
	var rows []arrivals.Record
	for s := range 7200 {
		n := 100
		if s < 1800 {
			n = 2000 // two of four replicas
		}
		rows = append(rows, arrivals.Record{Offset: time.Duration(s) * time.Second, Model: "m", InputTokens: n}, arrivals.Record{Model: "other", InputTokens: 9})
	}
	var b strings.Builder
	if err := tune(&b, conf, rows, map[string]float64{"m": 1000}); err != nil {
		t.Fatal(err)
	}
	_, text, ok := strings.Cut(b.String(), "because of it:\n\n")
	if !ok || strings.Count(b.String(), "\nm ") != 5 {
		t.Fatalf("want a row for now and each risk, and a proposal:\n%s", b.String())
	}
	next := defaults()
	if err := yaml.UnmarshalWithOptions([]byte(text), &next, yaml.Strict()); err != nil || next.policy(time.Time{}).Validate() != nil || next.Arbiter.RiseQuantile <= 0 {
		t.Errorf("the proposal is no configuration: %v\n%s", err, text)
	}
	for _, rates := range []map[string]float64{{"huge": 10}, {"m": -1}} {
		if err := (&tuneCmd{Config: write(t, "aloft.yaml", goodModel), Recording: write(t, "r.jsonl", ""), Rate: rates}).Run(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "--rate ") {
			t.Errorf("--rate %v: %v", rates, err)
		}
	}
	if err := tune(&b, conf, rows[:200], map[string]float64{"m": 1000}); err == nil {
		t.Error("a minute of recording is enough")
	}
	b.Reset()
	if err := tune(&b, conf, rows, nil); err == nil || !strings.Contains(b.String(), "--rate m=") {
		t.Errorf("without a speed: %v\n%s", err, b.String())
	}
}
