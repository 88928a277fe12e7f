package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"aloft/arbiter"
	"aloft/gateway/keys"
)

const (
	// historyDays bounds the history, and with 24 hours of some 1.5 KB a day what
	// it takes in memory and on disk: 3 MB.
	historyDays = 90
	// historySave is how much of it a crash can cost.
	historySave = time.Minute
	// historyStep is the growth from one class of reclaim times to the next: a
	// quantile is off by 5 % at most.
	historyStep = 1.1
)

// books are where it is written down what was decided and what came of it.
type books struct {
	journal  *journal
	history  *history
	memories *memories
	measure  *arbiterMeter
}

// hour is what an hour of the ledger came to. All sums add up over hours.
type hour struct {
	Start    time.Time                   `json:"start"`
	Seconds  float64                     `json:"seconds"` // observed
	SliceS   map[arbiter.Account]float64 `json:"slice_s"` // compute slices × seconds
	QueuedS  map[arbiter.Cause]float64   `json:"queued_job_s"`
	GPUS     float64                     `json:"gpu_s"`          // GPUs powered on × seconds
	FragS    float64                     `json:"fragmented_s"`   // fragmentation × seconds
	LentS    float64                     `json:"lent_slice_s"`   // on loan to jobs
	GainedS  float64                     `json:"gained_slice_s"` // see gains
	MissedS  float64                     `json:"missed_slice_s"`
	Moves    map[string]int              `json:"moves"` // decisions, by action/reason; what is only observed as observed/action/reason
	Loans    int                         `json:"loans"`
	Reclaims map[int]int                 `json:"reclaims"` // by class of their time
	Kept     int                         `json:"reclaims_kept"`
	Broken   int                         `json:"reclaims_broken"`
	Failed   int                         `json:"moves_failed"`
	Bound    float64                     `json:"bound_s"` // largest promised, of those reclaimed
	Worst    float64                     `json:"worst"`   // largest share of its bound that one took
}

// history is the ledger by the hour: a file a day in its folder, each written
// whole. All that is kept is in memory too.
type history struct {
	dir string
	log *slog.Logger

	mu    sync.Mutex
	hours []hour // by start, none twice
	last  arbiter.Balance
	at    time.Time
}

// openHistory reads what earlier runs have left. A damaged file is put aside.
func openHistory(dir string, now time.Time, log *slog.Logger) (*history, error) {
	h := &history{dir: dir, log: log}
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return nil, fmt.Errorf("read the ledger's history: %w", err)
		}
		var day []hour
		if err := json.Unmarshal(text, &day); err != nil {
			log.Warn("a day of the ledger is damaged and put aside", "file", f, "error", err)
			if err := os.Rename(f, f+".damaged"); err != nil {
				return nil, err
			}
			continue
		}
		h.hours = append(h.hours, day...)
	}
	slices.SortStableFunc(h.hours, func(a, b hour) int { return a.Start.Compare(b.Start) })
	h.trim(now)
	return h, nil
}

// of is the bucket of a moment. The caller holds the lock; the pointer is valid
// until the next call.
func (h *history) of(now time.Time) *hour {
	start := now.UTC().Truncate(time.Hour)
	i, ok := slices.BinarySearchFunc(h.hours, start, func(x hour, t time.Time) int { return x.Start.Compare(t) })
	if !ok {
		h.hours = slices.Insert(h.hours, i, hour{Start: start})
	}
	x := &h.hours[i]
	if x.SliceS == nil {
		x.SliceS = map[arbiter.Account]float64{}
	}
	if x.QueuedS == nil {
		x.QueuedS = map[arbiter.Cause]float64{}
	}
	if x.Moves == nil {
		x.Moves = map[string]int{}
	}
	if x.Reclaims == nil {
		x.Reclaims = map[int]int{}
	}
	return x
}

// sample books the time since the last one, as the ledger has it.
func (h *history) sample(now time.Time, v arbiter.View) {
	h.mu.Lock()
	defer h.mu.Unlock()
	first := h.at.IsZero()
	dt := now.Sub(h.at).Seconds()
	h.at = now
	if v.Balance.Total < h.last.Total { // a new ledger
		h.last = arbiter.Balance{}
	}
	x := h.of(now)
	for a, share := range v.Balance.Share {
		if d := share*v.Balance.Total - h.last.Share[a]*h.last.Total; d != 0 {
			x.SliceS[a] += d
		}
	}
	for c, s := range v.Balance.Queue {
		if d := s - h.last.Queue[c]; d > 0 {
			x.QueuedS[c] += d
		}
	}
	h.last = v.Balance
	if first || dt <= 0 {
		return
	}
	lent := 0.0
	for _, sl := range v.Snapshot.Slices {
		if sl.Lent() {
			lent += float64(sl.Units())
		}
	}
	gained, missed := gains(v)
	x.Seconds += dt
	x.GPUS += dt * float64(len(v.Snapshot.GPUs))
	x.FragS += dt * v.Snapshot.Fragmentation()
	x.LentS += dt * lent
	x.GainedS += dt * gained
	x.MissedS += dt * missed
}

