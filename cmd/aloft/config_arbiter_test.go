package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"aloft/arbiter"
	"aloft/gpu"
)

// Each mistake of the arbiter's part names its key and line.
func TestConfigArbiterMistakes(t *testing.T) {
	window := func(w string) string { return goodModel + "arbiter:\n  windows:\n    - " + w + "\n" }
	for _, tc := range []struct{ name, text, want string }{
		{"risk", goodModel + "arbiter: {risk: brave}\n", `arbiter: risk is "brave", want normal or strict`},
		{"price", goodModel + "node: {price: -1}\n", "line 6: node.price: -1, want 0 or more"},
		{"static above max", goodModel + "    static: 2\n", "line 6: models[0].static: 2, want 0 or between replicas.min (0) and replicas.max (1)"},
		{"lend limit", goodModel + "    lend_limit: -1\n", "line 6: models[0].lend_limit: -1"},
		{"pin", goodModel + "    pin: [slice-1]\n", `line 6: models[0].pin[0]: "slice-1" is no slice`},
		{"pinned twice", goodModel + "    pin: [g0/s0, g0/s0]\n", "line 6: models[0].pin[1]: g0/s0 is pinned to m already"},
		{"tenant without a name", goodModel + "arbiter: {tenants: [{weight: 2}]}\n", "line 6: arbiter.tenants[0].name: no name"},
		{"tenant twice", goodModel + "arbiter: {tenants: [{name: a}, {name: a}]}\n", `arbiter.tenants[1].name: "a" is there twice`},
		{"weight", goodModel + "arbiter: {tenants: [{name: a, weight: -1}]}\n", "arbiter.tenants[0].weight: -1"},
		{"borrow limit", goodModel + "arbiter: {tenants: [{name: a, borrow_limit: -1}]}\n", "arbiter.tenants[0].borrow_limit: -1"},
		{"no time", window("name: w"), "line 8: arbiter.windows[0]: no time: want cron with for, or from with until"},
		{"two times", window("{cron: '@daily', for: 1h, from: '2027-01-01 00:00'}"), "line 8: arbiter.windows[0].cron: cron and from"},
		{"no length", window("cron: '0 2 * * 6'"), "line 8: arbiter.windows[0].for: 0s, want more than 0 and at most 744h0m0s"},
		{"bad cron", window("{cron: '0 26 * * 6', for: 1h}"), `line 8: arbiter.windows[0].cron: "0 26 * * 6": `},
		{"zone", window("{cron: '@daily', for: 1h, zone: Mars/Olympus}"), `line 8: arbiter.windows[0].zone: "Mars/Olympus" is no time zone`},
		{"no end", window("from: '2027-01-01 00:00'"), `line 8: arbiter.windows[0].until: "" is no time`},
		{"ends before", window("{from: '2027-01-02 00:00', until: '2027-01-01 00:00'}"), "line 8: arbiter.windows[0].until: 2027-01-01 00:00 is not after from"},
		{"window's model", window("{cron: '@daily', for: 1h, models: [m, n]}"), `arbiter.windows[0].models[1]: there is no model "n"`},
		{"window's GPU", window("{cron: '@daily', for: 1h, gpus: [-1]}"), "arbiter.windows[0].gpus[0]: -1"},
		{"window's slice", window("{cron: '@daily', for: 1h, slices: [x]}"), `arbiter.windows[0].slices[0]: "x" is no slice`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := parseConfig([]byte(tc.text))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q in it", err, tc.want)
			}
		})
	}
}

