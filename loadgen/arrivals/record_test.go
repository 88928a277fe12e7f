package arrivals

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestRecordsRoundTripSorted(t *testing.T) {
	in := []Record{
		{Offset: 2 * time.Second, Endpoint: "chat", Model: "m", Tenant: "acme", Class: "interactive", InputTokens: 12, OutputTokens: 30},
		{Offset: time.Second, Endpoint: "embeddings", Model: "e", InputTokens: 6},
	}
	var buf bytes.Buffer
	w := NewWriter(&buf)
	for _, r := range in {
		if err := w.Write(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	first := `{"offset_ns":2000000000,"endpoint":"chat","model":"m","tenant":"acme","class":"interactive","input_tokens":12,"output_tokens":30}`
	if line, _, _ := strings.Cut(buf.String(), "\n"); line != first {
		t.Errorf("line is %s\nwant    %s", line, first)
	}
	out, err := Read(&buf, 0)
	if err != nil {
		t.Fatal(err)
	}
	if want := []Record{in[1], in[0]}; !slices.Equal(out, want) {
		t.Errorf("read %v, want %v", out, want)
	}
}

func TestReadSaysWhereAndKeepsTheRest(t *testing.T) {
	good := `{"offset_ns":5,"endpoint":"chat","input_tokens":1,"output_tokens":1}` + "\n"
	for name, c := range map[string]struct{ in, want string }{
		"cut off by a crash": {good + "\n" + good[:30], "line 3: the last line is cut off: unexpected end"},
		"negative":           {good + `{"offset_ns":-1,"endpoint":"chat"}`, "line 2: offset -1ns"},
		"a mistake":          {good + "{\"offset_ns\":\n" + good, "line 2: unexpected end"},
		"no endpoint":        {good + `{"offset_ns":1}`, "line 2: no endpoint"},
		"endless line":       {good + strings.Repeat("x", maxLine+1), "a line is longer than 65536 bytes"},
	} {
		got, err := Read(strings.NewReader(c.in), 0)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, c.want)
		}
		if errors.Is(err, ErrCut) != (name == "cut off by a crash") {
			t.Errorf("%s: is %v a cut?", name, err)
		}
		if len(got) != 1 {
			t.Errorf("%s: kept %d records, want the 1 before the mistake", name, len(got))
		}
	}
	if _, err := Read(strings.NewReader(strings.Repeat("x", maxLine+1)), 0); err == nil || !strings.Contains(err.Error(), "this is no recording") {
		t.Errorf("a file of another kind: %v", err)
	}
	if _, err := Read(strings.NewReader(good+good), 1); err == nil || !strings.Contains(err.Error(), "more than 1 records") {
		t.Errorf("limit: error %v", err)
	}
	if err := NewWriter(&bytes.Buffer{}).Write(Record{Endpoint: "chat", InputTokens: -1}); err == nil {
		t.Error("wrote a record with negative tokens")
	}
}

func TestReadAzure(t *testing.T) {
	got, err := ReadAzure(strings.NewReader("TIMESTAMP,ContextTokens,GeneratedTokens\r\n"+
		"2023-11-16 18:17:03.9799600,4808,10\r\n2023-11-16 18:17:04.0319600,3180,8\r\n"), 0)
	if err != nil {
		t.Fatal(err)
	}
	want := []Record{
		{Endpoint: "chat", InputTokens: 4808, OutputTokens: 10},
		{Offset: 52 * time.Millisecond, Endpoint: "chat", InputTokens: 3180, OutputTokens: 8},
	}
	if !slices.Equal(got, want) {
		t.Errorf("read %v, want %v", got, want)
	}
	for name, c := range map[string]struct{ in, want string }{
		"empty":   {"", "header"},
		"columns": {"a,b,c\n", `columns ["a" "b" "c"]`},
		"time":    {"TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,1\n", "line 2"},
		"tokens":  {"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9,1,-1\n", "line 2"},
		"columns missing": {"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9,1\n",
			"wrong number of fields"},
	} {
		if _, err := ReadAzure(strings.NewReader(c.in), 0); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, c.want)
		}
	}
}

// Whatever is read, is read again the same after writing it.
func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"offset_ns":5,"endpoint":"chat","model":"m","input_tokens":1,"output_tokens":1}` + "\n\n{}"))
	f.Add([]byte(`{"offset_ns":9223372036854775807,"endpoint":"x"}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		records, _ := Read(bytes.NewReader(in), 1000)
		var buf bytes.Buffer
		w := NewWriter(&buf)
		for _, r := range records {
			if err := w.Write(r); err != nil {
				t.Fatalf("read %+v, which cannot be written: %v", r, err)
			}
		}
		w.Flush()
		again, err := Read(&buf, 1000)
		if err != nil || !slices.Equal(records, again) {
			t.Fatalf("read %v, then %v (%v)", records, again, err)
		}
		plan, err := Build(Spec{Phases: []Phase{{Name: "x", Process: Process{Kind: Replay, Trace: Trace{File: "f", Format: RecordFormat}}}}, Open: text(string(in))}, 1000)
		if err == nil && (plan.check() != nil || len(plan.Offsets) != len(records)) {
			t.Fatalf("%d records give %d arrivals to %v: %v", len(records), len(plan.Offsets), plan.End(), plan.check())
		}
	})
}

func FuzzReadAzure(f *testing.F) {
	f.Add([]byte("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n"))
	f.Add([]byte("TIMESTAMP,ContextTokens,GeneratedTokens\n0001-01-01 00:00:00,1,1\n9999-01-01 00:00:00,1,1\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		records, err := ReadAzure(bytes.NewReader(in), 1000)
		for _, r := range records {
			if cerr := r.check(); cerr != nil {
				t.Fatalf("let pass %+v: %v (%v)", r, cerr, err)
			}
		}
	})
}