// record counts a decision or its outcome.
func (h *history) record(r arbiter.Record) {
	h.mu.Lock()
	defer h.mu.Unlock()
	x, m := h.of(r.Time), r.Move
	switch r.Outcome {
	case "":
		x.Moves[string(m.Action)+"/"+string(m.Reason)]++
		return
	case "observed":
		x.Moves["observed/"+string(m.Action)+"/"+string(m.Reason)]++
		return
	case "failed":
		x.Failed++
	case "done":
		if m.Action == arbiter.Lend {
			x.Loans++
		}
	}
	if m.Action != arbiter.Reclaim || r.Outcome == "failed" {
		return
	}
	x.Bound = max(x.Bound, m.Bound.Seconds())
	if m.Bound > 0 {
		x.Worst = max(x.Worst, r.Took.Seconds()/m.Bound.Seconds())
	}
	x.Reclaims[classOf(r.Took)]++
	if r.Outcome == "bound_broken" {
		x.Broken++
	} else {
		x.Kept++
	}
}

// classOf is the class of a time: 1 ms × historyStep^class, at least 0.
func classOf(d time.Duration) int {
	return max(0, int(math.Round(math.Log(max(d.Seconds(), 1e-3)/1e-3)/math.Log(historyStep))))
}

func timeOf(class int) float64 { return 1e-3 * math.Pow(historyStep, float64(class)) }

// since returns copies of the hours that end after t, oldest first. The maps in
// them belong to the caller.
func (h *history) since(t time.Time) []hour {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []hour
	for _, x := range h.hours {
		if x.Start.Add(time.Hour).After(t) {
			out = append(out, x.clone())
		}
	}
	return out
}

// save writes the day of a moment, and the one before if that has just ended.
// The arbiter, which records under the same lock, does not wait for the disk.
func (h *history) save(now time.Time) error {
	h.mu.Lock()
	h.trim(now)
	defer h.sweep(now)
	days := map[string][]hour{dayOf(now): nil}
	if before := now.Add(-2 * historySave); dayOf(before) != dayOf(now) {
		days[dayOf(before)] = nil
	}
	for _, x := range h.hours {
		if _, ok := days[dayOf(x.Start)]; ok {
			days[dayOf(x.Start)] = append(days[dayOf(x.Start)], x.clone())
		}
	}
	h.mu.Unlock()
	var errs []error
	for day, hours := range days {
		if len(hours) == 0 {
			continue
		}
		text, err := json.Marshal(hours)
		if err == nil {
			err = keys.WriteFile(filepath.Join(h.dir, day+".json"), text)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("save the ledger's history: %w", err))
		}
	}
	return errors.Join(errs...)
}

func dayOf(t time.Time) string { return t.UTC().Format(time.DateOnly) }

// keepHistory samples the ledger and saves it now and then until ctx ends, and
// once more then.
func (s *server) keepHistory(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	saved := time.Now()
	for ctx.Err() == nil {
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
		now := time.Now()
		s.history.sample(now, s.arbiter.View())
		if ctx.Err() == nil && now.Sub(saved) < historySave {
			continue
		}
		saved = now
		if err := s.history.save(now); err != nil {
			s.log.Warn("ledger not saved", "error", err)
		}
	}
}

// trim forgets what is too old. The caller holds the lock.
func (h *history) trim(now time.Time) {
	oldest := now.UTC().AddDate(0, 0, -historyDays)
	h.hours = slices.DeleteFunc(h.hours, func(x hour) bool { return x.Start.Before(oldest) })
}

// sweep removes the files of days that are too old.
func (h *history) sweep(now time.Time) {
	files, _ := filepath.Glob(filepath.Join(h.dir, "*.json"))
	for _, f := range files {
		day, err := time.Parse(time.DateOnly, strings.TrimSuffix(filepath.Base(f), ".json"))
		if err == nil && day.AddDate(0, 0, 1+historyDays).Before(now) {
			if err := os.Remove(f); err != nil && !errors.Is(err, fs.ErrNotExist) {
				h.log.Warn("an old day of the ledger is not removed", "file", f, "error", err)
			}
		}
	}
}
