package arrivals

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"
)

const (
	// mooncakeGrid is the grid of the conversation trace: its times were counted
	// in steps of 3 s, and wander off them by a few milliseconds at most.
	mooncakeGrid  = 3 * time.Second
	mooncakeStray = 10 * time.Millisecond

	// maxBlocks bounds the different blocks of a trace: 50 times those of the
	// largest public one.
	maxBlocks = 10_000_000
)

// mooncakeRow is one line of a trace. Pointers tell what is missing from 0.
type mooncakeRow struct {
	Timestamp *int64   `json:"timestamp"` // ms
	Input     *int     `json:"input_length"`
	Output    *int     `json:"output_length"`
	Blocks    []uint64 `json:"hash_ids"`
}

// ReadMooncake reads a trace of the Mooncake collection (JSON lines; Qin et al.,
// "Mooncake", FAST 2025). Times that lie on a grid of 3 s, as those of the
// conversation trace do, are spread evenly over the 3 s that they stand for, at
// random and in the order of the file: replayed as they stand they would come in
// bursts of ten that nobody sent. The note says whether that was done. The
// leading blocks that an earlier request had too are counted as SharedTokens.
// limit bounds the rows; 0 means MaxPlan.
func ReadMooncake(in io.Reader, r *rand.Rand, limit int) (records []Record, note string, err error) {
	records, _, note, err = readMooncake(in, r, limit)
	return records, note, err
}

func readMooncake(in io.Reader, r *rand.Rand, limit int) (records []Record, texts []Text, note string, err error) {
	if limit <= 0 || limit > MaxPlan {
		limit = MaxPlan
	}
	lines := bufio.NewScanner(unmarked(in))
	lines.Buffer(make([]byte, 0, 4<<10), maxLine)
	seen := prompts{blocks: map[uint64]block{}}
	for n := 1; lines.Scan(); n++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		var row mooncakeRow
		err := json.Unmarshal(line, &row)
		switch {
		case err != nil:
		case row.Timestamp == nil || row.Input == nil || row.Output == nil:
			err = fmt.Errorf("timestamp, input_length or output_length is missing")
		case *row.Timestamp < 0 || *row.Timestamp > int64(maxOffset/time.Millisecond):
			err = fmt.Errorf("timestamp is %d ms, want 0 to %d", *row.Timestamp, maxOffset/time.Millisecond)
		case len(records) == limit:
			err = fmt.Errorf("more than %d rows", limit)
		case len(seen.blocks)+len(row.Blocks) > maxBlocks:
			err = fmt.Errorf("more than %d different blocks", maxBlocks)
		}
		if err != nil {
			return nil, nil, "", fmt.Errorf("arrivals: mooncake trace, line %d: %w", n, err)
		}
		rec := Record{Offset: time.Duration(*row.Timestamp) * time.Millisecond, Endpoint: "chat", InputTokens: *row.Input, OutputTokens: *row.Output}
		shared := 0
		shared, rec.text = seen.take(row.Blocks)
		rec.SharedTokens = max(0, min(Block*shared, rec.InputTokens))
		if err := rec.check(); err != nil {
			return nil, nil, "", fmt.Errorf("arrivals: mooncake trace, line %d: %w", n, err)
		}
		records = append(records, rec)
	}
	if err := lines.Err(); err != nil {
		return nil, nil, "", fmt.Errorf("arrivals: mooncake trace: %w", err)
	}
	sortByTime(records)
	if spread(records, r) {
		note = "their times lay on a grid of 3 s and were spread evenly over it"
	}
	return records, seen.texts, note, nil
}

// spread moves times that lie on the grid into the cells that they stand for,
// and says whether they did.
func spread(records []Record, r *rand.Rand) bool {
	cell := func(rec Record) time.Duration { return rec.Offset.Round(mooncakeGrid) }
	if len(records) < 2 || slices.ContainsFunc(records, func(rec Record) bool { return (rec.Offset - cell(rec)).Abs() > mooncakeStray }) {
		return false
	}
	for i := 0; i < len(records); {
		from, n := cell(records[i]), i
		for n < len(records) && cell(records[n]) == from {
			n++
		}
		at := make([]time.Duration, n-i)
		for k := range at {
			at[k] = from + time.Duration(r.Int64N(int64(mooncakeGrid)))
		}
		slices.Sort(at)
		for k := range at {
			records[i+k].Offset = at[k]
		}
		i = n
	}
	return true
}
