package trainer

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

// freePort is an address of this machine at which nobody listens now.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// together runs a gang, each member with its own state, and returns how they ended.
func together(ctx context.Context, t *testing.T, world int, o Options) []error {
	t.Helper()
	o.Gang = Gang{World: world, Rendezvous: freePort(t), Job: "job_1"}
	ends := make(chan error)
	all := make([]error, world)
	for rank := range world {
		go func() {
			o := o
			o.Gang.Rank = rank
			all[rank] = Run(ctx, o)
			ends <- all[rank]
		}()
	}
	for range world {
		<-ends
	}
	return all
}

// TestGangsLeaveNoTrace interrupts gangs, of another width each time, at random
// steps, and wants the weights of one process that was never interrupted.
func TestGangsLeaveNoTrace(t *testing.T) {
	const steps = 200
	var alone watcher
	if err := Run(t.Context(), Options{Steps: steps, Seed: 7, Progress: &alone}); err != nil {
		t.Fatal(err)
	}
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 2))
	dir, resume := t.TempDir(), ""
	for runs := 1; ; runs++ {
		ctx, cancel := context.WithCancel(t.Context())
		w := &watcher{stopAt: r.IntN(steps), stop: cancel}
		world := 2 + r.IntN(3)
		ends := together(ctx, t, world, Options{CheckpointDir: dir, Resume: resume, Steps: steps, Seed: 7, StepsPerCheckpoint: 1 + r.IntN(20), Progress: w})
		cancel()
		if ends[0] == nil {
			for rank, err := range ends {
				if err != nil {
					t.Errorf("rank %d of %d ended with %v", rank, world, err)
				}
			}
			if w.last.Result != alone.last.Result || len(w.last.Result) != 64 {
				t.Fatalf("after %d runs the weights are %q, alone %q (seed %d)", runs, w.last.Result, alone.last.Result, seed)
			}
			break
		}
		for rank, err := range ends {
			if !errors.Is(err, ErrPreempted) {
				t.Fatalf("rank %d of %d ended with %v, want a preemption (seed %d)", rank, world, err, seed)
			}
		}
		if resume = w.last.Checkpoint; runs > 1000 {
			t.Fatal("no progress")
		}
	}
	if files, _ := os.ReadDir(dir); len(files) > keep {
		t.Errorf("%d checkpoints are left, want at most %d", len(files), keep)
	}
}

// A member that dies takes the others with it, each saying whom it lost; so does
// one that begins elsewhere.
func TestGangLosesAMember(t *testing.T) {
	m := newModel(genesis, 1)
	g := Gang{World: 2, Rendezvous: freePort(t), Job: "job_1"}
	end := make(chan error, 1)
	go func(g Gang) { end <- Run(t.Context(), Options{Steps: 1000, Seed: 1, Gang: g}) }(g)
	stranger, err := redialed(g.Rendezvous)
	if err != nil {
		t.Fatal(err)
	}
	stranger.Write([]byte(strings.Repeat("x", 200))) // it is turned away
	g.Rank = 1
	r, err := g.meet(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	r.close()
	if err := <-end; err == nil || !strings.Contains(err.Error(), "rank 1 is lost") {
		t.Errorf("%v, want it to say that rank 1 is lost", err)
	}
	stranger.Close()

	g.Rendezvous, g.Rank = freePort(t), 0
	go func(g Gang) { end <- Run(t.Context(), Options{Steps: 10, Seed: 1, Gang: g}) }(g)
	g.Rank = 1
	m.train()
	if r, err := g.meet(t.Context(), m); err == nil {
		r.close()
	}
	if err := <-end; err == nil || !strings.Contains(err.Error(), "rank 1 begins at step 1") {
		t.Errorf("%v, want it to say where rank 1 begins", err)
	}
}

func redialed(addr string) (net.Conn, error) {
	for end := time.Now().Add(time.Minute); ; time.Sleep(redial) {
		c, err := net.Dial("tcp", addr)
		if err == nil || time.Now().After(end) {
			return c, err
		}
	}
}

// A gang that never gathers gives way when it is told to.
func TestGangThatNeverMeets(t *testing.T) {
	for rank, want := range []string{"step-000000000.ckpt", ""} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		dir := t.TempDir()
		err := Run(ctx, Options{Steps: 5, Seed: 1, CheckpointDir: dir, Gang: Gang{Rank: rank, World: 2, Rendezvous: freePort(t)}})
		cancel()
		if !errors.Is(err, ErrPreempted) {
			t.Errorf("rank %d: %v", rank, err)
		}
		files, _ := os.ReadDir(dir)
		if got := len(files) > 0; got != (want != "") || got && files[0].Name() != want {
			t.Errorf("rank %d left %v, want %q", rank, files, want)
		}
	}
}

// With a time between checkpoints it saves about so often.
func TestCheckpointEvery(t *testing.T) {
	var saves countSaves
	err := Run(t.Context(), Options{Steps: 20, Seed: 1, CheckpointDir: t.TempDir(), CheckpointEvery: time.Nanosecond, Progress: &saves})
	if err != nil || saves != 20 {
		t.Errorf("%d checkpoints in 20 steps, %v; want one a step", saves, err)
	}
	saves = 0
	if err := Run(t.Context(), Options{Steps: 20, Seed: 1, CheckpointDir: t.TempDir(), CheckpointEvery: time.Hour, Progress: &saves}); err != nil || saves != 0 {
		t.Errorf("%d checkpoints within the hour, %v; want none", saves, err)
	}
}

type countSaves int

func (c *countSaves) Write(b []byte) (int, error) {
	if strings.Contains(string(b), `"checkpoint":`) && strings.Contains(string(b), `"checkpoint_seconds":`) {
		*c++
	}
	return len(b), nil
}

func TestBadGangs(t *testing.T) {
	for _, g := range []Gang{{World: 2}, {World: 5, Rendezvous: "127.0.0.1:1"}, {World: 2, Rank: 2, Rendezvous: "127.0.0.1:1"}, {World: 2, Rank: -1, Rendezvous: "127.0.0.1:1"}} {
		if err := (Options{Steps: 1, Gang: g}).Validate(); err == nil {
			t.Errorf("%+v was accepted", g)
		}
	}
}
