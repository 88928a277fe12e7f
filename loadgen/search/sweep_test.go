package search

import (
	"encoding/csv"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"aloft/loadgen/arrivals"
)

func TestSweep(t *testing.T) {
	var c Curve
	m := &model{servers: 1, serve: exponential(100)}
	synctest.Test(t, func(t *testing.T) {
		var err error
		o := Options{Base: base(1, arrivals.Poisson), SLO: slo(t, "e2e_p99<100ms"), Min: 10, Max: 640, Points: 7, Repeats: 2, Limit: 2 * time.Hour, Run: m.run}
		if c, err = Sweep(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	})
	// 10, 20, 40, 80, 160, 320, 640: the two above 100 are hopeless.
	if c.Stopped != GaveUp || len(c.Points) != 6 || m.runs != 12 {
		t.Fatalf("%s after %d points and %d runs", c.Stopped, len(c.Points), m.runs)
	}
	if !strings.Contains(c.Note, "2 hopeless points in a row, 1 rates before") {
		t.Errorf("note %q", c.Note)
	}
	for i, want := range []Verdict{Holds, Holds, Holds, Fails, Fails, Fails} {
		if p := c.Points[i]; p.Verdict != want {
			t.Errorf("%.0f/s: %s, %s, want %s", p.Rate, p.Verdict, p.Reason, want)
		}
		for _, x := range c.Points[i].Tries {
			if x.Report == nil || x.Early {
				t.Errorf("%.0f/s: a run ended early or lost its report", x.Rate)
			}
		}
	}
	var table, sheet, text strings.Builder
	if err := c.WriteTable(&table); err != nil {
		t.Fatal(err)
	}
	if err := c.WriteCSV(&sheet); err != nil {
		t.Fatal(err)
	}
	if err := json.NewEncoder(&text).Encode(&c); err != nil {
		t.Fatal(err)
	}
	narrow(t, table.String())
	rows, err := csv.NewReader(strings.NewReader(sheet.String())).ReadAll()
	if err != nil || len(rows) != 13 || rows[1][1] != "10" || rows[12][5] != "fails" {
		t.Errorf("%d rows, %v: %v", len(rows), err, rows)
	}
	var back Curve
	if err := json.Unmarshal([]byte(text.String()), &back); err != nil || back.Schema != "aloft.search/1" || len(back.Points) != 6 || back.SLO.String() != "e2e_p99<100ms" {
		t.Errorf("read back: %v, %+v", err, back.Head)
	}
}

// narrow wants lines of at most 80 columns.
func narrow(t *testing.T, table string) {
	t.Helper()
	for line := range strings.Lines(table) {
		if n := len([]rune(strings.TrimRight(line, "\n"))); n > 80 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	if t.Failed() || testing.Verbose() {
		t.Log("\n" + table)
	}
}

func TestAnswerTable(t *testing.T) {
	m := &model{servers: 1, serve: exponential(100)}
	a, err := find(t, m, Options{Base: base(1, arrivals.Poisson), SLO: slo(t, "e2e_p99<100ms"), Limit: 2 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := a.WriteTable(&b); err != nil {
		t.Fatal(err)
	}
	narrow(t, b.String())
	for _, want := range []string{"99 % of requests e2e_p99<100ms\n", "holds up to ", ", fails from ", "found after ", "seed 1"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}
