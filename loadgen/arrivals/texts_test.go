package arrivals

import (
	"slices"
	"strings"
	"testing"
)

const alikeTrace = `{"timestamp": 0, "input_length": 1500, "output_length": 1, "hash_ids": [1, 2, 3]}
{"timestamp": 100, "input_length": 900, "output_length": 1, "hash_ids": [1, 4]}
{"timestamp": 200, "input_length": 1700, "output_length": 1, "hash_ids": [1, 2, 5, 6]}
{"timestamp": 300, "input_length": 1024, "output_length": 1, "hash_ids": [1, 2]}
{"timestamp": 900, "input_length": 9, "output_length": 1, "hash_ids": []}
`

// What prompts begin with is found from their blocks, by hand here.
func TestPrompts(t *testing.T) {
	p := prompts{blocks: map[uint64]block{}}
	for i, c := range []struct {
		ids    []uint64
		shared int
		text   uint32
	}{
		{[]uint64{1, 2, 3}, 0, 1},
		{[]uint64{1, 4}, 1, 2},
		{[]uint64{1, 2, 5, 6}, 2, 3},
		{[]uint64{1, 2, 5, 7}, 3, 4},
		{[]uint64{1, 2, 5, 7}, 4, 4}, // all of it
		{[]uint64{1, 2}, 2, 1},
		{nil, 0, 0},
		{[]uint64{2, 3}, 0, 5},    // 2 stands at another place there
		{[]uint64{1, 4, 5}, 2, 6}, // 5 follows 2 and not 4
		{[]uint64{9, 9}, 0, 7},
		{[]uint64{9, 9}, 1, 8},
	} {
		if shared, text := p.take(c.ids); shared != c.shared || text != c.text {
			t.Errorf("prompt %d %v: %d shared, text %d; want %d, %d", i, c.ids, shared, text, c.shared, c.text)
		}
	}
	want := []Text{{}, {1, 512}, {1, 1024}, {3, 1536}, {}, {2, 1024}, {}, {7, 512}}
	if !slices.Equal(p.texts, want) {
		t.Errorf("texts %v, want %v", p.texts, want)
	}
}

// Each phase, the warm-up and each copy of a trace has texts of its own.
func TestTextsOfAPlan(t *testing.T) {
	plan := savedPlans(t).Workloads[2].Plan
	if err := plan.checkTexts(); err != nil {
		t.Fatal(err)
	}
	if len(plan.Texts) != 9 {
		t.Fatalf("%d texts, want 3 of the warm-up and of each phase", len(plan.Texts))
	}
	for name, c := range map[string]struct {
		shapes []Shape
		from   uint32
	}{"warm-up": {plan.Warm.Shapes, 0}, "m": {plan.Shapes[:10], 3}, "again": {plan.Shapes[10:], 6}} {
		seen := map[uint32]bool{}
		for _, s := range c.shapes {
			if s.Text != 0 && (s.Text <= c.from || s.Text > c.from+3) {
				t.Errorf("%s: text %d", name, s.Text)
			}
			seen[s.Text] = true
		}
		if len(seen) != 4 {
			t.Errorf("%s: %d texts and none, want 3 and none", name, len(seen)-1)
		}
	}
	if notes := strings.Join(plan.Notes, "\n"); !strings.Contains(notes, "begin alike again, 10 blocks of 512") || !strings.Contains(notes, "again, 5 blocks") {
		t.Errorf("notes are %q", notes)
	}
}

func TestTextsAreChecked(t *testing.T) {
	for name, c := range map[string]struct {
		texts []Text
		shape Shape
	}{
		"a later parent":     {[]Text{{2, 512}, {}}, Shape{}},
		"itself":             {[]Text{{1, 512}}, Shape{}},
		"half a block":       {[]Text{{}, {1, 100}}, Shape{}},
		"no parent":          {[]Text{{0, 512}}, Shape{}},
		"nothing of it":      {[]Text{{}, {1, 0}}, Shape{}},
		"no further than it": {[]Text{{}, {1, 512}, {2, 512}}, Shape{}},
		"no such text":       {[]Text{{}}, Shape{Text: 2}},
		"no such copy":       {[]Text{{}}, Shape{Text: 1, Copy: maxCopies}},
	} {
		for _, warm := range []bool{false, true} {
			p := Plan{Texts: c.texts, Shapes: []Shape{c.shape}}
			if warm {
				p = Plan{Texts: c.texts, Warm: &Plan{Shapes: []Shape{c.shape}}}
			}
			if p.checkTexts() == nil {
				t.Errorf("%s, warm-up %v: no error", name, warm)
			}
		}
	}
	one := Plan{Texts: []Text{{}}, Shapes: []Shape{{Text: 1}}}
	hashes := []string{one.Hash()}
	one.Shapes[0].Copy = 1
	hashes = append(hashes, one.Hash())
	one.Texts = append(one.Texts, Text{1, 512})
	hashes = append(hashes, one.Hash())
	if slices.Sort(hashes); len(slices.Compact(hashes)) != 3 {
		t.Error("texts and copies do not show in the hash")
	}
}
