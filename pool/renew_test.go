package pool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"aloft/gpu"
)

// crowded is a launcher of which some launches fail: those beside another
// engine of the slice, or those of a specification.
type crowded struct {
	*script
	alone  bool // an engine wants its slice for itself
	broken any
}

func (c *crowded) Launch(ctx context.Context, l Launch) (Engine, error) {
	if c.broken != nil && l.Model.Spec == c.broken {
		return nil, errors.New("broken")
	}
	if c.alone {
		c.mu.Lock()
		for _, e := range c.launched {
			select {
			case <-e.done:
			default:
				c.mu.Unlock()
				return nil, errors.New("out of memory")
			}
		}
		c.mu.Unlock()
	}
	return c.script.Launch(ctx, l)
}

func (w *world) ids() string {
	var out []string
	for _, r := range w.Replicas() {
		out = append(out, fmt.Sprintf("%s %s", r.ID, r.State))
	}
	return strings.Join(out, ", ")
}

func TestSetModels(t *testing.T) {
	small, large := gpu.Shape{Profile: "1g.10gb", ComputeSlices: 1, Bytes: 10}, gpu.Shape{Profile: "2g.20gb", ComputeSlices: 2, Bytes: 20}
	for _, tt := range []struct {
		name     string
		launcher crowded
		replicas int
		models   []Model
		least    int // replicas published at any moment
		want     string
	}{
		{"same", crowded{}, 2, []Model{{Name: "m", Slots: 2}}, 2, "m-1 ready, m-2 ready"},
		{"another beside it", crowded{}, 2, []Model{{Name: "m", Slots: 2}, {Name: "n", Slots: 1}}, 2, "m-1 ready, m-2 ready"},
		{"changed", crowded{}, 2, []Model{{Name: "m", Slots: 2, Spec: "new"}}, 2, "m-3 ready, m-4 ready"},
		{"more slots", crowded{}, 1, []Model{{Name: "m", Slots: 3}}, 1, "m-2 ready"},
		{"no room beside it", crowded{alone: true}, 1, []Model{{Name: "m", Slots: 2, Spec: "new"}}, 0, "m-3 ready"},
		{"does not come up", crowded{broken: "new"}, 2, []Model{{Name: "m", Slots: 2, Spec: "new"}}, 1, "m-2 ready, m-4 failed"},
		{"slice too small", crowded{}, 2, []Model{{Name: "m", Slots: 2, Needs: large}}, 0, ""},
		{"slice large enough", crowded{}, 1, []Model{{Name: "m", Slots: 2, Needs: small}}, 1, "m-2 ready"},
		{"gone", crowded{}, 2, []Model{{Name: "n", Slots: 1}}, 0, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tt.launcher.script = &script{load: time.Second}
				w := build(t, &tt.launcher)
				least, counting := 99, false
				publish := w.opt.Publish
				w.opt.Publish = func(model string, r []ReadyReplica) {
					publish(model, r)
					w.mu.Lock()
					defer w.mu.Unlock()
					if counting && model == "m" {
						least = min(least, len(r))
					}
				}
				for i := range tt.replicas {
					_, err := w.Start("m", gpu.Slice{ID: fmt.Sprintf("g0/s%d", i), Shape: small}, "")
					must(t, err)
				}
				time.Sleep(2 * time.Second)
				w.mu.Lock()
				counting = true
				w.mu.Unlock()
				must(t, w.SetModels(tt.models))
				synctest.Wait()
				if got := w.published(); got < min(tt.replicas, 1) && tt.least > 0 {
					t.Errorf("%d replicas serve after SetModels", got)
				}
				must(t, w.Retire("m"))
				time.Sleep(9 * time.Second)
				synctest.Wait()
				if got := w.ids(); got != tt.want {
					t.Errorf("replicas %q, want %q\n%v", got, tt.want, w.events)
				}
				w.mu.Lock()
				if least < tt.least {
					t.Errorf("%d replicas served at the least, want %d", least, tt.least)
				}
				w.mu.Unlock()
				must(t, w.Close(t.Context()))
			})
		})
	}
}

// Whoever gets the replicas is told which of them are to be replaced: as soon as
// the models change, and until the last is.
func TestSetModelsTellsOfOldReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := build(t, &script{load: time.Second})
		publish, said := w.opt.Publish, []string{}
		w.opt.Publish = func(model string, rs []ReadyReplica) {
			publish(model, rs)
			line := ""
			for _, r := range rs {
				line += fmt.Sprintf("%s %v ", r.ID, r.Old)
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			if len(said) == 0 || said[len(said)-1] != line {
				said = append(said, line)
			}
		}
		for i := range 2 {
			_, err := w.Start("m", gpu.Slice{ID: fmt.Sprintf("g0/s%d", i)}, "")
			must(t, err)
		}
		time.Sleep(2 * time.Second)
		w.mu.Lock()
		said = nil
		w.mu.Unlock()
		must(t, w.SetModels([]Model{{Name: "m", Slots: 2, Adapters: []string{"lora"}}}))
		time.Sleep(9 * time.Second)
		synctest.Wait()
		w.mu.Lock()
		want := []string{"m-1 true m-2 true ", "m-1 true m-2 true m-3 false ", "m-2 true m-3 false ", "m-2 true m-3 false m-4 false ", "m-3 false m-4 false "}
		if !slices.Equal(said, want) {
			t.Errorf("published %q, want %q", said, want)
		}
		w.mu.Unlock()
		must(t, w.Close(t.Context()))
	})
}

// What serves nobody is stopped, not renewed; and a replica that is put to
// sleep takes its successor with it.
func TestSetModelsOfSleepers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := build(t, &script{load: time.Second})
		changed := []Model{{Name: "m", Slots: 2, Spec: "new"}}
		asleep, err := w.Start("m", slice, "")
		must(t, err)
		time.Sleep(2 * time.Second)
		must(t, w.Sleep(asleep))
		synctest.Wait()
		lent, err := w.Start("m", slice, "job_1")
		must(t, err)
		other := slice
		other.ID = "g0/s1"
		serving, err := w.Start("m", other, "")
		must(t, err)
		time.Sleep(2 * time.Second)
		must(t, w.SetModels(changed))
		synctest.Wait()
		if got := w.ids(); got != serving+" ready, m-4 loading" {
			t.Fatalf("replicas %q: want the sleeper %s and the lent %s stopped, a successor starting", got, asleep, lent)
		}
		must(t, w.Sleep(serving))
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if got := w.ids(); got != "" {
			t.Errorf("replicas %q, want none: an old one asleep serves nobody", got)
		}
		if !slices.ContainsFunc(w.events, func(e string) bool { return strings.HasPrefix(e, serving+" sleeping") }) {
			t.Errorf("%s never slept: whoever waits for that waits in vain\n%v", serving, w.events)
		}
		must(t, w.Close(t.Context()))
	})
}
