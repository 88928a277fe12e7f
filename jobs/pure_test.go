package jobs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidwall/gjson"

	"aloft/backends"
)

func TestOutcome(t *testing.T) {
	asked := Times{Cancelling: time.Unix(1, 0)}
	for _, c := range []struct {
		name  string
		j     Job
		e     Exit
		saved bool
		want  State
	}{
		{"done", Job{State: Running}, Exit{}, false, Succeeded},
		{"done while preempting", Job{State: Preempting}, Exit{}, false, Succeeded},
		{"done while cancelling", Job{State: Running, Times: asked}, Exit{}, false, Succeeded},
		{"checkpointed", Job{State: Preempting}, Exit{Code: 75}, true, Queued},
		{"killed after grace", Job{State: Preempting}, Exit{Code: -1, Signal: "killed", Forced: true}, false, Queued},
		{"failed while saving", Job{State: Preempting}, Exit{Code: 1}, false, Queued},
		{"cancelled while preempting", Job{State: Preempting, Times: asked}, Exit{Code: 75}, true, Cancelled},
		{"cancelled", Job{State: Running, Times: asked}, Exit{Code: -1, Signal: "terminated"}, false, Cancelled},
		{"asks to go on", Job{State: Running}, Exit{Code: 75}, true, Queued},
		{"asks to go on without a checkpoint", Job{State: Running}, Exit{Code: 75}, false, Failed},
		{"fails", Job{State: Running}, Exit{Code: 3}, true, Failed},
		{"crashes", Job{State: Running}, Exit{Code: -1, Signal: "segmentation fault"}, true, Failed},
		{"never stored as running", Job{State: Starting}, Exit{Code: 75}, false, Queued},
	} {
		got, why := outcome(c.j, c.e, c.saved)
		if got != c.want || (got == Failed) != (why != "") {
			t.Errorf("%s: %s (%q), want %s", c.name, got, why, c.want)
		}
		if !c.j.State.Can(got) {
			t.Errorf("%s: step from %s to %s is not in the table", c.name, c.j.State, got)
		}
	}
}

func TestClassify(t *testing.T) {
	busy := &backends.RetryError{Err: backends.ErrOverloaded, After: 3 * time.Second, Reason: "queue_full"}
	for _, c := range []struct {
		res  Result
		err  error
		want retryClass
	}{
		{Result{Status: 200}, nil, retryNever},
		{Result{Status: 400}, nil, retryNever},
		{Result{Status: 404}, nil, retryNever},
		{Result{Status: 429}, nil, retryCapacity},
		{Result{Status: 503}, nil, retryCapacity},
		{Result{Status: 429, Final: true}, nil, retryNever},
		{Result{Status: 504, Final: true}, nil, retryNever},
		{Result{Status: 500}, nil, retryFault},
		{Result{Status: 504}, nil, retryFault},
		{Result{}, fmt.Errorf("x: %w", busy), retryCapacity},
		{Result{}, fmt.Errorf("x: %w", backends.ErrDraining), retryCapacity},
		{Result{}, fmt.Errorf("x: %w", backends.ErrDeadline), retryCapacity},
		{Result{}, backends.ErrConnect, retryFault},
		{Result{}, errors.New("other"), retryFault},
		{Result{}, fmt.Errorf("x: %w", backends.ErrUnknownModel), retryNever},
	} {
		if got, _ := classify(c.res, c.err); got != c.want {
			t.Errorf("%d %v: class %d, want %d", c.res.Status, c.err, got, c.want)
		}
	}
	if _, after := classify(Result{}, busy); after != 3*time.Second {
		t.Errorf("asked-for pause %v was lost", after)
	}
	r := Retry{First: 100 * time.Millisecond, Most: time.Second}
	for try, most := range map[int]time.Duration{0: 100 * time.Millisecond, 2: 400 * time.Millisecond, 9: time.Second, 1000: time.Second} {
		if got := pause(r, try, 0); got < most/2 || got > most {
			t.Errorf("pause before try %d is %v, want %v to %v", try, got, most/2, most)
		}
	}
}

