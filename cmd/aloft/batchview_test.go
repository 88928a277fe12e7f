package main

import (
	"testing"
	"time"
)

func batchAt(id, status string, began int64, total, completed, failed int) batchObject {
	b := batchObject{ID: id, Status: status, Model: "m", InProgressAt: began}
	b.RequestCounts.Total, b.RequestCounts.Completed, b.RequestCounts.Failed = total, completed, failed
	return b
}

// The forecast counts the rows of other batches that come between: as many of
// each as ours has left, at most.
func TestBatchForecast(t *testing.T) {
	now := time.Date(2027, 1, 31, 14, 0, 0, 0, time.Local)
	began := now.Add(-100 * time.Second).Unix()
	mine := batchAt("batch_1", "in_progress", began, 1000, 290, 10)
	small, large := batchAt("batch_2", "in_progress", began, 200, 100, 0), batchAt("batch_3", "in_progress", began, 50_000, 100, 0)
	foreign := batchAt("batch_4", "in_progress", began, 500, 0, 0)
	foreign.Model = "another"
	list := []batchObject{mine, small, large, foreign, batchAt("batch_5", "completed", began, 10, 10, 0)}
	others := mine.beside(list)
	if len(others) != 2 {
		t.Fatalf("%d batches beside it, want 2", len(others))
	}
	if n := rowsBefore(mine.rest(), others); n != 700+100+700 {
		t.Errorf("%d rows before the end, want 1500", n)
	}
	if rate := meanRate(append(others, mine), now); rate != 3+1+1 {
		t.Errorf("%v rows/s, want 5", rate)
	}
	for _, tt := range []struct {
		b      batchObject
		others []batchObject
		rate   float64
		want   string
	}{
		{mine, others, 5, "5 rows/s, about 5:00 left (14:05), 800 rows of 2 other batches come between"},
		{mine, nil, 7, "7 rows/s, about 1:40 left (14:01)"},
		{mine, nil, 0, "no row has come back yet"},
		{mine, others[:1], 0, "no row has come back yet, 100 rows of 1 other batches come between"},
		{batchAt("b", "validating", 0, 0, 0, 0), nil, 0, "the file is checked first"},
		{batchAt("b", "completed", began, 5, 5, 0), nil, 9, ""},
		{mine, nil, 0.01, "0.01 rows/s, about 19:26:40 left (2027-02-01 09:26)"},
	} {
		if got := tt.b.forecast(tt.others, tt.rate, now); got != tt.want {
			t.Errorf("forecast of %s at %v/s: %q, want %q", tt.b.Status, tt.rate, got, tt.want)
		}
	}
}

// The rate is of the last minute: a long wait for a replica is forgotten, and a
// batch that joins the count begins it anew.
func TestRowRate(t *testing.T) {
	var r rowRate
	at := time.Unix(1000, 0)
	for i, tt := range []struct {
		after time.Duration
		done  int
		want  float64
	}{
		{0, 0, 0}, {2 * time.Second, 10, 0}, {4 * time.Second, 20, 5}, {time.Hour, 20, 0.0}, {time.Hour + 30*time.Second, 320, 10},
		{time.Hour + 31*time.Second, 5, 0}, {time.Hour + 41*time.Second, 105, 10},
	} {
		got := r.add(at.Add(tt.after), tt.done)
		if got < tt.want || got > tt.want+0.3 {
			t.Errorf("step %d: %v rows/s, want %v", i, got, tt.want)
		}
	}
	if len(r.points) > 4 {
		t.Errorf("%d points are kept", len(r.points))
	}
}

func TestAhead(t *testing.T) {
	now := time.Date(2027, 1, 31, 14, 0, 0, 0, time.UTC)
	for text, want := range map[string]string{
		"2h": "2027-01-31T16:00:00Z", "22:30": "2027-01-31T22:30:00Z", "13:00": "2027-02-01T13:00:00Z", "14:00": "2027-02-01T14:00:00Z",
		"2027-03-01 06:00": "2027-03-01T06:00:00Z", "2027-03-01T06:00:00+02:00": "2027-03-01T06:00:00+02:00",
	} {
		if got, err := ahead(text, now); err != nil || got.Format(time.RFC3339) != want {
			t.Errorf("%s: %v, %v; want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "soon", "-1h", "25:00"} {
		if got, err := ahead(text, now); err == nil {
			t.Errorf("%q is read as %v", text, got)
		}
	}
}
