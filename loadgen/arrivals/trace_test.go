package arrivals

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// text is an Open that gives the same text for every file.
func text(s string) func(string) (io.ReadCloser, error) {
	return func(string) (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(s)), nil }
}

// recording has one record a second with growing sizes, from second 0 on.
func recording(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `{"offset_ns":%d,"endpoint":"chat","model":"m%d","tenant":"t%d","input_tokens":%d,"output_tokens":%d}`+"\n",
			i*int(time.Second), i%2, i%3, 10+i, 20+i)
	}
	return b.String()
}

func replayed(t *testing.T, d time.Duration, tr Trace, spec Spec) Plan {
	t.Helper()
	tr.File, tr.Format = "f", RecordFormat
	spec.Phases = append([]Phase{{Name: "x", Duration: d, Process: Process{Kind: Replay, Trace: tr}}}, spec.Phases...)
	plan, err := Build(spec, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := plan.check(); err != nil {
		t.Fatal(err)
	}
	return plan
}

func TestReplayInPhases(t *testing.T) {
	sec := func(s ...float64) (out []time.Duration) {
		for _, x := range s {
			out = append(out, time.Duration(x*float64(time.Second)))
		}
		return out
	}
	for name, c := range map[string]struct {
		d    time.Duration
		tr   Trace
		at   []time.Duration
		end  time.Duration
		note string // one of the notes has it
	}{
		"whole":       {0, Trace{}, sec(0, 1, 2, 3, 4, 5), 5*time.Second + 2, "6 arrivals from 6 of its 6 rows"},
		"cut":         {2500 * time.Millisecond, Trace{}, sec(0, 1, 2), 2500 * time.Millisecond, "3 arrivals"},
		"end is out":  {2 * time.Second, Trace{}, sec(0, 1), 2 * time.Second, "2 arrivals"},
		"from":        {0, Trace{From: 3500 * time.Millisecond}, sec(0.5, 1.5), 1500*time.Millisecond + 2, "2 arrivals from 2 of its 6 rows"},
		"most":        {0, Trace{From: time.Second, Most: 2}, sec(0, 1), time.Second + 2, "from 2 of its 6 rows"},
		"fast":        {0, Trace{Speed: 4}, sec(0, 0.25, 0.5, 0.75, 1, 1.25), 1250*time.Millisecond + 1, "time runs 4 times as fast"},
		"slow":        {3 * time.Second, Trace{Speed: 0.5}, sec(0, 2), 3 * time.Second, "time runs 0.5 times as fast"},
		"ends before": {10 * time.Second, Trace{}, sec(0, 1, 2, 3, 4, 5), 10 * time.Second, "ends after 5s; the rest of 10s is quiet"},
		"of a model":  {0, Trace{Model: "m1"}, sec(1, 3, 5), 5*time.Second + 2, "from 3 of its 6 rows"},
	} {
		plan := replayed(t, c.d, c.tr, Spec{Open: text(recording(6))})
		if !slices.Equal(plan.Offsets, c.at) || plan.End() != c.end {
			t.Errorf("%s: at %v to %v, want %v to %v", name, plan.Offsets, plan.End(), c.at, c.end)
		}
		if !strings.Contains(strings.Join(plan.Notes, "\n"), c.note) {
			t.Errorf("%s: notes %q, want %q in one", name, plan.Notes, c.note)
		}
		if slow := strings.Contains(strings.Join(plan.Notes, "\n"), "as fast"); slow != (c.tr.Speed != 0) {
			t.Errorf("%s: notes %q speak of speed: %v", name, plan.Notes, slow)
		}
	}
}

// A replay keeps sizes, and senders that are tenants; what follows it begins at
// its end.
func TestReplayKeepsSizesAndTenants(t *testing.T) {
	five := Dist{Kind: "fixed", Mean: 5}
	plan := replayed(t, 0, Trace{Most: 4}, Spec{
		Open: text(recording(6)), Tenants: []Tenant{{"else", 1}, {"t1", 0}, {"t2", 0}}, Input: &five, Output: &five,
		Phases: []Phase{{Name: "y", Duration: time.Second, Process: Process{Kind: Constant, Rate: 1}}},
	})
	want := []Shape{
		{Input: 10, Output: 20, Tenant: 0}, // t0 is none of ours
		{Input: 11, Output: 21, Tenant: 1},
		{Input: 12, Output: 22, Tenant: 2},
		{Input: 13, Output: 23, Tenant: 0},
		{Input: 5, Output: 5, Tenant: 0}, // not of the trace
	}
	if !slices.Equal(plan.Shapes, want) {
		t.Errorf("shapes %v, want %v", plan.Shapes, want)
	}
	if at := plan.Offsets[4]; at != 3*time.Second+2 {
		t.Errorf("the next phase begins at %v, want at the end of the trace", at)
	}
}

// Copies keep the gaps of the trace, each from a row of its own.
func TestReplayCopies(t *testing.T) {
	plan := replayed(t, 0, Trace{Copies: 3}, Spec{Seed: 4, Open: text(recording(60))})
	if n := len(plan.Offsets); n != 180 && n != 179 && n != 178 { // the ring's gap may carry a copy's last row over the end
		t.Fatalf("%d arrivals, want 3 times 60", n)
	}
	turns := map[time.Duration]int{}
	for _, at := range plan.Offsets {
		turns[at%time.Second]++
	}
	if len(turns) > 5 {
		t.Errorf("arrivals lie on %d fractions of a second: gaps were changed", len(turns))
	}
	single := replayed(t, 0, Trace{}, Spec{Seed: 4, Open: text(recording(60))})
	if plan.End() != single.End() {
		t.Errorf("three copies end at %v, one at %v", plan.End(), single.End())
	}
	firsts := map[uint32]bool{}
	for i, at := range plan.Offsets {
		if at == 0 {
			firsts[plan.Shapes[i].Input] = true
		}
	}
	if len(firsts) < 2 || !firsts[10] {
		t.Errorf("copies begin at rows with %v input tokens, want 10 and others", firsts)
	}
}

func TestReplayRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		tr   Trace
		open func(string) (io.ReadCloser, error)
		want string
	}{
		"no file":       {Trace{Format: RecordFormat}, nil, "file is missing"},
		"no format":     {Trace{File: "f"}, nil, `format is ""`},
		"stray model":   {Trace{File: "f", Format: AzureFormat, Model: "x"}, nil, "endpoint and of_model belong"},
		"speed":         {Trace{File: "f", Format: AzureFormat, Speed: math.NaN()}, nil, "speed is NaN"},
		"copies":        {Trace{File: "f", Format: AzureFormat, Copies: 1000}, nil, "copies is 1000"},
		"negative from": {Trace{File: "f", Format: AzureFormat, From: -1}, nil, "from is -1ns"},
		"most":          {Trace{File: "f", Format: AzureFormat, Most: -1}, nil, "most is -1"},
		"no opener":     {Trace{File: "f", Format: RecordFormat}, nil, "cannot be read here"},
		"missing":       {Trace{File: "f", Format: RecordFormat}, func(string) (io.ReadCloser, error) { return nil, fs.ErrNotExist }, "file does not exist"},
		"bad line":      {Trace{File: "f", Format: RecordFormat}, text("{}"), "file f: arrivals: line 1: no endpoint"},
		"nothing left":  {Trace{File: "f", Format: RecordFormat, Endpoint: "rerank"}, text(recording(3)), "none of its 3 rows is meant"},
		"limit":         {Trace{File: "f", Format: RecordFormat, Copies: 5}, text(recording(3)), "passes the limit of 10"},
		"one time":      {Trace{File: "f", Format: RecordFormat}, text(strings.Repeat(`{"offset_ns":7,"endpoint":"chat"}`+"\n", 3)), "its rows (3) all have one time"},
		"long":          {Trace{File: "f", Format: RecordFormat, Speed: 1e-4}, text(recording(1000)), "give the phase a duration"},
	} {
		_, err := Build(Spec{Phases: []Phase{{Name: "x", Process: Process{Kind: Replay, Trace: c.tr}}}, Open: c.open}, 10)
		if name == "long" {
			_, err = Build(Spec{Phases: []Phase{{Name: "x", Process: Process{Kind: Replay, Trace: c.tr}}}, Open: c.open}, 0)
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, c.want)
		}
		if keys, _ := Keys(err); !slices.Equal(keys, []string{"phases[0]", "process"}) {
			t.Errorf("%s: below keys %q, want phases[0] process", name, keys)
		}
	}
}