func TestLineReader(t *testing.T) {
	long := strings.Repeat("x", 20)
	for in, want := range map[string]string{
		"":                         "",
		"a\nb\n":                   "1:a 2:b",
		"a\nb":                     "1:a 2:b",
		"a\r\nb\r\n":               "1:a 2:b",
		"\xef\xbb\xbfa\n":          "1:a",
		"\xef\xbb\xbf":             "",
		"a\n\n\nb\n":               "1:a 2: 3: 4:b",
		"a\n\n  \n":                "1:a",
		"\n\n":                     "",
		"\na":                      "1: 2:a",
		long + "\nb":               "1:! 2:b",
		"a\n" + long:               "1:a 2:!",
		"0123456789\n0123456789\r": "1:0123456789 2:0123456789",
	} {
		l := newLineReader(strings.NewReader(in), 10)
		var got []string
		for {
			text, err := l.next()
			if err == errLongLine {
				text, err = []byte("!"), nil
			}
			if err != nil {
				break
			}
			got = append(got, fmt.Sprintf("%d:%s", l.line, text))
		}
		if s := strings.Join(got, " "); s != want {
			t.Errorf("%q: %q, want %q", in, s, want)
		}
	}
}

const okLine = `{"custom_id":"a","method":"POST","url":"/v1/embeddings","body":{"model":"m","input":"x"}}`

// TestValidate holds the bad files of F15: each names its line.
func TestValidate(t *testing.T) {
	with := func(id, rest string) string {
		return fmt.Sprintf(`{"custom_id":%s,"method":"POST","url":"/v1/embeddings","body":%s}`, id, rest)
	}
	body := `{"model":"m","input":"x"}`
	many := make([]string, maxBatchRows+1)
	for i := range many {
		many[i] = with(fmt.Sprintf(`"%d"`, i), body)
	}
	for _, c := range []struct{ name, file, want string }{
		{"good", okLine + "\n" + with(`"b"`, body) + "\n", ""},
		{"no newline at the end", okLine, ""},
		{"crlf", okLine + "\r\n" + with(`"b"`, body) + "\r\n", ""},
		{"bom", "\xef\xbb\xbf" + okLine, ""},
		{"blank lines at the end", okLine + "\n\n \n", ""},
		{"blank line", okLine + "\n\n" + with(`"b"`, body), "2:invalid_json_line"},
		{"empty", "", "0:empty_file"},
		{"not json", okLine + "\n{oops", "2:invalid_json_line"},
		{"not utf-8", with("\"\xff\"", body), "1:invalid_json_line"},
		{"array", "[]", "1:invalid_json_line"},
		{"two values", okLine + okLine, "1:invalid_json_line"},
		{"duplicate", okLine + "\n" + with(`"b"`, body) + "\n" + okLine, "3:duplicate_custom_id"},
		{"duplicate, escaped", okLine + "\n" + with(`"\u0061"`, body), "2:duplicate_custom_id"},
		{"two custom_ids", `{"custom_id":"a","method":"POST","\u0063ustom_id":"b","url":"/v1/embeddings","body":{"model":"m","input":"x"}}`, "1:invalid_json_line"},
		{"two bodies", strings.Replace(okLine, `"body"`, `"body":{"model":"m","input":"y"},"body"`, 1), "1:invalid_json_line"},
		{"two of what nobody reads", strings.Replace(okLine, `"body"`, `"x":1,"x":2,"body"`, 1), ""},
		{"no custom_id", `{"method":"POST","url":"/v1/embeddings","body":{"model":"m"}}`, "1:missing_required_parameter"},
		{"empty custom_id", with(`""`, body), "1:invalid_custom_id"},
		{"number as custom_id", with(`7`, body), "1:invalid_custom_id"},
		{"long custom_id", with(`"`+strings.Repeat("x", 513)+`"`, body), "1:invalid_custom_id"},
		{"method", strings.Replace(okLine, "POST", "GET", 1), "1:invalid_method"},
		{"url", strings.Replace(okLine, "embeddings", "chat/completions", 1), "1:mismatched_url"},
		{"stream", with(`"b"`, `{"model":"m","input":"x","stream":true}`), "1:invalid_value"},
		{"no body", with(`"b"`, `3`), "1:missing_required_parameter"},
		{"no model", with(`"b"`, `{"input":"x"}`), "1:missing_required_parameter"},
		{"two models", okLine + "\n" + with(`"b"`, `{"model":"n","input":"x"}`), "2:mismatched_model"},
		{"20 MB line", okLine + "\n" + with(`"b"`, `{"model":"m","input":"`+strings.Repeat("x", 20<<20)+`"}`) + "\n" + with(`"c"`, `{}`),
			"2:line_too_long 3:missing_required_parameter"},
		{"too many rows", strings.Join(many, "\n"), "50001:too_many_rows"},
		{"too many inputs", with(`"b"`, `{"model":"m","input":[`+strings.Repeat(`"x",`, maxBatchInputs)+`"x"]}`), "1:too_many_inputs"},
		{"one input of many tokens", with(`"b"`, `{"model":"m","input":[`+strings.Repeat(`1,`, maxBatchInputs)+`1]}`), ""},
	} {
		v, err := validate(t.Context(), strings.NewReader(c.file), "/v1/embeddings")
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		var got []string
		for _, e := range v.Errors {
			got = append(got, fmt.Sprintf("%d:%s", e.Line, e.Code))
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s: %q, want %q", c.name, s, c.want)
		}
	}
	v, _ := validate(t.Context(), strings.NewReader(strings.Repeat("x\n", 1000)), "/v1/embeddings")
	if last := len(v.Errors) - 1; last != 100 || v.Errors[99].Line != 100 || v.Errors[last].Message != "900 more errors are not listed." {
		t.Errorf("%d errors kept of a bad file, the last %+v, want 100 and how many more", len(v.Errors), v.Errors[last])
	}
}

