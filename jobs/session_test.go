package jobs_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"aloft/jobs"
)

// openSession starts a shell of its own.
func openSession(t *testing.T, m *jobs.Manager, s *jobs.Session, grace time.Duration) jobs.Job {
	t.Helper()
	j := jobs.Job{Tenant: "red", Kind: jobs.KindSession, Command: []string{"/bin/sh"}, Grace: grace}
	j.Session = s
	j, err := m.Submit(t.Context(), j)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Start(t.Context(), j.ID, lend(1)); err != nil {
		t.Fatal(err)
	}
	return untilState(t, m, j.ID, jobs.Running)
}

// screen reads a view until want has been shown, or to its end for "".
func screen(t *testing.T, v *jobs.View, want string) string {
	t.Helper()
	end := time.After(60 * time.Second)
	shown := ""
	for {
		piece, over := v.Next()
		shown += string(piece)
		if want != "" && strings.Contains(shown, want) || over && want == "" {
			return shown
		}
		if over {
			t.Fatalf("%q ended before %q was shown", shown, want)
		}
		select {
		case <-v.Wake():
		case <-end:
			t.Fatalf("%q does not come to show %q", shown, want)
		}
	}
}

func typed(t *testing.T, term *jobs.Terminal, text string) {
	t.Helper()
	if n, err := term.Write([]byte(text)); err != nil || n != len(text) {
		t.Fatalf("%d bytes of %q taken, %v", n, text, err)
	}
}

