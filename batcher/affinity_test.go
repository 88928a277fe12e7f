package batcher

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"aloft/backends"
)

// chats is a world of 8 engines of 16 sequences that compute one prompt at a
// time, 50 us a token that they have not cached, and give 128 tokens of 10 ms: by
// its slots each takes about 12 requests a second.
type chats struct {
	*world
	cached map[string]map[uint64]bool // by replica
	free   map[string]time.Time       // when its prompts are computed
	first  []time.Duration            // arrival to first token
	whole  []time.Duration            // arrival to the end
	turns  int                        // later turns of a session
	hits   int                        // of those that found all of the turn before
}

const (
	blockTokens = 64
	appBlocks   = 8 // shared by the sessions of an app
	turnBlocks  = 2
)

func newChats(o Options) *chats {
	c := &chats{cached: map[string]map[uint64]bool{}, free: map[string]time.Time{}}
	var rs []Replica
	for i := range 8 {
		id := fmt.Sprint("r", i)
		rs, c.cached[id] = append(rs, Replica{ID: id, Slots: 16, Shape: "s", Index: i}), map[uint64]bool{}
	}
	c.world = newWorld(o, c.serve, rs...)
	c.output = 128
	return c
}

// serve is one call's time.
func (c *chats) serve(b *Batch) time.Duration {
	w, id := b.Segs[0].Work, b.Replica.ID
	known := 0
	for _, block := range w.Place.Prefix {
		if !c.cached[id][block] {
			break
		}
		known++
	}
	if before := len(w.Place.Prefix) - turnBlocks; before > appBlocks {
		c.turns++
		if known >= before {
			c.hits++
		}
	}
	for _, block := range w.Place.Prefix {
		c.cached[id][block] = true
	}
	start := c.now
	if c.free[id].After(start) {
		start = c.free[id]
	}
	first := start.Add(time.Duration(len(w.Place.Prefix)-known) * blockTokens * 50 * time.Microsecond)
	c.free[id] = first
	c.first = append(c.first, first.Sub(w.Arrival))
	end := first.Add(128 * (6*time.Millisecond + time.Duration(b.replica.busy)*250*time.Microsecond))
	c.whole = append(c.whole, end.Sub(w.Arrival))
	return end.Sub(c.now)
}

// talk sends rate requests a second, for a minute, of 300 sessions of ten turns
// that follow one another, of 20 apps of which few are popular.
func (c *chats) talk(seed uint64, rate float64) {
	r := rand.New(rand.NewPCG(seed, 1))
	type session struct{ id, app, turns uint64 }
	sessions := make([]session, 300)
	last := uint64(0)
	for at := t0; at.Before(t0.Add(time.Minute)); at = at.Add(time.Duration(r.ExpFloat64() / rate * float64(time.Second))) {
		s := &sessions[r.IntN(len(sessions))]
		if s.id == 0 || s.turns == 10 {
			last++
			*s = session{id: last, app: uint64(20 * math.Pow(r.Float64(), 3))}
		}
		s.turns++
		var prefix []uint64
		for i := range uint64(appBlocks) {
			prefix = append(prefix, 1<<40|s.app<<8|i)
		}
		for i := range s.turns * turnBlocks {
			prefix = append(prefix, s.id<<8|i)
		}
		c.arrive(alone(at, len(prefix)*blockTokens, backends.Placement{Session: s.id, Prefix: prefix}))
	}
	c.run()
}

func p99(took []time.Duration) time.Duration {
	slices.Sort(took)
	return took[len(took)*99/100]
}