func FuzzBatchLine(f *testing.F) {
	f.Add([]byte(okLine))
	f.Add([]byte(`{"custom_id":"\u00e9\n","method":"POST","url":"/v1/embeddings","body":{"model":"m","input":[[1],[2]]}}`))
	f.Add([]byte(`{"custom_id":"a","custom_id":"b","body":{}}`))
	f.Add([]byte(""))
	f.Fuzz(func(t *testing.T, text []byte) {
		text = bytes.ReplaceAll(text, []byte("\n"), []byte(" ")) // a line has none
		row, fault := parseLine(text, "/v1/embeddings")
		if fault != nil {
			if fault.Code == "" || fault.Message == "" {
				t.Fatalf("%q: fault without code or message", text)
			}
			return
		}
		var id string
		if err := json.Unmarshal(row.CustomID, &id); err != nil || id == "" {
			t.Fatalf("%q: custom_id %q: %v", text, row.CustomID, err)
		}
		if row.Model == "" || row.Inputs < 0 || !json.Valid(row.Body) {
			t.Fatalf("%q: accepted as %+v", text, row)
		}
		// What is accepted can be written into an output file as one line that holds it.
		line := appendRow(nil, outcomeRow{id: "r", customID: row.CustomID, result: Result{Status: 200, Body: row.Body}})
		if bytes.Count(line, []byte("\n")) != 1 || !json.Valid(line) || gjson.GetBytes(line, "custom_id").Str != gjson.ParseBytes(row.CustomID).Str {
			t.Fatalf("%q: output line %q", text, line)
		}
	})
}

func TestAppendRow(t *testing.T) {
	for _, c := range []struct {
		o    outcomeRow
		want string
	}{
		{outcomeRow{id: "r", customID: []byte(`"a"`), result: Result{Status: 200, RequestID: "q", Body: []byte("{\n \"x\": 1}\n")}},
			`{"id":"r","custom_id":"a","response":{"status_code":200,"request_id":"q","body":{"x":1}},"error":null}`},
		{outcomeRow{id: "r", customID: []byte(`"a"`), result: Result{Status: 502, Body: []byte("<html>\nbad")}},
			`{"id":"r","custom_id":"a","response":{"status_code":502,"request_id":"","body":"\u003chtml\u003e\nbad"},"error":null}`},
		{outcomeRow{id: "r", customID: []byte(`"a"`), result: Result{Status: 200}},
			`{"id":"r","custom_id":"a","response":{"status_code":200,"request_id":"","body":""},"error":null}`},
		{outcomeRow{id: "r", customID: []byte(`"a"`), code: "batch_expired", message: "too \"late\""},
			`{"id":"r","custom_id":"a","response":null,"error":{"code":"batch_expired","message":"too \"late\""}}`},
	} {
		if got := string(appendRow(nil, c.o)); got != c.want+"\n" {
			t.Errorf("got  %swant %s", got, c.want)
		}
	}
}

