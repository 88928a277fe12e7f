package arbiter

import (
	"strings"
	"testing"
	"time"
)

// TestLoopExpires: a loop that is blind or stuck renews no lease, so its loans go
// back to serving; once it looks again all is as after a restart.
func TestLoopExpires(t *testing.T) {
	for _, stuck := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			w := newWorld(t, 3, chat("m", 0.5, 1, 2))
			w.ready("m", "s0", "s1")
			w.submit(trainer("a"))
			w.submit(trainer("b"))
			r := begin(w, nil)
			defer r.end()
			pass(20 * time.Second)
			if n := r.View().Stats.Loans; n != 2 {
				t.Fatalf("%d loans, want 2", n)
			}
			gate := make(chan struct{})
			w.set(func() {
				if stuck {
					w.gate = gate
				} else {
					w.blind = true
				}
			})
			pass(59 * time.Second)
			if len(w.has("a"))+len(w.has("b")) != 2 {
				t.Error("a lease of a minute ended after 59 s")
			}
			pass(10 * time.Second)
			if len(w.has("a"))+len(w.has("b")) != 0 || w.phase("m", Ready) != 2 {
				t.Errorf("after 69 s the jobs have %v %v, and %d replicas are ready", w.has("a"), w.has("b"), w.phase("m", Ready))
			}
			w.set(func() { w.blind, w.gate = false, nil })
			close(gate)
			pass(time.Second)
			if s := r.View().Stats; s.Expired != 2 || s.Violations != 0 || s.Breaches != 0 {
				t.Errorf("%+v, want two expired", s)
			}
			pass(30 * time.Second)
			if len(w.has("a"))+len(w.has("b")) != 2 {
				t.Errorf("then the jobs have %v %v, want them lent to again", w.has("a"), w.has("b"))
			}
			for _, rec := range r.Why(Query{About: "a"}) {
				if rec.Outcome == "expired" && !strings.Contains(rec.String(), "to a ended: nobody renewed it for ") {
					t.Error(rec)
				}
			}
		})
	}
}

// TestLoopExpiresWhileLending: a job that starts while the loans end is stopped.
func TestLoopExpiresWhileLending(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, 1, chat("m", 0, 0, 1))
		w.submit(trainer("a"))
		w.took["start job"] = 2 * time.Minute
		r := begin(w, nil)
		defer r.end()
		pass(5 * time.Second)
		w.set(func() { w.blind = true })
		pass(3 * time.Minute)
		equal(t, "the job has", w.has("a"), nil)
		equal(t, "failed", r.did("failed"), []string{"lend s0 a free_slice"})
	})
}
