package loadgen

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

func figure(c Comparison, name string) FigureChange {
	for _, f := range c.Figures {
		if f.Figure == name {
			return f
		}
	}
	return FigureChange{Verdict: "not there"}
}

func TestCompare(t *testing.T) {
	a, b := sampleReport(t, 900, 100*msec, 1), sampleReport(t, 980, 50*msec, 2)
	c := Compare(a, b)
	for name, want := range map[string]Verdict{
		"attainment": Better, "goodput": Better, "shed": Better, "failed": Unclear, "e2e_p50": Better, "e2e_mean": Better, "ttft_p50": Better, "tpot_p50": Better,
		"e2e_p999": Unclear, // 900 values say little of it
		"lag_p50":  Unclear,
	} {
		if got := figure(c, name); got.Verdict != want {
			t.Errorf("%s: %+v, want %q", name, got, want)
		}
	}
	back := Compare(b, a)
	for _, name := range []string{"attainment", "goodput", "shed", "e2e_p50"} {
		if got := figure(back, name); got.Verdict != Worse {
			t.Errorf("the other way round %s: %+v, want worse", name, got)
		}
	}
	f := figure(c, "attainment")
	if f.A != 0.9 || f.B != 0.98 || f.IntervalA.Lo > 0.9 || f.IntervalA.Hi < 0.9 || f.IntervalA.Hi-f.IntervalA.Lo < 0.03 {
		t.Errorf("attainment %+v", f)
	}
	for _, x := range c.Figures {
		for _, y := range []struct {
			v  float64
			in Interval
		}{{x.A, x.IntervalA}, {x.B, x.IntervalB}} {
			if y.v < y.in.Lo || !y.in.Open && y.v > y.in.Hi {
				t.Errorf("%s: %v is outside of %+v", x.Figure, y.v, y.in)
			}
		}
	}
	var keys []string
	for _, ch := range c.Changes {
		keys = append(keys, ch.Key+" "+ch.A+" "+ch.B)
	}
	if got := strings.Join(keys, ","); got != "config.seed 1 2" {
		t.Errorf("changes %q, want the seed alone", got)
	}
	if same := Compare(a, sampleReport(t, 900, 100*msec, 1)); len(same.Changes) != 0 {
		t.Errorf("equal runs: changes %v", same.Changes)
	} else {
		for _, f := range same.Figures {
			if f.Verdict != Unclear {
				t.Errorf("equal runs: %+v", f)
			}
		}
	}
	if _, err := json.Marshal(c); err != nil {
		t.Error(err)
	}
	var out bytes.Buffer
	if err := c.WriteTable(&out); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out.String()) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	if text := out.String(); !strings.Contains(text, "config.seed: 1 -> 2") || !strings.Contains(text, "better") {
		t.Errorf("table\n%s", text)
	}
	t.Log("\n" + out.String())
}

// Where a run does not count, or is another kind of loop, nothing is said.
func TestCompareHasDoubts(t *testing.T) {
	a, b := sampleReport(t, 900, 100*msec, 1), sampleReport(t, 980, 50*msec, 2)
	b.Failed, b.Interrupted = []string{"too slow"}, true
	c := Compare(a, b)
	if got := figure(c, "attainment").Verdict; got != NoWord || len(c.Doubts) != 2 || !strings.Contains(c.Doubts[0], "run B does not count: too slow") {
		t.Errorf("verdict %q, doubts %q", got, c.Doubts)
	}
	b.Failed, b.Interrupted = nil, false
	b.Results[0].Closed = 4
	c = Compare(a, b)
	if got := figure(c, "attainment").Verdict; got != NoWord || len(c.Doubts) != 1 {
		t.Errorf("a closed loop: verdict %q, doubts %q", got, c.Doubts)
	}
	b.Results[0].Phase = "other"
	c = Compare(a, b)
	if len(c.Figures) != 0 || strings.Join(c.OnlyA, "") != "chat/steady" || strings.Join(c.OnlyB, "") != "chat/other" {
		t.Errorf("other phases: %d figures, only %v and %v", len(c.Figures), c.OnlyA, c.OnlyB)
	}
}

// A server that refuses the slow half is not the quicker one.
func TestCompareMindsWhatIsLeftOut(t *testing.T) {
	a, b := sampleReport(t, 980, 100*msec, 1), sampleReport(t, 500, 50*msec, 2)
	c := Compare(a, b)
	if got := figure(c, "attainment").Verdict; got != Worse {
		t.Errorf("attainment %q, want worse", got)
	}
	if got := figure(c, "e2e_p50").Verdict; got != NoWord {
		t.Errorf("e2e %q, want no word", got)
	}
	if want := "chat/steady: e2e_mean of B is over fewer of the requests (20 of 1000 left out in A, 500 of 1000 in B)"; len(c.Doubts) != 1 || !strings.HasPrefix(c.Doubts[0], want) {
		t.Errorf("doubts %q, want %q", c.Doubts, want)
	}
	if got := figure(Compare(b, a), "e2e_p50").Verdict; got != NoWord {
		t.Errorf("the other way round e2e %q, want no word", got)
	}
	c = Compare(b, sampleReport(t, 980, 20*msec, 2)) // of more requests, and quicker still
	if got := figure(c, "e2e_p50").Verdict; got != Better || len(c.Doubts) != 0 {
		t.Errorf("e2e %q, doubts %q, want better", got, c.Doubts)
	}
}

func TestChangesGoByName(t *testing.T) {
	a, b := &Report{Config: json.RawMessage(`{"workloads":[{"name":"x","inputs":1,"gone":true}]}`)}, &Report{Config: json.RawMessage(`{"workloads":[{"name":"new"},{"name":"x","inputs":2}]}`)}
	b.Tool.Commit, b.Host.Kernel = "abc", "6.1"
	want := []Change{
		{"config.workloads.new.name", "", "new"}, {"config.workloads.x.gone", "true", ""}, {"config.workloads.x.inputs", "1", "2"},
		{"host.kernel", "", "6.1"}, {"tool.commit", "", "abc"},
	}
	got := changes(a, b)
	if len(got) != len(want) {
		t.Fatalf("changes %v, want %v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("change %v, want %v", got[i], want[i])
		}
	}
}