// What some editors put before UTF-8 is no part of a trace.
func TestByteOrderMark(t *testing.T) {
	const mark = "\ufeff"
	azure, err := ReadAzure(strings.NewReader(mark+"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n"), 0)
	if err != nil || len(azure) != 1 {
		t.Errorf("azure: %v, %v", azure, err)
	}
	mooncake, _, err := ReadMooncake(strings.NewReader(mark+`{"timestamp":5,"input_length":1,"output_length":1,"hash_ids":[]}`), Rand(1, 0), 0)
	if err != nil || len(mooncake) != 1 {
		t.Errorf("mooncake: %v, %v", mooncake, err)
	}
	own, err := Read(strings.NewReader(mark+recording(2)), 0)
	if err != nil || len(own) != 2 {
		t.Errorf("record: %v, %v", own, err)
	}
}

func TestReadMooncake(t *testing.T) {
	row := func(ms, in, out int, blocks string) string {
		return fmt.Sprintf(`{"timestamp": %d, "input_length": %d, "output_length": %d, "hash_ids": [%s]}`+"\n", ms, in, out, blocks)
	}
	grid := row(0, 600, 1, "1,2") + row(0, 1100, 2, "1,2,3") + row(2999, 1100, 3, "1,9,2") + row(6001, 700, 4, "1,2")
	records, note, err := ReadMooncake(strings.NewReader(grid), Rand(1, 0), 0)
	if err != nil || !strings.Contains(note, "grid of 3 s") {
		t.Fatalf("note %q, error %v", note, err)
	}
	for i, want := range []struct{ from, out, shared int }{{0, 1, 0}, {0, 2, 1024}, {3, 3, 512}, {6, 4, 700}} {
		r := records[i]
		if r.OutputTokens != want.out || r.SharedTokens != want.shared {
			t.Errorf("row %d is %+v, want %d out and %d shared", i, r, want.out, want.shared)
		}
		if from := time.Duration(want.from) * time.Second; r.Offset < from || r.Offset >= from+3*time.Second {
			t.Errorf("row %d is at %v, want in the 3 s from %v", i, r.Offset, from)
		}
	}
	again, _, _ := ReadMooncake(strings.NewReader(grid), Rand(1, 0), 0)
	other, _, _ := ReadMooncake(strings.NewReader(grid), Rand(2, 0), 0)
	if !slices.Equal(records, again) || slices.Equal(records, other) {
		t.Error("the spread does not depend on the seed alone")
	}
	// Times off the grid stay.
	records, note, err = ReadMooncake(strings.NewReader(row(0, 1, 1, "")+row(1500, 1, 1, "")), Rand(1, 0), 0)
	if err != nil || note != "" || records[1].Offset != 1500*time.Millisecond {
		t.Errorf("read %v, note %q, error %v", records, note, err)
	}
	for name, c := range map[string]struct{ in, want string }{
		"no JSON":    {row(0, 1, 1, "") + "{", "line 2: unexpected end"},
		"no time":    {`{"input_length":1,"output_length":1}`, "line 1: timestamp, input_length or"},
		"negative":   {row(-1, 1, 1, ""), "timestamp is -1 ms"},
		"late":       {row(math.MaxInt, 1, 1, ""), "want 0 to"},
		"no tokens":  {row(1, -1, 1, "1"), "none may be negative"},
		"too many":   {row(1, maxSize+1, 1, "1"), "at most 10000000 are meant"},
		"long line":  {row(1, 1, 1, strings.Repeat("1,", maxLine)+"1"), "token too long"},
		"half a row": {row(1, 1, 1, `"x"`), "line 1"},
	} {
		if _, _, err := ReadMooncake(strings.NewReader(c.in), Rand(1, 0), 0); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, c.want)
		}
	}
	if _, _, err := ReadMooncake(strings.NewReader(grid), Rand(1, 0), 3); err == nil || !strings.Contains(err.Error(), "line 4: more than 3 rows") {
		t.Errorf("limit: error %v", err)
	}
}