func TestRowLogCutsWhatWasNotCommitted(t *testing.T) {
	dir := t.TempDir()
	b := Batch{Counts: Counts{Total: 10}}
	store := func(at RowLog, c Counts, u Usage) error { b.Log, b.Counts, b.Usage = at.clone(), c, u; return nil }
	row := func(i, status int) outcomeRow {
		return outcomeRow{row: i, customID: fmt.Appendf(nil, `"%d"`, i), result: Result{Status: status, Body: []byte(`{"usage":{"prompt_tokens":2,"total_tokens":3}}`)}}
	}
	l, err := openRowLog(dir, &b)
	if err != nil {
		t.Fatal(err)
	}
	l.add(row(3, 200))
	l.add(row(9, 400))
	if err := l.commit(store); err != nil {
		t.Fatal(err)
	}
	l.add(row(4, 200))
	if err := l.commit(func(RowLog, Counts, Usage) error { return errors.New("store is down") }); err == nil {
		t.Fatal("commit hid the store's error")
	}
	l.close()

	l, err = openRowLog(dir, &b)
	if err != nil {
		t.Fatal(err)
	}
	if !l.done(3) || !l.done(9) || l.done(4) {
		t.Errorf("done bits are %x after reopening", l.at.Done)
	}
	l.add(row(4, 200)) // runs again, and stands there once
	if err := l.commit(store); err != nil {
		t.Fatal(err)
	}
	st, _ := l.files[0].Stat()
	l.close()
	if st.Size() != b.Log.Output || b.Counts != (Counts{10, 2, 1}) || b.Usage != (Usage{4, 0, 6}) {
		t.Errorf("%d bytes of %d, counts %+v, usage %+v", st.Size(), b.Log.Output, b.Counts, b.Usage)
	}
	b.Log.Output++
	if _, err := openRowLog(dir, &b); !errors.Is(err, errLost) {
		t.Errorf("a file shorter than committed: %v, want errLost", err)
	}
}

func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := 0
		g := &gate{limit: func() int { return limit }}
		ctx, cancel := context.WithCancelCause(t.Context())
		order := make(chan int, 3)
		for i := range 3 {
			go func() {
				if g.enter(ctx, 1) == nil {
					order <- i
				}
			}()
			synctest.Wait() // they queue in order
		}
		g.mu.Lock()
		limit = 2
		g.mu.Unlock()
		start := time.Now()
		if a, b := <-order, <-order; a+b != 1 {
			t.Errorf("%d and %d came first, want 0 and 1", a, b)
		}
		if d := time.Since(start); d > gatePoll {
			t.Errorf("a rise of the limit was seen after %v", d)
		}
		time.Sleep(time.Second)
		if len(order) != 0 {
			t.Error("three are through a gate of two")
		}
		g.leave(1)
		if got := <-order; got != 2 {
			t.Errorf("%d came next, want 2", got)
		}
		cancel(errCancelled)
		if err := g.enter(ctx, 1); !errors.Is(err, errCancelled) {
			t.Errorf("enter after the end: %v", err)
		}
		if g.busy != 2 || g.held != 2 || len(g.wait) != 0 {
			t.Errorf("%d busy with %d bytes, %d waiting; want 2, 2, 0", g.busy, g.held, len(g.wait))
		}
	})
}

