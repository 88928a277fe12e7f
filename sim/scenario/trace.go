package scenario

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sort"
	"strconv"

	"aloft/configs"
	"aloft/loadgen/arrivals"
)

// find reads a trace below the folder dir, or one that the binary holds.
func find(dir, name string) ([]byte, error) {
	if filepath.IsAbs(name) {
		return os.ReadFile(name)
	}
	if dir != "" {
		text, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(name)))
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return text, err
		}
	}
	text, err := configs.Traces.ReadFile(path.Join("traces", name))
	if err != nil {
		return nil, fmt.Errorf("trace %s: neither in the binary nor in the folder of traces, %q", name, dir)
	}
	return text, nil
}

// records reads requests in any of the formats, told by how the text begins.
// Mooncake's times, which lie on a grid of 3 s, are spread over it; the note
// says so.
func records(text []byte, seed uint64, name string) (rows []arrivals.Record, note string, err error) {
	head := text[:min(len(text), 200)]
	switch {
	case bytes.Contains(head, []byte("TIMESTAMP,")):
		rows, err = arrivals.ReadAzure(bytes.NewReader(text), 0)
	case bytes.Contains(head, []byte(`"offset_ns"`)):
		if rows, err = arrivals.Read(bytes.NewReader(text), 0); errors.Is(err, arrivals.ErrCut) {
			note, err = fmt.Sprintf("%s: the last line is cut off, as by a crash; the %d requests before it are used", name, len(rows)), nil
		}
	case bytes.Contains(head, []byte(`"timestamp"`)):
		rows, note, err = arrivals.ReadMooncake(bytes.NewReader(text), stream(seed, "spread "+name, 0), 0)
	default:
		err = errors.New("its first line is of no known format, want an Azure or Mooncake trace or a recording of aloft record")
	}
	if err == nil && len(rows) == 0 {
		err = errors.New("it has no rows")
	}
	if err != nil {
		return nil, "", fmt.Errorf("trace %s: %w", name, err)
	}
	return rows, note, nil
}

// ring is a trace whose end meets its begin with a mean gap between.
type ring struct {
	at      []float64 // s from the first row
	in, out []int32
	length  float64   // s
	work    []float64 // knee work of the rows before each, and of all
}

func newRing(rows []arrivals.Record, knee func(in, out int32) float64) (*ring, error) {
	r := &ring{work: []float64{0}}
	for _, rec := range rows {
		in, out := int32(rec.InputTokens), int32(rec.OutputTokens) // at most ten million (arrivals)
		r.at = append(r.at, (rec.Offset - rows[0].Offset).Seconds())
		r.in, r.out = append(r.in, in), append(r.out, out)
		r.work = append(r.work, r.work[len(r.work)-1]+knee(in, out))
	}
	n := float64(len(r.at))
	if n < 2 || r.at[len(r.at)-1] == 0 {
		return nil, fmt.Errorf("its %d rows have no rate", len(rows))
	}
	r.length = r.at[len(r.at)-1] * n / (n - 1)
	return r, nil
}

// total is the work of all rows.
func (r *ring) total() float64 { return r.work[len(r.work)-1] }

// upTo is the work that arrives in x seconds of a copy that begins at row first.
func (r *ring) upTo(x float64, first int) float64 {
	laps := math.Floor(x / r.length)
	end := r.at[first] + x - laps*r.length // in [at[first], at[first]+length)
	sum := laps*r.total() - r.work[first]
	if end >= r.length {
		sum += r.total()
		end -= r.length
	}
	return sum + r.work[sort.SearchFloat64s(r.at, end)]
}

// jobRow is one row of a trace of jobs.
type jobRow struct {
	at, run float64 // s
	gpus    int
	part    float64 // of one GPU, where it asks for less than one; else 0
}

// jobRows reads a trace of jobs: the Philly extract or openb's pods, of which
// those without a GPU or an end are left out.
func jobRows(text []byte, name string) ([]jobRow, error) {
	table, err := csv.NewReader(bytes.NewReader(text)).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("trace %s: %w", name, err)
	}
	if len(table) < 2 {
		return nil, fmt.Errorf("trace %s: it has no rows", name)
	}
	head := map[string]int{}
	for i, column := range table[0] {
		head[column] = i
	}
	var out []jobRow
	for n, cells := range table[1:] {
		num := func(column string) float64 {
			i, ok := head[column]
			if !ok {
				err = fmt.Errorf("there is no column %s", column)
				return 0
			}
			v, bad := strconv.ParseFloat(cells[i], 64)
			if bad != nil || math.IsNaN(v) || math.IsInf(v, 0) {
				err = fmt.Errorf("%s is %q, want a number", column, cells[i])
			}
			return v
		}
		var row jobRow
		if _, pods := head["gpu_milli"]; pods {
			if cells[head["deletion_time"]] == "" || num("num_gpu") == 0 {
				continue
			}
			row = jobRow{at: num("creation_time"), run: num("deletion_time") - num("creation_time"), gpus: int(num("num_gpu"))}
			if milli := num("gpu_milli"); row.gpus == 1 && milli < 1000 {
				row.part = milli / 1000
			}
		} else {
			row = jobRow{at: num("arrival_s"), run: num("duration_s_v100"), gpus: int(num("gpus"))}
		}
		if err != nil {
			return nil, fmt.Errorf("trace %s, row %d: %w", name, n+1, err)
		}
		out = append(out, row)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("trace %s: none of its rows is a job on a GPU with an end", name)
	}
	slices.SortStableFunc(out, func(a, b jobRow) int {
		switch {
		case a.at < b.at:
			return -1
		case a.at > b.at:
			return 1
		}
		return 0
	})
	return out, nil
}