// Sessions find their cache while there is room, and nobody waits longer for it
// when there is not.
func TestAffinityInAWorld(t *testing.T) {
	for _, load := range []float64{0.1, 0.3, 0.6, 0.8, 0.9} {
		run := func(affinity bool) (hits float64, first, whole time.Duration) {
			const runs = 4
			for n := range uint64(runs) {
				c := newChats(Options{Model: "m", MaxQueue: 1 << 20, QueueTimeout: time.Hour, Affinity: affinity})
				c.talk(*seed*runs+n, load*100)
				hits += float64(c.hits) / float64(c.turns) / runs
				first, whole = first+p99(c.first)/runs, whole+p99(c.whole)/runs
			}
			return hits, first.Round(ms(1) / 10), whole.Round(ms(1))
		}
		none, first0, whole0 := run(false)
		hits, first, whole := run(true)
		t.Logf("load %v: hits %.3f, p99 to the first token %v, to the end %v; least loaded %.3f, %v, %v", load, hits, first, whole, none, first0, whole0)
		if load <= 0.3 && hits < 0.9 {
			t.Errorf("load %v: hits %.3f, want 0.9; replay with -seed=%d", load, hits, *seed)
		}
		if load >= 0.6 && (first > first0*105/100 || whole > whole0*105/100) {
			t.Errorf("load %v: p99 %v and %v, want at most 5 %% over %v and %v; replay with -seed=%d", load, first, whole, first0, whole0, *seed)
		}
	}
}

// Two replicas of 8 slots; a knows session 1 and the prefix 7, and has some
// requests of 10 tokens more.
func TestAffinityBound(t *testing.T) {
	session, prefix := backends.Placement{Session: 1}, backends.Placement{Prefix: []uint64{7, 8}}
	for _, tc := range []struct {
		name  string
		place backends.Placement
		more  int // on a, besides the session's first
		eta   float64
		want  string
	}{
		{"known", session, 0, 0, "a"},
		{"prefix", prefix, 0, 0, "a"},
		{"unknown session", backends.Placement{Session: 2}, 0, 0, "b"},
		{"session before prefix", backends.Placement{Session: 1, Prefix: []uint64{9}}, 0, 0, "a"},
		{"four more than b, four free", session, 3, 0, "a"},
		{"five more, three free", session, 4, 0, "b"},
		{"full", session, 7, 0, "b"},
		{"patience fills the lowest index", session, 4, 1, "a"},
	} {
		c := NewCore(Options{Model: "m", Affinity: true})
		rs := []Replica{{ID: "a", Slots: 8, Index: 0}, {ID: "b", Slots: 8, Index: 1}}
		c.SetReplicas(t0, rs[:1])
		c.Arrive(t0, alone(t0, 10, backends.Placement{Session: 1, Prefix: []uint64{7}}))
		for range tc.more {
			c.Arrive(t0, alone(t0, 10, backends.Placement{}))
		}
		c.SetEta(t0, tc.eta)
		c.SetReplicas(t0, rs)
		if got := script(c.Arrive(t0, alone(t0, 10, tc.place))); got != tc.want+":1/10 idle" {
			t.Errorf("%s: %q, want %s", tc.name, got, tc.want)
		}
	}
	// the replica that knew it is gone
	c := NewCore(Options{Model: "m", Affinity: true})
	c.SetReplicas(t0, shared("a"))
	c.Arrive(t0, alone(t0, 10, session))
	c.SetReplicas(t0, shared("b"))
	if got := script(c.Arrive(t0, alone(t0, 10, session))); got != "b:1/10 idle" {
		t.Errorf("gone: %q, want b", got)
	}
	// of several that know a prefix, the least loaded
	c = NewCore(Options{Model: "m", Affinity: true})
	c.SetReplicas(t0, []Replica{{ID: "a", Slots: 8, Index: 0}, {ID: "b", Slots: 8, Index: 1}, {ID: "c", Slots: 8, Index: 2}})
	for _, id := range []string{"a", "b"} {
		c.affinity.saw(prefix, id)
	}
	for n, want := range []string{"b", "a", "a"} { // of equals the last to see it
		if got := script(c.Arrive(t0, alone(t0, 10, prefix))); got != want+":1/10 idle" {
			t.Errorf("request %d: %q, want %s", n, got, want)
		}
	}
}
