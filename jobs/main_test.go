package jobs_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gocloud.dev/blob/fileblob"

	"aloft/gpu"
	"aloft/jobs"
	"aloft/jobs/boltstore"
	"aloft/jobs/trainer"
)

// roleEnv makes this test binary one of the programs below.
const roleEnv = "ALOFT_TEST_ROLE"

func TestMain(m *testing.M) {
	switch role := os.Getenv(roleEnv); role {
	case "":
		os.Exit(m.Run())
	case "train":
		os.Exit(roleTrain())
	case "tune":
		os.Exit(roleTune())
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("I stay")
		report(`{"step":1,"total":2}`)
		time.Sleep(time.Minute)
	case "serve":
		roleServe()
	case "f15":
		roleF15()
	case "publish":
		rolePublish()
	case "rows":
		roleRows()
	case "count":
		os.Exit(roleCount())
	case "show":
		for _, e := range os.Environ() {
			fmt.Println(e)
		}
		report("junk\n" + strings.Repeat("x", 100_000) + "\n" + `{"step":5,"total":5,"result":"fine"}`)
	default: // exit with a code
		code, _ := strconv.Atoi(role)
		os.Exit(code)
	}
}

func report(s string) { io.WriteString(os.NewFile(3, "progress"), s+"\n") }

// roleTrain is what "aloft train" does with its environment.
func roleTrain() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	steps, _ := strconv.Atoi(os.Args[1])
	err := trainer.Run(ctx, trainer.Options{
		CheckpointDir: os.Getenv("ALOFT_CHECKPOINT_DIR"), Resume: os.Getenv("ALOFT_RESUME_FROM"),
		Steps: steps, Seed: 11, StepsPerCheckpoint: 25, Pace: time.Millisecond, Progress: os.NewFile(3, "progress"),
	})
	if errors.Is(err, trainer.ErrPreempted) {
		return jobs.ExitRequeue
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// caller answers rows by a function.
type caller func(ctx context.Context, r jobs.Row) (jobs.Result, error)

func (c caller) Call(ctx context.Context, r jobs.Row) (jobs.Result, error) { return c(ctx, r) }

func answer(ctx context.Context, r jobs.Row) (jobs.Result, error) {
	return jobs.Result{Status: 200, RequestID: "req_" + r.ID, Body: []byte(`{"object":"list","usage":{"prompt_tokens":2,"total_tokens":2}}`)}, nil
}

// template makes a job of this test binary in a role.
func template(role string, grace time.Duration, args ...string) jobs.Template {
	self, _ := os.Executable()
	return jobs.Template{
		Name: role, Kind: jobs.KindTrain, Command: append([]string{self}, args...), Grace: grace, Env: []string{roleEnv + "=" + role},
	}
}

const trainSteps = 400

func templates() []jobs.Template {
	return []jobs.Template{
		template("train", 5*time.Second, strconv.Itoa(trainSteps)), template("stubborn", 100*time.Millisecond),
		template("show", 0), template("0", 0), template("3", 0), template("75", 0),
		{Name: "missing", Kind: jobs.KindTrain, Command: []string{"/nonexistent/program"}},
	}
}

// openManager opens a manager over what is in dir, with real parts.
func openManager(dir string, o jobs.Options) (*jobs.Manager, func() error, error) {
	store, err := boltstore.Open(filepath.Join(dir, "jobs.db"))
	if err != nil {
		return nil, nil, err
	}
	bucket, err := fileblob.OpenBucket(filepath.Join(dir, "blobs"), &fileblob.Options{CreateDir: true, NoTempDir: true, Metadata: fileblob.MetadataDontWrite})
	if err != nil {
		store.Close()
		return nil, nil, err
	}
	synced, _ := o.Files.(jobs.SyncedFiles)
	o.Files, o.DataDir = store, dir
	if p, ok := synced.FileStore.(*platter); ok {
		p.FileStore, o.Files = store, synced
	}
	switch s := o.Store.(type) {
	case *faulty:
		s.Store = store
	case *killer:
		s.Store, o.Files = store, s
	default:
		o.Store = store
	}
	if o.Blobs == nil {
		o.Blobs = bucket
	}
	if o.Templates == nil {
		o.Templates = templates()
	}
	o.Retry = jobs.Retry{First: time.Millisecond, Most: 10 * time.Millisecond, Attempts: 3}
	if o.Executor == nil {
		o.Executor = jobs.Local{RunDir: filepath.Join(dir, "run"), MaxLog: 8192}
	}
	if o.Caller == nil {
		o.Caller = caller(answer)
	}
	m, err := jobs.NewManager(o, slog.New(slog.DiscardHandler))
	if err == nil {
		err = m.Open(context.Background())
	}
	if err != nil {
		store.Close()
		bucket.Close()
		return nil, nil, err
	}
	return m, sync.OnceValue(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
		defer cancel()
		return errors.Join(m.Close(ctx), bucket.Close(), store.Close())
	}), nil
}

