package gpu

import (
	"strings"
	"testing"
)

func slicesOf(t *testing.T, family, text string) []Slice {
	t.Helper()
	f, _ := Lookup(family)
	set, err := f.Layout(strings.Fields(text))
	if err != nil {
		t.Fatal(err)
	}
	var all []Slice
	for _, pl := range set {
		shape, err := ShapeOf(family, pl.Profile)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, Slice{ID: describe([]Placement{pl}), UUID: describe([]Placement{pl}), Start: pl.Start, Shape: shape})
	}
	return all
}

func TestChange(t *testing.T) {
	f := family(t, "A100-80GB")
	for _, c := range []struct{ have, layout, gone, fresh string }{
		{"3g.40gb@0 1g.10gb@4", "3g.40gb@0 1g.10gb@4", "", "nothing"},
		{"3g.40gb@0 1g.10gb@4", "1g.10gb@4 2g.20gb@2 1g.10gb@0", "3g.40gb@0", "2g.20gb@2 1g.10gb@0"},
		{"1g.10gb@0", "1g.10gb+me@0", "1g.10gb@0", "1g.10gb+me@0"}, // the same place, another profile
		{"", "1g.10gb@6 1g.20gb@4 2g.20gb@2", "", "2g.20gb@2 1g.20gb@4 1g.10gb@6"},
		{"7g.80gb@0", "", "7g.80gb@0", "nothing"},
	} {
		layout, err := f.Layout(strings.Fields(c.layout))
		if err != nil {
			t.Fatal(err)
		}
		gone, fresh, err := f.Change(slicesOf(t, f.Name, c.have), layout)
		var ids []string
		for _, s := range gone {
			ids = append(ids, s.ID)
		}
		if err != nil || strings.Join(ids, " ") != c.gone || describe(fresh) != c.fresh {
			t.Errorf("%s to %s: %v go and %s come, %v; want %s and %s", c.have, c.layout, ids, describe(fresh), err, c.gone, c.fresh)
		}
	}
	if _, _, err := f.Change(nil, []Placement{{"3g.40gb", 1, 4}}); err == nil {
		t.Error("an illegal layout is let through")
	}
}

func TestName(t *testing.T) {
	before := []Slice{{ID: "g2/s0", UUID: "a"}, {ID: "g2/s1", UUID: "b"}, {ID: "g2/s4", UUID: "c"}}
	after := []Slice{{UUID: "x"}, {UUID: "c"}, {UUID: "y"}, {UUID: "z"}}
	Name(2, before, after)
	// c keeps its own; 0, 1 and 4 were somebody's a moment ago
	for i, want := range []string{"g2/s2", "g2/s4", "g2/s3", "g2/s5"} {
		if after[i].ID != want {
			t.Errorf("%s is called %s, want %s", after[i].UUID, after[i].ID, want)
		}
	}
}
