package arrivals

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"
)

// azureTime is the time format of the Azure LLM inference traces: UTC, with
// digits down to 100 ns.
const azureTime = "2006-01-02 15:04:05.9999999"

var azureHeader = []string{"TIMESTAMP", "ContextTokens", "GeneratedTokens"}

// ReadAzure reads an Azure LLM inference trace of 2023 (CSV; Patel et al.,
// "Splitwise", ISCA 2024). Offsets count from the first row. The trace names
// neither endpoint nor tenant; its rows are called chat. limit bounds the rows;
// 0 means MaxPlan.
func ReadAzure(r io.Reader, limit int) ([]Record, error) {
	if limit <= 0 || limit > MaxPlan {
		limit = MaxPlan
	}
	rows := csv.NewReader(unmarked(r))
	rows.FieldsPerRecord = len(azureHeader)
	rows.ReuseRecord = true
	if head, err := rows.Read(); err != nil {
		return nil, fmt.Errorf("arrivals: azure trace, header: %w", err)
	} else if !slices.Equal(head, azureHeader) {
		return nil, fmt.Errorf("arrivals: azure trace has columns %q, want %q", head, azureHeader)
	}
	var records []Record
	var first time.Time
	for {
		row, err := rows.Read()
		if errors.Is(err, io.EOF) {
			sortByTime(records)
			return records, nil
		}
		if err != nil {
			return nil, fmt.Errorf("arrivals: azure trace: %w", err)
		}
		line, _ := rows.FieldPos(0)
		if len(records) == limit {
			return nil, fmt.Errorf("arrivals: azure trace, line %d: more than %d rows", line, limit)
		}
		at, err := time.Parse(azureTime, row[0])
		if err != nil {
			return nil, fmt.Errorf("arrivals: azure trace, line %d: %w", line, err)
		}
		if len(records) == 0 {
			first = at
		}
		rec := Record{Offset: at.Sub(first), Endpoint: "chat"}
		if rec.InputTokens, err = strconv.Atoi(row[1]); err == nil {
			rec.OutputTokens, err = strconv.Atoi(row[2])
		}
		if err == nil {
			err = rec.check()
		}
		if err != nil {
			return nil, fmt.Errorf("arrivals: azure trace, line %d: %w", line, err)
		}
		records = append(records, rec)
	}
}