// published plans a trace of the shared collection, whole.
func published(t *testing.T, format Format, name ...string) Plan {
	t.Helper()
	shared := os.Getenv("ALOFT_SHARED")
	if shared == "" {
		t.Skip("ALOFT_SHARED is not set: the public traces are not at hand")
	}
	path := filepath.Join(append([]string{shared, "traces"}, name...)...)
	plan, err := Build(Spec{
		Seed: 1, Open: func(p string) (io.ReadCloser, error) { return os.Open(p) },
		Phases: []Phase{{Name: "x", Process: Process{Kind: Replay, Trace: Trace{File: path, Format: format}}}},
	}, 0)
	if errors.Is(err, fs.ErrNotExist) {
		t.Skipf("a trace is not at hand: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

// The published traces, against the figures counted when they were collected.
func TestPublishedTraces(t *testing.T) {
	for _, c := range []struct {
		file      string
		rows      int
		rate      float64 // per second
		cv        float64 // of the gaps
		in, out   uint32  // medians
		maxIn, mo uint32
	}{
		{"AzureLLMInferenceTrace_code.csv", 8819, 2.57, 13.2, 1469, 13, 7437, 1899},
		{"AzureLLMInferenceTrace_conv.csv", 19366, 5.53, 1.09, 1020, 129, 14050, 1000},
	} {
		plan := published(t, AzureFormat, "azure-llm-2023", c.file)
		rate := float64(len(plan.Offsets)) / plan.End().Seconds()
		_, cv := meanAndCV(plan.Offsets)
		if len(plan.Offsets) != c.rows || math.Abs(rate-c.rate) > 0.01 || math.Abs(cv-c.cv) > 0.05 {
			t.Errorf("%s: %d rows, %.2f/s, CV %.2f; want %d, %.2f, %.2f", c.file, len(plan.Offsets), rate, cv, c.rows, c.rate, c.cv)
		}
		in, maxIn := medianAndMax(plan, func(s Shape) uint32 { return s.Input })
		out, maxOut := medianAndMax(plan, func(s Shape) uint32 { return s.Output })
		if in != c.in || out != c.out || maxIn != c.maxIn || maxOut != c.mo {
			t.Errorf("%s: input %d to %d, output %d to %d tokens, want %+v", c.file, in, maxIn, out, maxOut, c)
		}
	}
}

func medianAndMax(p Plan, of func(Shape) uint32) (median, most uint32) {
	v := make([]uint32, len(p.Shapes))
	for i, s := range p.Shapes {
		v[i] = of(s)
	}
	slices.Sort(v)
	return v[(len(v)-1)/2], v[len(v)-1]
}

func TestPublishedMooncake(t *testing.T) {
	plan := published(t, MooncakeFormat, "mooncake-fast25", "conversation_trace.jsonl")
	if n := len(plan.Offsets); n != 12031 {
		t.Fatalf("%d rows, want 12,031", n)
	}
	if end := plan.End(); end < 3537*time.Second || end > 3540*time.Second {
		t.Errorf("it ends at %v, want within the cell that begins at 3,537 s", end)
	}
	in, maxIn := medianAndMax(plan, func(s Shape) uint32 { return s.Input })
	out, maxOut := medianAndMax(plan, func(s Shape) uint32 { return s.Output })
	if in != 6909 || maxIn != 126195 || out != 350 || maxOut != 2000 {
		t.Errorf("input %d to %d, output %d to %d tokens", in, maxIn, out, maxOut)
	}
	// 105,710 of its 288,500 blocks were there before, all of them leading: at 512
	// tokens, less what the last block of an input lacks.
	shared := 0
	for _, s := range plan.Shapes {
		shared += int(s.Shared)
	}
	if want := 54098411; shared != want {
		t.Errorf("%d shared tokens, want %d", shared, want)
	}
	// Spread, it is no more bursty than a Poisson process with a drifting rate;
	// as it stands, its gaps have a CV of 3.
	if _, cv := meanAndCV(plan.Offsets); cv < 0.95 || cv > 1.15 {
		t.Errorf("gaps have a CV of %.3f, want about 1: the grid is still there", cv)
	}
	if !strings.Contains(strings.Join(plan.Notes, "\n"), "grid of 3 s") {
		t.Errorf("notes %q do not say that times were spread", plan.Notes)
	}
}

// No text may give a plan that breaks what a plan promises.
func FuzzReadMooncake(f *testing.F) {
	f.Add([]byte(`{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2]}` + "\n" + `{"timestamp": 3000, "input_length": 1, "output_length": 1, "hash_ids": [0]}`))
	f.Add([]byte(`{"timestamp": 316224000000, "input_length": 1, "output_length": 1}` + "\n\n{}"))
	f.Fuzz(func(t *testing.T, in []byte) {
		plan, err := Build(Spec{Phases: []Phase{{Name: "x", Process: Process{Kind: Replay, Trace: Trace{File: "f", Format: MooncakeFormat, Copies: 2, Speed: 3}}}}, Open: text(string(in))}, 1000)
		if err != nil {
			return
		}
		if err := plan.check(); err != nil {
			t.Fatal(err)
		}
		for _, s := range plan.Shapes {
			if s.Shared > s.Input || s.Input > maxSize || s.Output > maxSize {
				t.Fatalf("shape %+v", s)
			}
		}
	})
}
