package packing

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"aloft/gpu"
)

func a100(t testing.TB) gpu.Family {
	t.Helper()
	f, ok := gpu.Lookup(migFamily)
	if !ok {
		t.Fatal("no table of " + migFamily)
	}
	return f
}

// TestMIGMix: the mapping's shares, of all GPU pods with those on several: 75.3 %
// need 7g, 13.7 % 4g, 5.5 % 3g, 4.0 % 2g, 0.5 % 1g, 1.1 % several GPUs.
func TestMIGMix(t *testing.T) {
	tr, f := trace(t), a100(t)
	n := count(f, tr.requests(f, true))
	for name, want := range map[string]float64{"7g.80gb": 75.3, "4g.40gb": 13.7, "3g.40gb": 5.5, "2g.20gb": 4.0, "1g.10gb": 0.5} {
		i := slices.IndexFunc(f.Profiles, func(p gpu.Profile) bool { return p.Name == name })
		if got := 100 * float64(n[i]) / 7064; math.Abs(got-want) > 0.06 {
			t.Errorf("%s: %.2f %%, want %.1f", name, got, want)
		}
	}
	for _, r := range tr.requests(f, false) {
		if r.life <= 0 || r.life > migLongest {
			t.Fatalf("%+v", r)
		}
	}
}

// TestMIGMarks: the marks, on requests for parts of a GPU, at the load of FGD's
// experiment.
func TestMIGMarks(t *testing.T) {
	if testing.Short() {
		t.Skip("with -short: 80 runs take too long; the plain pass of make test does them")
	}
	m, err := trace(t).MIG(t.Context(), false, overload, DefaultSeeds[:4])
	if err != nil {
		t.Fatal(err)
	}
	if m.OverBestFit.Low < 2 || m.OverStatic.Low < 5 {
		var text strings.Builder
		m.Table(&text)
		t.Errorf("want 2 points over best fit and 5 over static layouts:\n%s", text.String())
	}
}

// TestMIGFleet: whatever comes and goes, no two instances overlap and none in use
// is unmade.
func TestMIGFleet(t *testing.T) {
	f := a100(t)
	var mix []request
	for i, p := range f.Profiles {
		if p.Name != "1g.10gb+me" {
			mix = append(mix, request{i, p.Compute, time.Duration(1+i) * time.Minute})
		}
	}
	for _, r := range migRules(f, 5, mix) {
		fl, err := newFleet(r, f, 5, mix)
		if err != nil {
			t.Fatal(err)
		}
		type held struct{ g, start int }
		var out []held
		for i := range 3000 {
			if i%3 == 2 && len(out) > 0 {
				n := i * 7919 % len(out)
				fl.leave(out[n].g, out[n].start)
				out = slices.Delete(out, n, n+1)
			} else if g, start, _, ok := fl.give(mix[i*104729%len(mix)].profile); ok {
				out = append(out, held{g, start})
			}
			used := 0
			for g := range fl.gpus {
				var set []gpu.Placement
				for _, in := range fl.gpus[g].on {
					set = append(set, in.Placement)
					if in.used {
						used++
					}
				}
				if err := f.Legal(set); err != nil {
					t.Fatalf("%s, step %d: %v", r.name, i, err)
				}
			}
			if used != len(out) {
				t.Fatalf("%s, step %d: %d in use, %d given", r.name, i, used, len(out))
			}
		}
		if (fl.unmade > 0) != r.reshape {
			t.Errorf("%s: %d instances unmade", r.name, fl.unmade)
		}
	}
}

func TestMIGPlaces(t *testing.T) {
	f := a100(t)
	three := slices.IndexFunc(f.Profiles, func(p gpu.Profile) bool { return p.Name == "3g.40gb" })
	four := slices.IndexFunc(f.Profiles, func(p gpu.Profile) bool { return p.Name == "4g.40gb" })
	mix := []request{{three, 3, time.Hour}, {four, 4, time.Hour}}
	for _, c := range []struct {
		rule  rule
		start int
	}{
		{rule{score: firstFit}, 0}, {rule{score: bestFitMIG}, 0},
		{rule{score: fgdMIG}, 4}, // the 4g has one place alone
	} {
		fl, err := newFleet(c.rule, f, 2, mix)
		if err != nil {
			t.Fatal(err)
		}
		if g, start, took, ok := fl.give(three); g != 0 || start != c.start || took != migCreate || !ok {
			t.Errorf("3g on gpu %d at %d in %v, %v; want gpu 0 at %d", g, start, took, ok, c.start)
		}
	}
	// Reshape: a 7g that is free goes for a 3g, in a destroy and a create; without, it is taken whole.
	seven := slices.IndexFunc(f.Profiles, func(p gpu.Profile) bool { return p.Name == "7g.80gb" })
	for _, c := range []struct {
		reshape bool
		took    time.Duration
	}{{true, migDestroy + migCreate}, {false, 0}} {
		fl, err := newFleet(rule{score: fgdMIG, reshape: c.reshape}, f, 1, mix)
		if err != nil {
			t.Fatal(err)
		}
		g, start, _, _ := fl.give(seven)
		fl.leave(g, start)
		if _, _, took, ok := fl.give(three); took != c.took || !ok {
			t.Errorf("reshape %v: took %v, %v; want %v", c.reshape, took, ok, c.took)
		}
	}
}

func TestFitted(t *testing.T) {
	f := a100(t)
	mix := []request{{compute: 7, life: 4 * time.Hour}, {compute: 4, life: 3 * time.Hour}, {compute: 3, life: time.Hour}, {compute: 2, life: 5 * time.Hour}}
	// GPUs: 4 whole, 1 of 4g+3g, 2 of 4g+2g+1g, and (5−2)/3 = 1 of 2g: 8 in all.
	var got []string
	for _, l := range fitted(f, 8, mix) {
		got = append(got, l[0]+"+"+l[len(l)-1])
	}
	want := "7g.80gb+7g.80gb 7g.80gb+7g.80gb 7g.80gb+7g.80gb 7g.80gb+7g.80gb 4g.40gb+3g.40gb 4g.40gb+1g.10gb 4g.40gb+1g.10gb 2g.20gb+1g.10gb"
	if strings.Join(got, " ") != want {
		t.Errorf("%s, want %s", strings.Join(got, " "), want)
	}
}
