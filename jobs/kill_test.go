package jobs_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"aloft/gpu"
	"aloft/jobs"
	"aloft/jobs/boltstore"
)

const (
	killRows   = 60 // of each batch
	killSteps  = 60 // of each trainer
	killOpen   = 12 // unfinished jobs at a time
	killRounds = 20 // ALOFT_KILLS=200 for the whole
)

func killTemplates() []jobs.Template {
	return []jobs.Template{template("train", 2*time.Second, strconv.Itoa(killSteps)), template("0", 0), template("3", 0)}
}

// roleServe is a server in small. With work it submits, cancels, starts and
// preempts at random until it is killed, and notes in acks.log what it was
// answered; without, it carries everything to its end and stops.
func roleServe() {
	w := world{dir: os.Args[1]}
	var err error
	w.acks, err = os.OpenFile(filepath.Join(w.dir, "acks.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	w.check(err)
	var stop func() error
	w.m, stop, err = openManager(w.dir, jobs.Options{Templates: killTemplates(), Caller: caller(func(ctx context.Context, r jobs.Row) (jobs.Result, error) {
		fmt.Fprintf(w.acks, "call %s\n", r.ID)
		time.Sleep(rand.N(2 * time.Millisecond))
		switch rand.N(20) {
		case 0:
			return jobs.Result{Status: 503}, nil
		case 1:
			panic("a bug")
		}
		return answer(ctx, r)
	})})
	w.check(err)
	fmt.Println("open")
	if os.Args[2] == "work" {
		for {
			w.act()
			time.Sleep(rand.N(8 * time.Millisecond))
		}
	}
	for w.lend() > 0 {
		time.Sleep(5 * time.Millisecond)
	}
	w.check(stop())
}

// world is what roleServe has.
type world struct {
	dir  string
	acks *os.File
	m    *jobs.Manager
}

func (w *world) check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// act does one thing at random.
func (w *world) act() {
	ctx := context.Background()
	list, err := w.m.List(ctx, jobs.Filter{States: jobs.Unfinished()})
	w.check(err)
	switch what := rand.N(10); {
	case what < 3 && len(list) < killOpen: // one key may be tried by several lives
		all, err := w.m.List(ctx, jobs.Filter{Kind: jobs.KindTrain})
		w.check(err)
		key := fmt.Sprintf("key-%d", max(0, len(all)-rand.N(2)))
		j, err := w.m.Submit(ctx, jobs.Job{Template: []string{"train", "train", "0", "3"}[rand.N(4)], Terms: jobs.Terms{Idempotency: key}})
		if _, other := errors.AsType[*jobs.InvalidError](err); other || errors.Is(err, jobs.ErrKeyTaken) || errors.Is(err, jobs.ErrConflict) {
			return // an earlier life has it
		}
		w.check(err)
		fmt.Fprintf(w.acks, "job %s\n", j.ID)
	case what < 5 && len(list) < killOpen:
		b, err := createBatch(w.m, rowsFile(killRows), "24h")
		w.check(err)
		fmt.Fprintf(w.acks, "job %s\n", b.ID)
	case what == 5 && len(list) > 0:
		id := list[rand.N(len(list))].ID
		if _, err := w.m.Cancel(ctx, id); !errors.Is(err, jobs.ErrFinished) {
			w.check(err)
			fmt.Fprintf(w.acks, "cancel %s\n", id)
		}
	case what == 6 && len(list) > 0:
		w.check(w.m.Preempt(ctx, list[rand.N(len(list))].ID, 0))
	default:
		w.lend()
	}
}

// lend starts what waits, and returns how many jobs are unfinished.
func (w *world) lend() int {
	list, err := w.m.List(context.Background(), jobs.Filter{States: jobs.Unfinished()})
	w.check(err)
	for i, j := range list {
		if j.Waits() && j.Kind != jobs.KindBatch {
			err := w.m.Start(context.Background(), j.ID, []gpu.Slice{{ID: fmt.Sprintf("g0/s%d", i)}})
			if !errors.Is(err, jobs.ErrConflict) { // cancelled meanwhile
				w.check(err)
			}
		}
	}
	return len(list)
}

// killed is what a test knows of a world from outside.
type killed struct {
	dir    string
	seed   uint64
	ended  map[string]jobs.State // what was final once
	output map[string][]byte     // what was committed of each batch
	done   map[string]bool       // rows that were committed
	acked  map[string]string     // id → "job" or "cancel"
	offset int64                 // of acks.log, read so far
}

// TestKill9 kills a server at random moments while batches, trainers, cancels
// and preemptions are under way. What was answered is there, nothing is there
// twice, nothing that was final or committed changes, and in the end nothing is
// stuck, every row of every batch is there once, and every training has ended as
// if nothing had been.
func TestKill9(t *testing.T) {
	rounds := killRounds
	if s := os.Getenv("ALOFT_KILLS"); s != "" {
		var err error
		if rounds, err = strconv.Atoi(s); err != nil {
			t.Fatalf("ALOFT_KILLS: %v", err)
		}
	}
	k := &killed{dir: t.TempDir(), seed: rand.Uint64(), ended: map[string]jobs.State{}, output: map[string][]byte{}, done: map[string]bool{}, acked: map[string]string{}}
	r := rand.New(rand.NewPCG(k.seed, 2))
	early := 0
	for round := range rounds {
		if !k.live(t, r) {
			early++
		}
		if k.look(t); t.Failed() {
			t.Fatalf("after kill %d (seed %d)", round+1, k.seed)
		}
	}
	cmd, out := k.start(t, "drain")
	limit := time.AfterFunc(4*time.Minute, func() { cmd.Process.Kill() })
	io.Copy(io.Discard, out)
	if err := cmd.Wait(); err != nil || !limit.Stop() {
		t.Fatalf("the last life: %v: %s (seed %d)", err, cmd.Stderr, k.seed)
	}
	k.look(t)
	k.judge(t)
	if early == rounds {
		t.Error("every kill came before the server was open")
	}
	t.Logf("%d kills, %d of them while starting; %d jobs, %d rows seen committed", rounds, early, len(k.ended), len(k.done))
}

func (k *killed) start(t *testing.T, mode string) (*exec.Cmd, *bufio.Reader) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, k.dir, mode)
	cmd.Env = append(os.Environ(), roleEnv+"=serve")
	cmd.Stderr = &strings.Builder{}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	return cmd, bufio.NewReader(out)
}