func TestWindowOpen(t *testing.T) {
	// Saturdays from 02:00 in Berlin, 3 h: in winter 01:00 to 04:00 UTC, in summer
	// from 00:00. On 28 March 2027 clocks go from 02:00 to 03:00.
	saturdays := WindowConfig{Cron: "0 2 * * 6", For: 3 * time.Hour, Zone: "Europe/Berlin"}
	once := WindowConfig{From: "2027-01-31 22:00", Until: "2027-02-01T03:00:00Z", Zone: "America/New_York"} // 03:00 to 03:00 UTC: never
	long := WindowConfig{From: "2027-01-31 22:00", Until: "2027-02-01 01:00", Zone: "America/New_York"}     // 03:00 to 06:00 UTC
	for _, c := range []struct {
		w    WindowConfig
		at   string
		want bool
	}{
		{saturdays, "2027-01-02T00:59:59Z", false},
		{saturdays, "2027-01-02T01:00:00Z", true},
		{saturdays, "2027-01-02T03:59:59Z", true},
		{saturdays, "2027-01-02T04:00:00Z", false},
		{saturdays, "2027-01-03T02:00:00Z", false},
		{saturdays, "2027-07-03T00:30:00Z", true},
		{long, "2027-02-01T02:59:59Z", false},
		{long, "2027-02-01T03:00:00Z", true},
		{long, "2027-02-01T05:59:59Z", true},
		{long, "2027-02-01T06:00:00Z", false},
	} {
		s, key, err := c.w.read()
		if err != nil {
			t.Fatalf("%+v: %s: %v", c.w, key, err)
		}
		at, err := time.Parse(time.RFC3339, c.at)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.open(at); got != c.want {
			t.Errorf("%+v at %s: open is %v", c.w, c.at, got)
		}
	}
	if _, _, err := once.read(); err == nil {
		t.Error("a window without a length is taken")
	}
}

// What an operator allows reaches the arbiter: pins, limits, tenants, and what
// windows close while they are open.
func TestConfigLimits(t *testing.T) {
	c, err := parseConfig([]byte(goodModel + `    replicas: {min: 1, max: 4}
    static: 3
    lend_limit: 2
    pin: [g0/s0, g0/s9]
  - {name: n, engine: synthetic, endpoints: [embeddings]}
arbiter:
  mode: observe
  risk: strict
  tenants: [{name: a, weight: 3, borrow_limit: 1.5}, {name: b}]
  windows:
    - {name: early, from: "2027-01-01 00:00", until: "2027-01-01 02:00", models: [m], gpus: [1], slices: [g0/s2]}
    - {from: "2027-01-01 01:00", until: "2027-01-01 02:00"}
`))
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ at, m, n, closed string }{
		{"2026-12-31T23:59:59Z", "{3 2 [g0/s0 g0/s9] false}", "{0 0 [] false}", "[] []"},
		{"2027-01-01T00:30:00Z", "{3 2 [g0/s0 g0/s9] true}", "{0 0 [] false}", "[1] [g0/s2]"},
		{"2027-01-01T01:30:00Z", "{3 2 [g0/s0 g0/s9] true}", "{0 0 [] true}", "[1] [g0/s2]"},
	} {
		at, _ := time.Parse(time.RFC3339, tc.at)
		open, p := c.openWindows(at), c.policy(at)
		if m, n := fmt.Sprint(c.Models[0].limits(open)), fmt.Sprint(c.Models[1].limits(open)); m != tc.m || n != tc.n {
			t.Errorf("%s: limits %s and %s, want %s and %s", tc.at, m, n, tc.m, tc.n)
		}
		if got := fmt.Sprint(p.ClosedGPUs, p.ClosedSlices); got != tc.closed {
			t.Errorf("%s: closed %s, want %s", tc.at, got, tc.closed)
		}
		if want := tc.at > "2027-01-01T01"; p.Frozen != want {
			t.Errorf("%s: all lending stopped: %v, want %v", tc.at, p.Frozen, want)
		}
		if p.Mode != arbiter.ModeObserve || p.Risk != arbiter.Strict || fmt.Sprint(p.Tenants) != "[{a 3 1.5} {b 1 0}]" {
			t.Errorf("policy %+v", p)
		}
	}
	devices := []gpu.Device{{Slices: []gpu.Slice{{ID: "g0/s0"}, {ID: "g0/s1"}}}}
	if got := fmt.Sprint(c.unknownSlices(devices)); got != "[g0/s9 g0/s2]" {
		t.Errorf("unknown slices %s", got)
	}
}
