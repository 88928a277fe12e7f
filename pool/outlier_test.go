package pool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"aloft/backends"
	"aloft/gpu"
)

// calls makes outcomes of n calls of which the last f failed.
func calls(n, f int) (o outcomes) {
	for i := range n {
		o.add(i >= n-f)
	}
	return o
}

func TestOutcomes(t *testing.T) {
	for _, tc := range []struct {
		o          outcomes
		failed, of int
		bad        bool
	}{
		{o: calls(4, 4), failed: 4, of: 4}, // too few
		{o: calls(5, 2), failed: 2, of: 5},
		{o: calls(6, 3), failed: 3, of: 6, bad: true},
		{o: calls(20, 9), failed: 9, of: 20},
		{o: calls(20, 10), failed: 10, of: 20, bad: true},
		{o: calls(500, 15), failed: 15, of: 20, bad: true},
	} {
		if tc.o.failures() != tc.failed || tc.o.calls != tc.of || tc.o.bad() != tc.bad {
			t.Errorf("%+v: %d of %d, bad %v; want %+v", tc.o, tc.o.failures(), tc.o.calls, tc.o.bad(), tc)
		}
	}
	o := calls(20, 20)
	for range 20 {
		o.add(false)
	}
	if o.failures() != 0 {
		t.Errorf("%d failures are remembered after 20 good calls", o.failures())
	}
}

func TestOutlier(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	good, fair, bad, new := peer{last: calls(20, 0)}, peer{last: calls(20, 4)}, peer{last: calls(20, 12)}, peer{}
	out := peer{until: now.Add(time.Second)}
	back := peer{last: calls(20, 12), until: now}
	broken := peer{last: calls(20, 20), broken: true}
	for name, tc := range map[string]struct {
		peers []peer
		want  int
	}{
		"none":                        {nil, -1},
		"the only one":                {[]peer{bad}, -1},
		"one of two":                  {[]peer{good, bad}, 1},
		"both":                        {[]peer{bad, bad}, -1},
		"sibling fails too":           {[]peer{fair, bad}, -1},
		"sibling has no calls":        {[]peer{new, bad}, -1},
		"all good":                    {[]peer{good, good, good}, -1},
		"siblings on the whole good":  {[]peer{good, fair, bad}, 2},
		"two of five, one after":      {[]peer{bad, bad, good, good, good}, 0}, // 12 of 80 calls of its siblings failed
		"one of three is out":         {[]peer{out, good, bad}, -1},
		"one of four is out":          {[]peer{out, good, bad, good}, 2},
		"two of four are out":         {[]peer{out, out, bad, good}, -1},
		"a broken one is out as well": {[]peer{broken, good, bad}, -1},
		"a broken one needs no pause": {[]peer{broken, good, good}, -1},
		"back, and bad again":         {[]peer{good, back}, 1},
	} {
		if got := outlier(now, tc.peers); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
}

func TestResting(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	in, soon, later, broken := peer{}, peer{until: now.Add(time.Second)}, peer{until: now.Add(time.Minute)}, peer{broken: true}
	for name, tc := range map[string]struct {
		peers []peer
		want  []bool
	}{
		"none":                   {nil, []bool{}},
		"pause over":             {[]peer{{until: now}, in}, []bool{false, false}},
		"one of two":             {[]peer{soon, in}, []bool{true, false}},
		"the last one":           {[]peer{later}, []bool{false}},
		"its siblings went":      {[]peer{soon, later}, []bool{false, true}},
		"three of four":          {[]peer{soon, later, later, in}, []bool{false, true, true, false}},
		"a broken one counts":    {[]peer{broken, soon, in}, []bool{true, false, false}},
		"broken ones come first": {[]peer{broken, broken, soon}, []bool{true, true, false}},
	} {
		if got := resting(now, tc.peers); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
	for n, want := range map[int]time.Duration{1: 10 * time.Second, 3: 30 * time.Second, 30: 5 * time.Minute, 99: 5 * time.Minute} {
		if got := pause(n); got != want {
			t.Errorf("pause %d is %v, want %v", n, got, want)
		}
	}
}

// moody is a scripted engine that answers or fails at once, as told.
type moody struct {
	*scripted
	bad *atomic.Bool
}

func (m moody) Backend() backends.Backend { return m }

func (m moody) Do(context.Context, *backends.Call) (*backends.Reply, error) {
	r := &backends.Reply{Status: 200, Body: io.NopCloser(strings.NewReader("ok"))}
	if m.bad.Load() {
		r.Status = 500
	}
	return r, nil
}

type moodyLauncher struct {
	script
	bad map[string]*atomic.Bool
}

func (l *moodyLauncher) Launch(ctx context.Context, n Launch) (Engine, error) {
	e, err := l.script.Launch(ctx, n)
	if err != nil {
		return nil, err
	}
	return moody{e.(*scripted), l.bad[n.Replica]}, nil
}

// A replica whose calls fail while its siblings' do not is taken out, for longer
// the second time; when its siblings leave it is back.
func TestOutlierIsTakenOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &moodyLauncher{bad: map[string]*atomic.Bool{"m-1": {}, "m-2": {}, "m-3": {}}}
		w := build(t, l)
		for i := range 3 {
			if _, err := w.Start("m", gpu.Slice{ID: fmt.Sprint("g0/s", i)}, ""); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		all := slices.Clone(w.ready["m"])
		use := func(n int) {
			for range n {
				for _, r := range all {
					reply, err := r.Backend.Do(t.Context(), &backends.Call{})
					if err != nil {
						t.Fatal(err)
					}
					reply.Body.Close()
				}
			}
			synctest.Wait()
		}
		ids := func() (out []string) {
			w.mu.Lock()
			defer w.mu.Unlock()
			for _, r := range w.ready["m"] {
				out = append(out, r.ID)
			}
			return out
		}
		is := func(when string, want ...string) {
			t.Helper()
			if got := ids(); !slices.Equal(got, want) {
				t.Fatalf("%s: %v are published, want %v", when, got, want)
			}
		}
		use(10)
		is("all answer", "m-1", "m-2", "m-3")
		l.bad["m-2"].Store(true)
		use(9)
		is("9 of 19 failed", "m-1", "m-2", "m-3")
		use(1)
		is("10 of 20 failed", "m-1", "m-3")
		time.Sleep(9 * time.Second)
		is("in its pause", "m-1", "m-3")
		time.Sleep(2 * time.Second)
		is("after its pause", "m-1", "m-2", "m-3")
		use(5)
		is("again", "m-1", "m-3")
		time.Sleep(19 * time.Second)
		is("the second pause is longer", "m-1", "m-3")
		must(t, w.Stop("m-1"))
		must(t, w.Stop("m-3"))
		synctest.Wait()
		is("it is the last", "m-2")
		if _, err := all[0].Backend.Do(t.Context(), &backends.Call{}); !errors.Is(err, backends.ErrUnavailable) {
			t.Error(err)
		}
		must(t, w.Close(t.Context()))
	})
}