// live lets a server live for a moment, and tells whether it got to work.
func (k *killed) live(t *testing.T, r *rand.Rand) (opened bool) {
	t.Helper()
	cmd, out := k.start(t, "work")
	wait := time.Duration(r.Int64N(int64(200 * time.Millisecond)))
	if r.IntN(5) == 0 { // in the middle of starting
		time.Sleep(wait / 3)
	} else {
		out.ReadString('\n') // or its death
		opened = true
		time.Sleep(wait)
	}
	cmd.Process.Kill()
	if err := cmd.Wait(); cmd.ProcessState.Exited() {
		t.Fatalf("the server was to be killed: %v: %s (seed %d)", err, cmd.Stderr, k.seed)
	}
	return opened
}

// look reads the store as a dead server left it and compares it with before.
func (k *killed) look(t *testing.T) {
	t.Helper()
	k.read(t)
	s, err := boltstore.Open(filepath.Join(k.dir, "jobs.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	list, err := s.List(t.Context(), jobs.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	there, keys := map[string]bool{}, map[string]string{}
	for _, j := range list {
		there[j.ID] = true
		if twice := keys[j.Idempotency]; j.Idempotency != "" && twice != "" {
			t.Errorf("%s and %s have the key %s", j.ID, twice, j.Idempotency)
		}
		keys[j.Idempotency] = j.ID
		if was, ok := k.ended[j.ID]; ok && was != j.State {
			t.Errorf("%s was %s and is %s", j.ID, was, j.State)
		} else if !ok && j.State.Terminal() {
			k.ended[j.ID] = j.State
			if k.acked[j.ID] == "cancel" && j.State != jobs.Cancelled && (j.Kind == jobs.KindBatch || j.State != jobs.Succeeded) {
				t.Errorf("%s was cancelled and has %s", j.ID, j.State)
			}
		}
		if j.Batch != nil && j.Batch.Status == jobs.InProgress {
			k.committed(t, j.Batch)
		}
	}
	for id := range k.acked {
		if !there[id] {
			t.Errorf("%s was answered and is lost", id)
		}
	}
}

// read takes in what the server was answered, and whether it called a row that
// was committed in an earlier life.
func (k *killed) read(t *testing.T) {
	t.Helper()
	f, err := os.Open(filepath.Join(k.dir, "acks.log"))
	if errors.Is(err, os.ErrNotExist) {
		return // killed before it wrote anything
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.NewSectionReader(f, k.offset, 1<<40))
	if err != nil {
		t.Fatal(err)
	}
	k.offset += int64(len(text))
	for line := range strings.Lines(string(text)) {
		what, id, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if what != "call" {
			k.acked[id] = what
		} else if k.done[id] {
			t.Errorf("row %s was called after it was committed", id)
		}
	}
}

// committed notes the rows and the bytes that count, and that those of before
// are still there.
func (k *killed) committed(t *testing.T, b *jobs.Batch) {
	t.Helper()
	n := 0
	for i := range killRows {
		if i/8 < len(b.Log.Done) && b.Log.Done[i/8]&(1<<(i%8)) != 0 {
			k.done[fmt.Sprintf("batch_req_%s_%05d", strings.TrimPrefix(b.ID, "batch_"), i)] = true
			n++
		}
	}
	if n != b.Counts.Completed+b.Counts.Failed {
		t.Errorf("batch %s has %d rows and counts %+v", b.ID, n, b.Counts)
	}
	if b.Log.Output == 0 {
		return
	}
	text, err := os.ReadFile(filepath.Join(k.dir, "batches", b.ID, "output.jsonl"))
	if err != nil || int64(len(text)) < b.Log.Output || !bytes.HasPrefix(text, k.output[b.ID]) {
		t.Errorf("batch %s: %d bytes of %d committed ones, %v, or others than before", b.ID, len(text), b.Log.Output, err)
		return
	}
	k.output[b.ID] = text[:b.Log.Output]
}

// judge looks at everything in the end.
func (k *killed) judge(t *testing.T) {
	t.Helper()
	m, _ := newManager(t, k.dir, jobs.Options{Templates: killTemplates()})
	whole := trained(t, killSteps)
	list, err := m.List(t.Context(), jobs.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range list {
		switch {
		case !j.State.Terminal():
			t.Errorf("%s is stuck: %s %+v", j.ID, j.State, j.Course)
		case j.Kind == jobs.KindBatch:
			rows := killRows
			if j.Batch.Status == jobs.BatchCancelled && j.Batch.Stamps.InProgress.IsZero() {
				rows = 0 // cancelled before its file had been read
			}
			outputs(t, m, *j.Batch, rows)
			if j.State != jobs.Succeeded && j.State != jobs.Cancelled {
				t.Errorf("batch %s: %s %s", j.ID, j.State, j.Error)
			}
			k.prefix(t, m, j.Batch)
		case j.Template == "train" && j.State == jobs.Succeeded && j.Progress.Result != whole:
			t.Errorf("training %s ended otherwise: %+v", j.ID, j.Progress)
		case j.Template == "3" && j.State == jobs.Succeeded, j.Template != "3" && j.State == jobs.Failed:
			t.Errorf("%s of template %s has %s: %s", j.ID, j.Template, j.State, j.Error)
		}
	}
	if left, err := filepath.Glob(filepath.Join(k.dir, "run", "*.pid*")); err != nil || len(left) > 0 {
		t.Errorf("processes are left: %v, %v", left, err)
	}
}

// prefix checks that a batch's output begins with all that was committed on the way.
func (k *killed) prefix(t *testing.T, m *jobs.Manager, b *jobs.Batch) {
	t.Helper()
	if len(k.output[b.ID]) == 0 {
		return
	}
	in, err := m.OpenFile(t.Context(), b.OutputFile)
	if err != nil {
		t.Errorf("batch %s: %v", b.ID, err)
		return
	}
	defer in.Close()
	text, err := io.ReadAll(in)
	if err != nil || !bytes.HasPrefix(text, k.output[b.ID]) {
		t.Errorf("batch %s: a committed answer did not survive (%v)", b.ID, err)
	}
}

// committed reads the newest batch as a dead server left it.
func committed(t *testing.T, dir string) (jobs.Batch, bool) {
	t.Helper()
	s, err := boltstore.Open(filepath.Join(dir, "jobs.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	list, err := s.List(t.Context(), jobs.Filter{Kind: jobs.KindBatch})
	if err != nil || len(list) == 0 {
		return jobs.Batch{}, false
	}
	return *list[0].Batch, true
}
