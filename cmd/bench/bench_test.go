package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"aloft/sim/batching"
)

func madeUp() *result {
	r := &result{name: "made-up", title: "Made up", how: "By hand.", head: []string{"a", "b"},
		where: surrounding{commit: "abc1234+dirty", machine: "a machine", at: time.Date(2026, 1, 2, 3, 4, 0, 0, time.UTC)}, took: 61 * time.Second, others: 0.25}
	r.row("1", "2")
	r.note("A note of %d words.", 5)
	r.measured("seen", 1234.5678)
	r.atLeast("kept", 1.5, 1.5)
	r.atLeast("not kept", 0.89996, 0.9)
	r.atMostIn("between", batching.Interval{Value: 1.1, Low: 1, High: 1.23456}, 1.2)
	return r
}

const madeUpSection = `## Made up

By hand.

` + "`go run ./cmd/bench made-up`" + ` at commit abc1234+dirty, 2026-01-02 03:04 UTC, in 61 s; a machine; other work used 0.2 cores meanwhile.

| a | b |
|---|---|
| 1 | 2 |

A note of 5 words.

| mark | measured | wanted |  |
|---|---|---|---|
| kept | 1.5 | >= 1.5 | ok |
| not kept | 0.9 | >= 0.9 | **missed** |
| between | 1.1 (1 to 1.235) | <= 1.2 | ok |`

func TestResultIsWritten(t *testing.T) {
	root := t.TempDir()
	r := madeUp()
	if got := r.section(); got != madeUpSection {
		t.Errorf("section reads\n%s\nwant\n%s", got, madeUpSection)
	}
	for range 2 { // the second time replaces
		if err := r.write(root); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(text, []byte(madeUpSection)); n != 1 || !bytes.HasPrefix(text, []byte("# Benchmarks\n")) {
		t.Errorf("the section stands there %d times, want once below the title:\n%s", n, text)
	}
	var out struct {
		Commit, Machine string
		Marks           []mark
	}
	b, err := os.ReadFile(filepath.Join(root, "bench", "out", "made-up.json"))
	if err == nil {
		err = json.Unmarshal(b, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	want := "{abc1234+dirty a machine [{seen 1235  true []} {kept 1.5 >= 1.5 true []} {not kept 0.9 >= 0.9 false []} {between 1.1 <= 1.2 true [1 1.235]}]}"
	if got := fmt.Sprint(out); got != want {
		t.Errorf("JSON holds %s, want %s", got, want)
	}
}

func TestReplaceSection(t *testing.T) {
	section := func(name, text string) string {
		return "<!-- bench " + name + ": written by a program -->\n" + text + "\n<!-- end of " + name + " -->\n"
	}
	for _, c := range []struct{ what, page, want string }{
		{"empty page", "# Title\n", "# Title\n\n" + section("b", "new")},
		{"another's section stays", "# Title\n\n" + section("a", "x"), "# Title\n\n" + section("a", "x") + "\n" + section("b", "new")},
		{"own section in the middle", "# Title\n" + section("b", "old\nlines") + "\nwords\n", "# Title\n" + section("b", "new") + "\nwords\n"},
	} {
		got, err := replaceSection([]byte(c.page), "b", "new")
		if err != nil || string(got) != c.want {
			t.Errorf("%s: %v\n%s\nwant\n%s", c.what, err, got, c.want)
		}
	}
	broken := "<!-- bench b: written by a program -->\nold\n"
	if got, err := replaceSection([]byte(broken), "b", "new"); err == nil {
		t.Errorf("a section without an end was replaced: %s", got)
	}
}

func TestFigures(t *testing.T) {
	if got := spreadOf([]float64{3, 1, 2, 10}); got != (spread{1, 2.5, 10}) {
		t.Errorf("spread is %v", got)
	}
	if got := fmt.Sprint(each([]float64{6, 9}, []float64{3, 2}, ratio)); got != "[2 4.5]" {
		t.Errorf("ratios are %s", got)
	}
	samples := make([]float64, 100)
	for i := range samples {
		samples[i] = float64(100 - i)
	}
	for q, want := range map[float64]float64{0: 1, 0.5: 50, 0.99: 99, 1: 100} {
		if got := quantile(samples, q); got != want {
			t.Errorf("quantile %v of 1 to 100 is %v, want %v", q, got, want)
		}
	}
	for v, want := range map[float64]float64{1234.5678: 1235, 0.0123456: 0.01235, 0: 0, 99999: 100000, -1.23456: -1.235} {
		if got := round(v); got != want {
			t.Errorf("round(%v) is %v, want %v", v, got, want)
		}
	}
}

func TestChoose(t *testing.T) {
	if all, err := choose([]string{"all"}); err != nil || len(all) != len(benchmarks) {
		t.Errorf("all chose %d, %v", len(all), err)
	}
	for _, names := range [][]string{nil, {"nothing"}, {"chat", "nothing"}} {
		if _, err := choose(names); err == nil {
			t.Errorf("choose(%q) is no error", names)
		}
	}
	var out bytes.Buffer
	if err := run(t.Context(), []string{"-list"}, &out); err != nil || !strings.Contains(out.String(), "embeddings ") {
		t.Errorf("-list printed %q, %v", out.String(), err)
	}
}

func TestStream(t *testing.T) {
	frame := func(s string) string { return "data: " + s + "\n\n" }
	role := frame(`{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}`)
	word := frame(`{"choices":[{"index":0,"delta":{"content":"word"}}]}`)
	usage := frame(`{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":5}}`)
	done := frame("[DONE]")
	for _, c := range []struct {
		what, body string
		want       answer
		fails      bool
	}{
		{"whole", role + word + word + usage + done, answer{events: 2, tokens: 5}, false},
		{"cut off", role + word, answer{events: 1}, true},
		{"broken", role + frame(`{"error":{"message":"no"}}`), answer{}, true},
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, c.body) }))
		seen := 0
		got, err := newClient(srv.URL).stream(t.Context(), nil, func() { seen++ })
		srv.Close()
		if got != c.want || (err != nil) != c.fails || seen != got.events {
			t.Errorf("%s: %+v, %v, %d events seen; want %+v, failing %v", c.what, got, err, seen, c.want, c.fails)
		}
	}
}

