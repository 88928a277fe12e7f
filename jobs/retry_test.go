package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"aloft/backends"
	"aloft/jobs"
)

// Each kind of fault, as a row's caller meets it on its first tries: how often
// the row is tried (openManager allows three tries of a passing fault), and in
// which file it ends.
func TestRowsByFault(t *testing.T) {
	for i, c := range []struct {
		name  string
		reply jobs.Result
		err   error
		times int // that it fails before it would succeed
		calls int
		good  bool
	}{
		{"good at once", jobs.Result{}, nil, 0, 1, true},
		{"429 for long", jobs.Result{Status: 429}, nil, 20, 21, true},
		{"503 for long", jobs.Result{Status: 503}, nil, 20, 21, true},
		{"queue full for long", jobs.Result{}, &backends.RetryError{Err: backends.ErrOverloaded}, 20, 21, true},
		{"no replica for long", jobs.Result{}, fmt.Errorf("x: %w", backends.ErrUnavailable), 20, 21, true},
		{"500 twice", jobs.Result{Status: 500}, nil, 2, 3, true},
		{"502 for ever", jobs.Result{Status: 502}, nil, 99, 3, false},
		{"504 twice", jobs.Result{Status: 504}, nil, 2, 3, true},
		{"408 twice", jobs.Result{Status: 408}, nil, 2, 3, true},
		{"connection broke for ever", jobs.Result{}, fmt.Errorf("x: %w", backends.ErrConnect), 99, 3, false},
		{"no status for ever", jobs.Result{Body: []byte("{}")}, nil, 99, 3, false},
		{"400", jobs.Result{Status: 400}, nil, 99, 1, false},
		{"404", jobs.Result{Status: 404}, nil, 99, 1, false},
		{"413", jobs.Result{Status: 413}, nil, 99, 1, false},
		{"503, final", jobs.Result{Status: 503, Final: true}, nil, 99, 1, false},
		{"unknown model", jobs.Result{}, fmt.Errorf("x: %w", backends.ErrUnknownModel), 99, 1, false},
		{"too long", jobs.Result{}, fmt.Errorf("x: %w", backends.ErrTooLong), 99, 1, false},
		{"another error for ever", jobs.Result{}, errors.New("odd"), 99, 3, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			endpoint := jobs.Endpoints()[i%len(jobs.Endpoints())]
			var mu sync.Mutex
			calls, ids := 0, map[string]bool{}
			m, _ := newManager(t, t.TempDir(), jobs.Options{Caller: caller(func(ctx context.Context, r jobs.Row) (jobs.Result, error) {
				mu.Lock()
				defer mu.Unlock()
				ids[r.ID] = true
				if r.Endpoint.Path() != endpoint {
					t.Errorf("the row came to %s, want %s", r.Endpoint.Path(), endpoint)
				}
				if calls++; calls <= c.times {
					return c.reply, c.err
				}
				return answer(ctx, r)
			})})
			f, err := m.CreateFile(t.Context(), known(jobs.FileSpec{Name: "in", Purpose: jobs.PurposeBatch}),
				strings.NewReader(strings.ReplaceAll(rowsFile(1), "/v1/embeddings", endpoint)))
			if err != nil {
				t.Fatal(err)
			}
			b, err := m.CreateBatch(t.Context(), jobs.BatchSpec{InputFile: f.ID, Endpoint: endpoint, Window: "24h"})
			if err != nil {
				t.Fatal(err)
			}
			b = untilBatch(t, m, b.ID, ended)
			if good, _ := outputs(t, m, b, 1); b.Status != jobs.Completed || len(good) == 1 != c.good {
				t.Errorf("ended %s with %d good rows, want good: %v", b.Status, len(good), c.good)
			}
			if calls != c.calls || len(ids) != 1 {
				t.Errorf("%d calls by %d ids, want %d by one", calls, len(ids), c.calls)
			}
		})
	}
}
