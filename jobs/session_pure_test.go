package jobs

import (
	"testing"
	"time"
)

func TestIdleness(t *testing.T) {
	begin := time.Date(2027, 1, 1, 12, 0, 0, 0, time.UTC)
	at := func(m float64) time.Time { return begin.Add(time.Duration(m * float64(time.Minute))) }
	s := Session{Idle: 20 * time.Minute, Life: 60 * time.Minute}
	for _, tt := range []struct {
		name       string
		last, now  float64 // minutes from the start
		lead       time.Duration
		want       due
		ends, look float64 // look < 0: none
	}{
		{"just begun", -5, 0, 2 * time.Minute, active, 20, 18},
		{"used before the start is used at the start", -60, 1, 2 * time.Minute, active, 20, 18},
		{"used lately", 10, 12, 2 * time.Minute, active, 30, 28},
		{"a moment before the warning", 10, 27.9, 2 * time.Minute, active, 30, 28},
		{"warned", 10, 28, 2 * time.Minute, warn, 30, 30},
		{"a moment before the end", 10, 29.9, 2 * time.Minute, warn, 30, 30},
		{"idle", 10, 30, 2 * time.Minute, reclaim, 30, -1},
		{"idle for long", 10, 59, 2 * time.Minute, reclaim, 30, -1},
		{"used after the warning", 28.5, 29, 2 * time.Minute, active, 48.5, 46.5},
		{"a long lead warns at half", 0, 9.9, time.Hour, active, 20, 10},
		{"a long lead warned", 0, 10, time.Hour, warn, 20, 20},
		{"no lead", 0, 19.9, 0, active, 20, 20},
		{"no lead, idle", 0, 20, 0, reclaim, 20, -1},
		{"busy near the end of its life", 57, 57.5, 2 * time.Minute, active, 60, 58},
		{"busy, warned of the end of its life", 59, 59, 2 * time.Minute, warn, 60, 60},
		{"busy beyond its life", 60, 60, 2 * time.Minute, reclaim, 60, -1},
	} {
		v, ends, look := idleness(s, use{begin, at(tt.last)}, at(tt.now), tt.lead)
		wantLook := at(tt.look)
		if tt.look < 0 {
			wantLook = time.Time{}
		}
		if v != tt.want || !ends.Equal(at(tt.ends)) || !look.Equal(wantLook) {
			t.Errorf("%s: %v, ends %v, look %v; want %v, %v, %v", tt.name, v, ends, look, tt.want, at(tt.ends), wantLook)
		}
	}
}

func TestSessionOutcome(t *testing.T) {
	for _, tt := range []struct {
		to         State
		over       string
		want       State
		wantReason string
	}{
		{Succeeded, "", Succeeded, "x"},
		{Failed, "", Failed, "x"},
		{Queued, "idle", Expired, "idle"}, // preempted
		{Succeeded, "idle", Expired, "idle"},
		{Failed, "idle", Expired, "idle"},
		{Cancelled, "idle", Cancelled, "x"}, // its user was faster
		{Paused, "idle", Paused, "x"},
	} {
		if to, why := sessionOutcome(tt.to, "x", tt.over); to != tt.want || why != tt.wantReason {
			t.Errorf("%s, %q: %s, %q", tt.to, tt.over, to, why)
		}
	}
}

// A server that was killed leaves no session to be begun again.
func TestSessionIsNotRecovered(t *testing.T) {
	for _, tt := range []struct {
		kind      Kind
		cancelled bool
		want      State
	}{{KindSession, false, Expired}, {KindSession, true, Cancelled}, {KindTrain, false, Queued}} {
		j := Job{Kind: tt.kind, State: Running}
		if tt.cancelled {
			j.Cancelling = time.Unix(1, 0)
		}
		if err := recoverJob(&j); err != nil || j.State != tt.want {
			t.Errorf("%s, cancelled %v: %s, %v; want %s", tt.kind, tt.cancelled, j.State, err, tt.want)
		}
	}
}

// Output without end neither fills memory nor waits for nobody; with a reader
// that takes it all arrives.
func TestTerminalIsBounded(t *testing.T) {
	term, slave, err := newTerminal()
	if err != nil {
		t.Fatal(err)
	}
	ended, pumped := make(chan struct{}), make(chan struct{})
	go func() { term.pump(ended, func([]byte) {}); close(pumped) }()
	line := make([]byte, 1000)
	for i := range line {
		line[i] = 'x'
	}
	for range 3 * termKept / len(line) { // nobody is attached
		if _, err := slave.Write(line); err != nil {
			t.Fatal(err)
		}
	}
	v := term.Attach()
	done := make(chan int)
	go func() {
		n := 0
		for {
			piece, over := v.Next()
			n += len(piece)
			if over {
				done <- n
				return
			}
			<-v.Wake()
		}
	}()
	const more = 2 * termKept / 1000
	for range more {
		if _, err := slave.Write(line); err != nil {
			t.Fatal(err)
		}
	}
	slave.Close()
	close(ended)
	<-pumped
	if n := <-done; n < more*len(line) || n > more*len(line)+2*termKept {
		t.Errorf("the reader got %d bytes of %d", n, more*len(line))
	}
	term.mu.Lock()
	if kept := len(term.buf); kept > 2*termKept {
		t.Errorf("%d bytes are kept, at most %d", kept, 2*termKept)
	}
	term.mu.Unlock()
	if n, err := term.Write([]byte("x")); err == nil {
		t.Errorf("input after the end: %d taken", n)
	}
}