// Rows that are too large together go one after the other, and the largest one
// still goes.
func TestGateHoldsSoManyBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{limit: func() int { return 8 }}
		through := make(chan int, 8)
		ctx, cancel := context.WithCancelCause(t.Context())
		enter := func(ctx context.Context, bytes int) {
			go func() {
				if g.enter(ctx, bytes) == nil {
					through <- bytes
				}
			}()
			synctest.Wait()
		}
		enter(t.Context(), maxRowBytes/2)
		enter(t.Context(), maxRowBytes/2)
		enter(ctx, 1)
		enter(t.Context(), 2*maxRowBytes)
		if len(through) != 2 || g.held != maxRowBytes {
			t.Fatalf("%d rows of %d bytes are through, want 2 of %d", len(through), g.held, maxRowBytes)
		}
		cancel(errCancelled) // the one in front goes
		g.leave(maxRowBytes / 2)
		synctest.Wait()
		if len(through) != 2 {
			t.Fatal("the largest row came through beside another")
		}
		g.leave(maxRowBytes / 2)
		synctest.Wait()
		if len(through) != 3 || g.busy != 1 {
			t.Fatalf("%d rows are through, %d under way; want 3, 1", len(through), g.busy)
		}
	})
}

// What waits for a commit is bounded: rows wait for the disk, and for a log that
// has failed nobody waits.
func TestRowLogIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rows = 64
		b := Batch{Counts: Counts{Total: rows}}
		l, err := openRowLog(t.TempDir(), &b)
		if err != nil {
			t.Fatal(err)
		}
		defer l.close()
		body := []byte(`"` + strings.Repeat("x", commitBytes/4) + `"`)
		var added atomic.Int32
		for i := range rows {
			go func() {
				l.add(outcomeRow{row: i, customID: []byte(`"r"`), result: Result{Status: 200, Body: body}})
				added.Add(1)
			}()
		}
		synctest.Wait()
		if n := added.Load(); n < 8 || n > 9 {
			t.Errorf("%d rows of a quarter of a commit are held, want 8", n)
		}
		if len(l.wake) != 1 {
			t.Error("nobody is told that a commit is worth it")
		}
		if err := l.commit(func(RowLog, Counts, Usage) error { return nil }); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n := added.Load(); n < 16 || n > 18 {
			t.Errorf("%d rows after a commit, want 16", n)
		}
		if err := l.commit(func(_ RowLog, c Counts, _ Usage) error { return fmt.Errorf("no store for %+v", c) }); err == nil {
			t.Error("commit hid the store's error")
		}
		l.fail()
		synctest.Wait()
		if n := added.Load(); n != rows {
			t.Errorf("%d rows wait for a log that has failed", rows-n)
		}
	})
}

func TestTemplate(t *testing.T) {
	tpl := Template{
		Name: "tune", Kind: KindTrain, Command: []string{"{aloft}", "train", "--steps={steps}", "{name}"},
		Params: []Param{
			{Name: "steps", Type: ParamInt, Default: "10", Min: 1, Max: 100},
			{Name: "name", Type: ParamText, Max: 8},
		},
	}
	if err := tpl.Validate(); err != nil {
		t.Fatal(err)
	}
	own := map[string]string{"aloft": "/bin/aloft", "data": "/d"}
	got, err := tpl.fill(map[string]string{"name": "{steps}"}, own)
	if want := "[/bin/aloft train --steps=10 {steps}]"; err != nil || fmt.Sprint(got) != want {
		t.Errorf("filled %v, %v; want %s", got, err, want)
	}
	for _, bad := range []map[string]string{
		{}, {"name": "-rf"}, {"name": "123456789"}, {"name": "a", "steps": "0"}, {"name": "a", "steps": "1.5"},
		{"name": "a", "steps": "101"}, {"name": "a", "steps": ""}, {"name": "a", "other": "1"}, {"name": "a\x00b"}, {"name": "a", "aloft": "/bin/sh"},
	} {
		if got, err := tpl.fill(bad, own); err == nil {
			t.Errorf("%v was accepted: %v", bad, got)
		} else if _, ok := errors.AsType[*InvalidError](err); !ok {
			t.Errorf("%v: %v is not an InvalidError", bad, err)
		}
	}
	if _, err := tpl.fill(map[string]string{"name": "a", "steps": "101"}, own); err == nil || !strings.Contains(err.Error(), "within 1 and 100") {
		t.Errorf("out of bounds: %v", err)
	}
	for x, want := range map[float64]string{1e6: "1000000", 1e-6: "0.000001", math.MaxInt32: "2147483647", 1e300: "1e+300"} {
		if got := Bound(x); got != want {
			t.Errorf("bound %s, want %s", got, want)
		}
	}
	for _, broken := range []Template{
		{}, {Name: "x", Kind: KindBatch, Command: []string{"a"}}, {Name: "x", Kind: KindTrain},
		{Name: "x", Kind: KindTrain, Command: []string{"{nobody}"}},
		{Name: "x", Kind: KindTrain, Command: []string{"a"}, MinWidth: 3, MaxWidth: 2},
		{Name: "x", Kind: KindTrain, Command: []string{"a"}, Env: []string{"novalue"}},
		{Name: "x", Kind: KindTrain, Command: []string{"a"}, Params: []Param{{Name: "n", Type: ParamInt}}},
		{Name: "x", Kind: KindTrain, Command: []string{"a"}, Params: []Param{{Name: "data", Type: ParamInt, Max: 1}}},
		{Name: "x", Kind: KindTrain, Command: []string{"a"}, Params: []Param{{Name: "n", Type: ParamInt, Max: 1, Default: "2"}}},
		{Name: "x", Kind: KindTrain, Command: []string{"a"}, Params: []Param{{Name: "n", Type: "blob", Max: 1}}},
	} {
		if broken.Validate() == nil {
			t.Errorf("template %+v was accepted", broken)
		}
	}
}