// A closed loop that meets an error ends with it, and so does its rate.
func TestLoopEndsWithAnError(t *testing.T) {
	no := errors.New("no")
	v, err := loop{n: 3, span: time.Hour, send: func(_ context.Context, i int, _ func(int)) error {
		if i == 10 {
			return no
		}
		return nil
	}}.rate(t.Context())
	if !errors.Is(err, no) {
		t.Errorf("rate is %v, %v; want the client's error", v, err)
	}
}

func TestCPUIsRead(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "42")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	line := "42 (odd) name) S 7 42 42 0 -1 4194560 1 0 0 0 150 25 0 0 20 0 9 0 100 0 0\n"
	if err := os.WriteFile(filepath.Join(dir, "stat"), []byte(line), 0o644); err != nil {
		t.Fatal(err)
	}
	if pid, parent, used := readStat(filepath.Join(dir, "stat")); pid != 42 || parent != 7 || used != 1.75 {
		t.Errorf("read pid %d, parent %d, %v s; want 42, 7, 1.75 s", pid, parent, used)
	}
	if pid, _, used := readStat(filepath.Join(dir, "none")); pid != 0 || used != 0 {
		t.Errorf("a process that is gone has pid %d and used %v s", pid, used)
	}
	var c cost
	c.add(cpu{1, 2, 3}, cpu{2, 2.5, 3.25}, 1000)
	if got := c.String(); got != "1.00 + 0.50 + 0.25" {
		t.Errorf("cost is %s ms", got)
	}
}

// What is compared differs in the one setting alone.
func TestServersDifferInBatchOff(t *testing.T) {
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join("servers", name))
		if err != nil {
			t.Fatal(err)
		}
		_, body, _ := strings.Cut(string(b), "node:")
		return body
	}
	if on, off := read("batcher-on.yaml"), read("batcher-off.yaml"); strings.Replace(on, "batch: {", "batch: {off: true, ", 1) != off {
		t.Errorf("on and off differ in more than batch.off:\n%s\n%s", on, off)
	}
}
