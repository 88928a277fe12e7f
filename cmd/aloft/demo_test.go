package main

import (
	"strings"
	"testing"

	"aloft/arbiter"
)

// perfect is a report that keeps every promise of the demo.
func perfect() demoReport {
	return demoReport{
		Interactive: []demoInteractive{{Model: "a", Phase: "steady", Offered: 100, OK: 100}, {Model: "a", Phase: "burst", Offered: 100, OK: 98, Late: 2}},
		Batch:       demoBatch{Rows: 10, OK: 10},
		Training:    demoTraining{Steps: 5, Identical: true},
		Arbiter:     ArbiterStatus{Loans: 1, Reclaims: 1},
		Ledger:      arbiter.Balance{Total: 10, Share: map[arbiter.Account]float64{arbiter.JobUseful: 0.4, arbiter.WarmReserve: 0.6}},
	}
}

func TestDemoJudge(t *testing.T) {
	for _, tc := range []struct {
		name  string
		spoil func(*demoReport)
		fast  bool
		want  string // "" = no problem
	}{
		{"perfect", func(*demoReport) {}, false, ""},
		{"late", func(r *demoReport) { r.Interactive[1].OK = 97 }, false, "attainment of a is 98.50%"},
		{"late, fast", func(r *demoReport) { r.Interactive[1].OK = 97 }, true, ""},
		{"failed", func(r *demoReport) { r.Interactive[0].Failed = 1 }, false, "1 interactive requests of a failed"},
		{"row missing", func(r *demoReport) { r.Batch.OK, r.Batch.Missing = 9, 1 }, true, "1 missing"},
		{"row twice", func(r *demoReport) { r.Batch.Duplicated = 1 }, true, "1 doubled"},
		{"weights differ", func(r *demoReport) { r.Training.Identical = false }, true, "weights"},
		{"nothing lent", func(r *demoReport) { r.Arbiter.Loans = 0 }, true, "0 loans"},
		{"nothing reclaimed", func(r *demoReport) { r.Arbiter.Reclaims = 0 }, true, "0 reclaims"},
		{"invariant", func(r *demoReport) { r.Arbiter.Violations = 2 }, true, "2 invariants"},
		{"ledger", func(r *demoReport) { r.Ledger.Share[arbiter.WarmReserve] = 0.5 }, true, "does not sum"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := &demo{demoCmd: &demoCmd{Fast: tc.fast}, report: perfect()}
			tc.spoil(&d.report)
			d.judge()
			got := strings.Join(d.report.Problems, "; ")
			if (tc.want == "") != (got == "") || !strings.Contains(got, tc.want) {
				t.Errorf("problems %q, want %q", got, tc.want)
			}
		})
	}
}

func TestScreen(t *testing.T) {
	room := 0.5
	got := screen(Status{
		Devices: []DeviceStatus{{Model: "A100-80GB", Healthy: true, Modelled: true}},
		Slices:  []SliceStatus{{ID: "g0/s0", Shape: "1g.10gb", Phase: "job_runs", Model: "m", Job: "job_123abcdef0"}, {ID: "g0/s1", Shape: "1g.10gb", Phase: "loading", To: "m", Moving: true}},
		Models: []ModelStatus{{Name: "m", Fast: 1, Have: 2, Headroom: &room, P99: 50, Target: 100, Queue: map[string]int{"offline": 3}, Eta: 0.5, Batching: BatchStatus{
			Rows: 12.5, Oldest: map[string]float64{"interactive": 41.6}, Sent: map[string]uint64{"knee": 4, "idle": 1}, Drops: map[string]uint64{"predicted_late": 7},
			Fits: []FitStatus{{Shape: "1g.10gb", Alpha: 6, Beta: 10, Margin: 1.08, Padded: true, Knee: 3400, Largest: 6800, Rate: 92000}}}}},
		Jobs:   []JobStatus{{ID: "job_123abcdef0", Kind: "train", State: "running", Done: 1, Total: 2}},
		Ledger: perfect().Ledger,
	})
	for _, want := range []string{
		"A100-80GB (simulated: engines run on this CPU)",
		"g0/s0  1g.10gb  job_runs    job-def0  (m sleeps below)",
		"g0/s1  1g.10gb  loading     -> m",
		"50% ##..",
		"m              1g.10gb (pads)    6.00 ms     10.0 us   1.08   3400    6800    92000   12.5  0.50",
		"  oldest interactive request waits 42 ms\n",
		"  calls: idle 1 knee 4\n",
		"  dropped: predicted_late 7\n",
		"job-def0   train     running    ######...... 1/2",
		"warm_reserve 60%, job_useful 40%",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("screen lacks %q:\n%s", want, got)
		}
	}
}