func TestBatchSpec(t *testing.T) {
	good := BatchSpec{Endpoint: "/v1/embeddings", Window: "24h"}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	pairs := func(n, key, value int) map[string]string {
		m := map[string]string{}
		for i := range n {
			m[fmt.Sprintf("%0*d", key, i)] = strings.Repeat("é", value)
		}
		return m
	}
	for want, m := range map[bool][]map[string]string{
		true:  {nil, pairs(16, 64, 512)},
		false: {pairs(17, 2, 1), pairs(1, 65, 1), pairs(1, 1, 513)},
	} {
		for _, metadata := range m {
			if err := (BatchSpec{Endpoint: "/v1/embeddings", Window: "24h", Metadata: metadata}).Validate(); (err == nil) != want {
				t.Errorf("%d pairs of metadata: %v, want it accepted: %v", len(metadata), err, want)
			}
		}
	}
	for param, s := range map[string]BatchSpec{
		"endpoint":                     {Endpoint: "/v1/images", Window: "24h"},
		"completion_window":            {Endpoint: "/v1/embeddings", Window: "soon"},
		"output_expires_after.seconds": {Endpoint: "/v1/embeddings", Window: "24h", OutputTTL: -1},
		"metadata":                     {Endpoint: "/v1/embeddings", Window: "24h", Metadata: map[string]string{strings.Repeat("k", 65): ""}},
	} {
		e, ok := errors.AsType[*InvalidError](s.Validate())
		if !ok || e.Param != param {
			t.Errorf("%+v: %v, want one about %s", s, e, param)
		}
	}
}

func TestStatesHaveAnEnd(t *testing.T) {
	reach := map[State]bool{}
	var walk func(State)
	walk = func(s State) {
		if reach[s] {
			return
		}
		reach[s] = true
		for _, n := range next[s] {
			walk(n)
		}
	}
	walk(Queued)
	if len(reach) != 10 {
		t.Errorf("%d states are reachable, want 10", len(reach))
	}
	for s := range next {
		ends := s.Terminal()
		for _, n := range next[s] {
			ends = ends || n.Terminal()
		}
		if !ends {
			t.Errorf("%s has no step to an end", s)
		}
	}
	for s := range batchNext {
		if s.Terminal() || len(batchNext) != 4 {
			t.Errorf("%s is no open status", s)
		}
	}
}

func TestUsage(t *testing.T) {
	var u Usage
	for _, body := range []string{
		`{"usage":{"prompt_tokens":2,"completion_tokens":3,"total_tokens":5}}`,
		`{"usage":{"input_tokens":10,"output_tokens":20,"total_tokens":30}}`, // responses
		`{"usage":{"input_tokens":100,"output_tokens":200}}`,
		`{"usage":{"prompt_tokens":-7}}`, `{}`, `<html>`,
	} {
		u.add(Result{Body: []byte(body)})
	}
	if u != (Usage{Prompt: 112, Completion: 223, Total: 335}) {
		t.Errorf("usage %+v, want 112 in, 223 out, 335 in all", u)
	}
}
