package arrivals

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

func savedPlans(t testing.TB) Saved {
	t.Helper()
	full, err := Build(Spec{
		Seed: 3, WarmUp: 2 * sec, Tenants: []Tenant{{"a", 1}, {"b", 2}}, Input: &Dist{Kind: "lognormal", Mean: 500, CV: 1}, Open: text(recording(5)),
		Phases: []Phase{
			{Name: "p", Duration: 10 * sec, Process: Process{Kind: Gamma, Rate: 20, CV: 3}},
			{Name: "quiet", Duration: sec, Process: Process{Kind: Poisson, Rate: 1e-9}},
			{Name: "trace", Process: Process{Kind: Replay, Trace: Trace{File: "f", Format: RecordFormat}}},
		},
	}, 0)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := Build(Spec{Seed: 3, Stream: 2, Phases: []Phase{{Name: "q", Duration: 10 * sec, Process: Process{Kind: Constant, Rate: 3}}}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	alike, err := Build(Spec{Seed: 3, WarmUp: sec, Open: text(alikeTrace), Phases: []Phase{
		{Name: "m", Process: Process{Kind: Replay, Trace: Trace{File: "f", Format: MooncakeFormat, Copies: 2}}},
		{Name: "again", Process: Process{Kind: Replay, Trace: Trace{File: "f", Format: MooncakeFormat}}},
	}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	return Saved{Profile: "x", Seed: 3, Workloads: []Planned{{"one", full}, {"two", plain}, {"alike", alike}}}
}

func saved(t testing.TB, s Saved) string {
	t.Helper()
	var buf bytes.Buffer
	if err := Save(&buf, s); err != nil {
		t.Fatal(err)
	}
	return buf.String()
}

func TestPlanFileRoundTrip(t *testing.T) {
	want := savedPlans(t)
	file := saved(t, want)
	got, err := Load(strings.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("loaded\n%+v\nwant\n%+v", got, want)
	}
	line, _, _ := strings.Cut(file, "\n")
	for _, has := range []string{
		`{"format":"aloft.plan","version":2,"profile":"x","seed":3,"workloads":[{"name":"one","hash":"` + want.Workloads[0].Plan.Hash() + `","arrivals":`,
		`{"name":"quiet","from_ns":10000000000,"to_ns":11000000000,"arrivals":0}`, `"notes":["trace f (record): 5 arrivals`,
	} {
		if !strings.Contains(line, has) {
			t.Errorf("the first line is %s\nwant %s in it", line, has)
		}
	}
	// 5 million arrivals must not fill a disk: two bytes and a half each.
	big, err := Build(Spec{Seed: 1, Phases: []Phase{{Name: "p", Duration: 100 * sec, Process: Process{Kind: Poisson, Rate: 2000}}}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(saved(t, Saved{Workloads: []Planned{{"w", big}}})); n > 4*len(big.Offsets) {
		t.Errorf("%d arrivals take %d bytes", len(big.Offsets), n)
	}
}

func TestHashCoversAll(t *testing.T) {
	hash := func(spoil func(*Plan)) string {
		p := savedPlans(t).Workloads[0].Plan
		spoil(&p)
		return p.Hash()
	}
	same := hash(func(*Plan) {})
	for name, spoil := range map[string]func(*Plan){
		"an offset":  func(p *Plan) { p.Offsets[7]++ },
		"input":      func(p *Plan) { p.Shapes[7].Input++ },
		"output":     func(p *Plan) { p.Shapes[7].Output++ },
		"shared":     func(p *Plan) { p.Shapes[7].Shared++ },
		"tenant":     func(p *Plan) { p.Shapes[7].Tenant ^= 1 },
		"no shapes":  func(p *Plan) { p.Shapes = nil },
		"warm":       func(p *Plan) { p.Warm = nil },
		"a name":     func(p *Plan) { p.Spans[1].Name = "Quiet" },
		"a boundary": func(p *Plan) { p.Spans[1].To++ },
	} {
		if hash(spoil) == same {
			t.Errorf("%s does not show in the hash", name)
		}
	}
	if hash(func(p *Plan) { p.Notes = nil }) != same {
		t.Error("notes are no part of what is sent, and change the hash")
	}
}

func TestLoadRefuses(t *testing.T) {
	good := saved(t, savedPlans(t))
	line, rest, _ := strings.Cut(good, "\n")
	zipped := func(b ...byte) string {
		var buf bytes.Buffer
		z := gzip.NewWriter(&buf)
		z.Write(b)
		z.Close()
		return buf.String()
	}
	head := func(arrivals, n int, shapes bool) string {
		return fmt.Sprintf(`{"format":"aloft.plan","version":2,"workloads":[{"name":"w","arrivals":%d,"shapes":%v,"phases":[{"name":"p","from_ns":0,"to_ns":100,"arrivals":%d}]}]}`+"\n", arrivals, shapes, n)
	}
	swap := func(old, new string) string {
		if !strings.Contains(line, old) {
			t.Fatalf("%s is not in the first line", old)
		}
		return strings.Replace(line, old, new, 1) + "\n" + rest
	}
	big := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}
	for name, c := range map[string]struct{ in, want string }{
		"empty":            {"", "first line: unexpected EOF"},
		"not a plan":       {"name: x\n", "first line: invalid character"},
		"another format":   {"{}\n", `it is "" version 0`},
		"a later version":  {swap(`"version":2`, `"version":3`), "version 3, want"},
		"no line's end":    {line, "unexpected EOF"},
		"endless line":     {strings.Repeat("x", maxHeader+2), "longer than"},
		"no numbers":       {line + "\n", "after the first line"},
		"cut":              {good[:len(good)-20], "unexpected EOF"},
		"more":             {good + "x", "there is more in it"},
		"another phase":    {swap(`"name":"quiet"`, `"name":"Quiet"`), "it was changed or damaged"},
		"another hash":     {swap(`"hash":"`, `"hash":"0`), "it was changed or damaged"},
		"too many":         {head(MaxPlan+1, 1, false) + zipped(), "at most 5000000"},
		"negative":         {head(-1, 0, false) + zipped(), "has -1 arrivals"},
		"lies":             {head(MaxPlan, MaxPlan, false) + zipped(1, 2), "arrival 2: unexpected EOF"},
		"phase is larger":  {head(1, 2, false) + zipped(1), `phase "p" has 2 arrivals of 1`},
		"phase is smaller": {head(2, 1, false) + zipped(1, 2), "1 of 2 arrivals belong to no phase"},
		"after its phase":  {head(1, 1, false) + zipped(120), "outside of 0s to 100ns"},
		"far off":          {head(1, 1, false) + zipped(big...), "arrival 0 is too late"},
		"large":            {head(1, 1, true) + zipped(append([]byte{1}, big...)...), "shape 0 has a size"},
		"no shape":         {head(1, 1, true) + zipped(1, 1, 1), "shape 0: unexpected EOF"},
		"no workloads":     {`{"format":"aloft.plan","version":2}` + "\n" + zipped(), "0 workloads"},
		"no phases":        {`{"format":"aloft.plan","version":2,"workloads":[{"name":"w"}]}` + "\n" + zipped(), "no phases"},
	} {
		if _, err := Load(strings.NewReader(c.in)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, c.want)
		}
	}
	for name, p := range map[string]Plan{
		"no phases": {}, "unsorted": {Offsets: []time.Duration{2, 1}, Spans: []Span{{"p", 0, 3, 0, 2}}}, "shapes": {Shapes: []Shape{{}}, Spans: []Span{{"p", 0, 3, 0, 0}}},
		"gap": {Spans: []Span{{"p", 0, 3, 0, 0}, {"q", 4, 5, 0, 0}}}, "warm": {Warm: &Plan{}, Spans: []Span{{"p", 0, 8, 0, 0}}}, "late begin": {Spans: []Span{{"p", 1, 8, 0, 0}}},
		"warm twice": {Warm: &Plan{Warm: &Plan{Spans: []Span{{"p", 0, 8, 0, 0}}}, Spans: []Span{{"p", 0, 8, 0, 0}}}, Spans: []Span{{"p", 0, 8, 0, 0}}},
	} {
		if err := Save(&bytes.Buffer{}, Saved{Workloads: []Planned{{"w", p}}}); err == nil {
			t.Errorf("%s: a broken plan was saved", name)
		}
	}
}

// What loads holds together, and is saved and loaded the same.
func FuzzLoad(f *testing.F) {
	f.Add([]byte(saved(f, savedPlans(f))))
	f.Add([]byte(`{"format":"aloft.plan","version":2,"workloads":[{"name":"w","arrivals":1,"phases":[{"name":"p","to_ns":9,"arrivals":1}]}]}` + "\n\x1f\x8b"))
	f.Fuzz(func(t *testing.T, in []byte) {
		got, err := Load(bytes.NewReader(in))
		if err != nil {
			return
		}
		again, err := Load(strings.NewReader(saved(t, got)))
		if err != nil || !reflect.DeepEqual(got, again) {
			t.Fatalf("loaded %+v, then %+v (%v)", got, again, err)
		}
	})
}