// A shell lives on from one attachment to the next; it has a terminal of its own
// size, and job control.
func TestSessionLivesOn(t *testing.T) {
	m, _ := newManager(t, t.TempDir(), jobs.Options{})
	j := openSession(t, m, nil, 2*time.Second)
	term, err := m.Terminal(t.Context(), j.ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := term.Resize(33, 111); err != nil {
		t.Fatal(err)
	}
	first := term.Attach()
	typed(t, term, "a=41; stty size; tty; echo slice=$CUDA_VISIBLE_DEVICES\n")
	shown := screen(t, first, "slice="+lend(1)[0].UUID)
	if !strings.Contains(shown, "33 111") || !strings.Contains(shown, "/dev/pts/") {
		t.Errorf("the shell shows %q", shown)
	}
	first.Close()
	typed(t, term, "echo while-nobody-looked\n")
	second := term.Attach()
	typed(t, term, "echo $((a+1)) is the sum\n")
	if shown := screen(t, second, "42 is the sum"); !strings.Contains(shown, "while-nobody-looked") {
		t.Errorf("what was written while detached is not shown: %q", shown)
	}
	third := term.Attach()
	if shown := screen(t, second, ""); !strings.Contains(shown, "attached elsewhere") {
		t.Errorf("the one before is told %q", shown)
	}
	typed(t, term, "exit\n")
	screen(t, third, "")
	if j := untilState(t, m, j.ID, jobs.Succeeded); j.Error != "" {
		t.Errorf("ended with %q", j.Error)
	}
	if _, err := m.Terminal(t.Context(), j.ID); !errors.Is(err, jobs.ErrFinished) {
		t.Errorf("the terminal of one that has ended: %v", err)
	}
}

// An idle session is warned, a minute before its end, and kept when it is used
// after that.
func TestIdleSessionIsWarned(t *testing.T) {
	m, _ := newManager(t, t.TempDir(), jobs.Options{Sessions: jobs.Sessions{Warn: time.Minute}})
	j := openSession(t, m, &jobs.Session{Idle: time.Minute + 500*time.Millisecond}, 2*time.Second)
	term, err := m.Terminal(t.Context(), j.ID)
	if err != nil {
		t.Fatal(err)
	}
	v := term.Attach()
	screen(t, v, "this session ends in")
	until(t, "the record to say that it is warned", func() bool {
		j, err := m.Get(t.Context(), j.ID)
		return err == nil && !j.Session.Warned.IsZero()
	})
	if err := m.Heartbeat(t.Context(), j.ID); err != nil {
		t.Fatal(err)
	}
	screen(t, v, "this session ends in") // once more: the first warning was taken back
	until(t, "an event of each warning", func() bool { return len(sessionEvents(t, m, j.ID)) >= 2 })
}

// One that nobody uses after its warning is reclaimed.
func TestIdleSessionIsReclaimed(t *testing.T) {
	m, _ := newManager(t, t.TempDir(), jobs.Options{Sessions: jobs.Sessions{Warn: 2 * time.Second}})
	j := openSession(t, m, &jobs.Session{Idle: 4 * time.Second}, 2*time.Second)
	term, err := m.Terminal(t.Context(), j.ID)
	if err != nil {
		t.Fatal(err)
	}
	v := term.Attach()
	screen(t, v, "this session ends in")
	shown := screen(t, v, "")
	end := untilState(t, m, j.ID, jobs.Expired)
	if !strings.Contains(end.Error, "nobody used it for 4s") || len(end.Slices) != 0 || !strings.Contains(shown, "this session ends: nobody used it") {
		t.Errorf("ended as %q on %v; the terminal says %q", end.Error, end.Slices, shown)
	}
	if all := sessionEvents(t, m, j.ID); len(all) < 2 {
		t.Errorf("events %q, want the warning and the end", all)
	}
}

// sessionEvents are what a session was told.
func sessionEvents(t *testing.T, m *jobs.Manager, id string) (all []string) {
	t.Helper()
	events, err := m.Events(t.Context(), id, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		if e.Kind == "session" {
			all = append(all, e.Message)
		}
	}
	return all
}

// A session whose slice is wanted back is told, can be used meanwhile, and is
// over: nobody wants a shell again that has lost everything.
func TestPreemptedSessionIsOver(t *testing.T) {
	m, _ := newManager(t, t.TempDir(), jobs.Options{})
	j := openSession(t, m, nil, time.Minute) // as long as it takes to use it
	term, err := m.Terminal(t.Context(), j.ID)
	if err != nil {
		t.Fatal(err)
	}
	v := term.Attach()
	preempted := make(chan error)
	go func() { preempted <- m.Preempt(t.Context(), j.ID, 0) }()
	screen(t, v, "its slice was wanted back; save what you need")
	typed(t, term, "echo sa''ved\n")
	screen(t, v, "saved")
	typed(t, term, "exit\n")
	if err := <-preempted; err != nil {
		t.Fatal(err)
	}
	if end := untilState(t, m, j.ID, jobs.Expired); end.Error != "its slice was wanted back" {
		t.Errorf("ended as %q", end.Error)
	}
}

// A session does not outlive the server, and is not begun again by the next.
func TestSessionEndsWithTheServer(t *testing.T) {
	dir := t.TempDir()
	m, stop := newManager(t, dir, jobs.Options{})
	j := openSession(t, m, nil, 2*time.Second)
	stop()
	m, _ = newManager(t, dir, jobs.Options{})
	got, err := m.Get(t.Context(), j.ID)
	if err != nil || got.State != jobs.Expired || got.Error != "the server was stopped" {
		t.Errorf("%s, %q, %v", got.State, got.Error, err)
	}
}

func TestSessionsAreBounded(t *testing.T) {
	m, _ := newManager(t, t.TempDir(), jobs.Options{Sessions: jobs.Sessions{PerTenant: 1, Life: time.Hour}})
	ask := func(change func(*jobs.Job)) error {
		j := jobs.Job{Tenant: "red", Kind: jobs.KindSession, Command: []string{"/bin/sh"}}
		j.Session = &jobs.Session{}
		change(&j)
		_, err := m.Submit(t.Context(), j)
		return err
	}
	for param, change := range map[string]func(*jobs.Job){
		"idle_seconds":    func(j *jobs.Job) { j.Session.Idle = 5 * time.Hour },
		"longest_seconds": func(j *jobs.Job) { j.Session.Life = 2 * time.Hour },
		"max_width":       func(j *jobs.Job) { j.MinWidth = 2 },
		"retries":         func(j *jobs.Job) { j.Retries = 1 },
		"kind":            func(j *jobs.Job) { j.Kind = jobs.KindTrain },
	} {
		var bad *jobs.InvalidError
		if err := ask(change); !errors.As(err, &bad) || bad.Param != param {
			t.Errorf("%s: %v", param, err)
		}
	}
	if err := ask(func(*jobs.Job) {}); err != nil {
		t.Fatal(err)
	}
	if err := ask(func(*jobs.Job) {}); !errors.Is(err, jobs.ErrConflict) {
		t.Errorf("a second session of the tenant: %v", err)
	}
	list, err := m.List(t.Context(), jobs.Filter{Kind: jobs.KindSession})
	if err != nil || len(list) != 1 {
		t.Fatalf("%d sessions, %v", len(list), err)
	}
	if _, err := m.Cancel(t.Context(), list[0].ID); err != nil {
		t.Fatal(err)
	}
	var bad *jobs.InvalidError
	if _, err := m.Retry(t.Context(), list[0].ID); !errors.As(err, &bad) {
		t.Errorf("a session that has ended goes on: %v", err)
	}
	if err := ask(func(*jobs.Job) {}); err != nil {
		t.Errorf("after the first has ended: %v", err)
	}
	if err := ask(func(j *jobs.Job) { j.Tenant = "blue" }); err != nil {
		t.Errorf("another tenant's first: %v", err)
	}
}
