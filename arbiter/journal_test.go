package arbiter

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	"aloft/gpu"
)

// lines is what a journal of records looks like, and where each line begins.
func lines(t *testing.T, records []Record) []byte {
	t.Helper()
	var out []byte
	for _, r := range records {
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		out = append(append(out, b...), '\n')
	}
	return out
}

func TestParseJournal(t *testing.T) {
	records := []Record{
		{Time: noon, Gen: 1, Move: Move{Action: Lend, Slice: "s0", Job: "a", Bound: time.Minute}},
		{Time: noon.Add(time.Second), Gen: 1, Outcome: "done", Move: Move{Action: Lend, Slice: "s0", Job: "a", Bound: time.Minute}},
		{Time: noon.Add(2 * time.Second), Gen: 2, Move: Move{Action: Start, Slice: "s1", Model: "m"}},
	}
	all := lines(t, records)
	ends := []int{}
	for i, b := range all {
		if b == '\n' {
			ends = append(ends, i)
		}
	}
	for cut := range len(all) + 1 { // a kill at any byte; a line without its end is a line
		want := 0
		for _, e := range ends {
			if cut >= e {
				want++
			}
		}
		if got := ParseJournal(all[:cut]); len(got) != want || want > 0 && got[want-1].Gen != records[want-1].Gen {
			t.Errorf("cut at %d of %d: %v, want the first %d", cut, len(all), got, want)
		}
		if got := ParseJournal(all[cut:]); len(got) > 3 || len(got) < 2 && cut <= ends[0] {
			t.Errorf("from %d on: %v", cut, got)
		}
	}
	if got := ParseJournal([]byte("null\n{}\n[]\n\x00\n" + string(all))); len(got) != 3 {
		t.Errorf("beside rubbish: %v", got)
	}
	many := lines(t, slices.Repeat(records[:1], historySize+5))
	if got := ParseJournal(many); len(got) != historySize {
		t.Errorf("%d records, want at most %d", len(got), historySize)
	}
}

// TestRestore: promises, the cap, what reclaims take, and when a model was last
// reclaimed for outlive a restart; what is really held decides who holds it.
func TestRestore(t *testing.T) {
	at := func(s int) time.Time { return noon.Add(time.Duration(s) * time.Second) }
	lend := func(slice, job string) Move {
		return Move{Action: Lend, Slice: slice, Job: job, Bound: 77 * time.Second}
	}
	reclaim := Move{Action: Reclaim, Slice: "s1", Job: "b", Model: "m", Bound: 77 * time.Second}
	gang := lend("s2", "g")
	gang.Gang = []string{"s3"}
	past := []Record{
		{Time: at(0), Gen: 3, Move: lend("s0", "a")},
		{Time: at(1), Gen: 3, Move: lend("s0", "a"), Outcome: "done"},
		{Time: at(2), Gen: 5, Move: lend("s1", "b")},
		{Time: at(3), Gen: 6, Move: gang},
		{Time: at(10), Gen: 9, Move: reclaim},
		{Time: at(13), Gen: 9, Move: reclaim, Outcome: "done", Took: 3 * time.Second, Fast: true},
		{Time: at(14), Gen: 10, Move: Move{Action: Reshape, GPU: 1}},
		{Time: at(16), Gen: 10, Move: Move{Action: Reshape, GPU: 1}, Outcome: "done"},
		{Time: at(17), Gen: 12, Move: reclaim, Outcome: "bound_broken", Took: 100 * time.Second, Cap: 2},
	}
	c := testCore(t, nil)
	c.Restore(ParseJournal(lines(t, past)))
	o := Observation{Now: at(30), Models: []Model{chat("m", 0, 0, 1)}, Jobs: []Job{
		{ID: "a", Kind: "train", Slices: []string{"s0"}, MaxWidth: 1, Running: true},
		{ID: "b", Kind: "train", Slices: []string{"s1"}, MaxWidth: 1, Running: true, Grace: time.Second}, // came back, or never left
		{ID: "g", Kind: "train", Slices: []string{"s2", "s3"}, MaxWidth: 2, MinWidth: 2, Running: true},
	}}
	for i, id := range []string{"s0", "s1", "s2", "s3", "s4"} {
		o.Devices = append(o.Devices, gpu.Device{Index: i, Health: gpu.Health{OK: true}, Slices: []gpu.Slice{{ID: id, GPU: i, Shape: g1}}})
	}
	c.Look(o)
	want := []Lease{{Job: "a", Bound: 77 * time.Second, Since: at(0)}, {Job: "b", Bound: 37 * time.Second, Since: at(30)},
		{Job: "g", Bound: 77 * time.Second, Since: at(3)}, {Job: "g", Bound: 77 * time.Second, Since: at(3)}, {}}
	i := 0
	for id, l := range c.Leases() {
		w := want[i]
		if l.Job != w.Job || l.Bound != w.Bound || !l.Since.Equal(w.Since) || l.Moving || l.Job != "" && l.Gen <= 12 {
			t.Errorf("%s: %+v, want %+v", id, l, w)
		}
		i++
	}
	if s := c.Snapshot(); s.Cap != 2 || !s.GPUs[1].Reshaped.Equal(at(16)) || !s.Models[0].Reclaimed.Equal(at(10)) {
		t.Errorf("cap %d, reshaped %v, reclaimed %v", s.Cap, s.GPUs[1].Reshaped, s.Models[0].Reclaimed)
	}
	if s := c.Stats(); len(s.Fast) != 1 || s.Fast[0] != 3*time.Second || len(s.Slow) != 1 || s.Reclaims != 0 || s.Violations != 0 {
		t.Errorf("%+v", s)
	}
	if n := len(c.Why(Query{About: "a"})); n != 2 {
		t.Errorf("%d records of a, want 2", n)
	}
	c.Settle(at(31), Outcome{Gen: 9, Err: errors.New("of the earlier process")})
	if c.Stats().Breaches != 0 {
		t.Error("an outcome of before the restart was taken")
	}
	o.Now = at(17 + 3*60)
	c.Look(o)
	if s := c.Snapshot(); s.Cap != 5 { // 2, and one a minute for three minutes
		t.Errorf("cap %d after three minutes, want 5", s.Cap)
	}
}