func newManager(t *testing.T, dir string, o jobs.Options) (*jobs.Manager, func()) {
	t.Helper()
	m, closeAll, err := openManager(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	stop := func() {
		if err := closeAll(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	t.Cleanup(stop)
	return m, stop
}

// known is a specification that comes before the file.
func known(s jobs.FileSpec) func() (jobs.FileSpec, error) {
	return func() (jobs.FileSpec, error) { return s, nil }
}

// rowsFile is n good rows for an embeddings batch.
func rowsFile(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `{"custom_id":"row-%d","method":"POST","url":"/v1/embeddings","body":{"model":"m","input":"text %d"}}`+"\n", i, i)
	}
	return b.String()
}

func createBatch(m *jobs.Manager, file, window string) (jobs.Batch, error) {
	ctx := context.Background()
	f, err := m.CreateFile(ctx, known(jobs.FileSpec{Name: "in.jsonl", Purpose: jobs.PurposeBatch}), strings.NewReader(file))
	if err != nil {
		return jobs.Batch{}, err
	}
	return m.CreateBatch(ctx, jobs.BatchSpec{InputFile: f.ID, Endpoint: "/v1/embeddings", Window: window})
}

// until polls what other processes and goroutines bring about, on a machine that
// may be busy, under the race detector too.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(90 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func untilBatch(t *testing.T, m *jobs.Manager, id string, ok func(jobs.Batch) bool) jobs.Batch {
	t.Helper()
	var b jobs.Batch
	until(t, "batch "+id, func() bool {
		var err error
		if b, err = m.Batch(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if b.Counts.Completed+b.Counts.Failed > b.Counts.Total {
			t.Fatalf("counts %+v", b.Counts)
		}
		return ok(b)
	})
	return b
}

func ended(b jobs.Batch) bool { return b.Status.Terminal() }

func untilState(t *testing.T, m *jobs.Manager, id string, want jobs.State) jobs.Job {
	t.Helper()
	var j jobs.Job
	until(t, id+" to be "+string(want), func() bool {
		var err error
		if j, err = m.Get(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if j.State.Terminal() && j.State != want {
			t.Fatalf("job %s: %s (%s), want %s", id, j.State, j.Error, want)
		}
		return j.State == want
	})
	return j
}

// outLine is a line of an output or error file.
type outLine struct {
	ID       string `json:"id"`
	CustomID string `json:"custom_id"`
	Response *struct {
		StatusCode int             `json:"status_code"`
		RequestID  string          `json:"request_id"`
		Body       json.RawMessage `json:"body"`
	} `json:"response"`
	Error *struct{ Code, Message string } `json:"error"`
}

// outputs reads both files and checks that every row is there exactly once and
// that the counts say so.
func outputs(t *testing.T, m *jobs.Manager, b jobs.Batch, rows int) (good, bad map[string]outLine) {
	t.Helper()
	read := func(id string) map[string]outLine {
		lines := map[string]outLine{}
		if id == "" {
			return lines
		}
		r, err := m.OpenFile(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		dec := json.NewDecoder(r)
		for {
			var l outLine
			if err := dec.Decode(&l); err == io.EOF {
				break
			} else if err != nil {
				t.Fatalf("file %s: %v", id, err)
			}
			if _, twice := lines[l.CustomID]; twice {
				t.Errorf("row %s is in file %s twice", l.CustomID, id)
			}
			lines[l.CustomID] = l
		}
		if len(lines) == 0 {
			t.Errorf("file %s is empty", id)
		}
		return lines
	}
	good, bad = read(b.OutputFile), read(b.ErrorFile)
	for i := range rows {
		id := fmt.Sprintf("row-%d", i)
		_, g := good[id]
		_, e := bad[id]
		if g == e {
			t.Errorf("row %s: in output %v, in errors %v; want one of them", id, g, e)
		}
	}
	if want := (jobs.Counts{Total: rows, Completed: len(good), Failed: len(bad)}); b.Counts != want {
		t.Errorf("counts %+v, want %+v", b.Counts, want)
	}
	return good, bad
}

func lend(n int) []gpu.Slice {
	var s []gpu.Slice
	for i := range n {
		s = append(s, gpu.Slice{ID: fmt.Sprintf("g0/s%d", i), UUID: fmt.Sprintf("MIG-%d", i)})
	}
	return s
}
