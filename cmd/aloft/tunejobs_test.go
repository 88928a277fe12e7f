package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"aloft/loadgen/arrivals"
	"aloft/sim/scenario"
)

// mixedNode has an embedding model on 1g slices, and one on the 3g slice that is asked
// next to nothing.
const mixedNode = `
node: {devices: simulated, simulated: [{family: A100-80GB, layout: [3g.40gb, 1g.10gb, 1g.10gb, 1g.10gb]}]}
models:
  - {name: e, engine: synthetic, endpoints: [embeddings], shape: 1g.10gb, replicas: {min: 1, max: 2}, target: 1s, law: {alpha: 5ms, beta: 500us}, batch: {max_tokens: 512}}
  - {name: f, engine: synthetic, endpoints: [embeddings], shape: 3g.40gb, replicas: {min: 0, max: 1}, target: 1s, law: {alpha: 5ms, beta: 500us}, batch: {max_tokens: 512}}
`

// TestTuneJobs: the jobs that were recorded are replayed at their times, on slices of
// the node's own shapes. In a static split the model on 3g keeps the slice that one of
// them needs.
func TestTuneJobs(t *testing.T) {
	var text strings.Builder
	w := arrivals.NewWriter(&text)
	for s := range 7200 {
		for _, r := range []arrivals.Record{{Model: "e", InputTokens: 50}, {Model: "f", InputTokens: 10}} {
			r.Offset, r.Endpoint = time.Duration(s)*time.Second, "embeddings"
			if r.Model == "f" && (s < 3600 || s > 3605) && s > 5 {
				continue
			}
			if err := w.Write(r); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	at := time.Date(2027, 1, 31, 15, 10, 0, 0, time.UTC).Unix() // 5 min into the replayed hour
	job := func(id, kind, shape string, created, ran int64) string {
		return fmt.Sprintf(`{"id":%q,"kind":%q,"state":"succeeded","shape":%q,"created_at":%d,"started_at":%d,"finished_at":%d,"ran_seconds":%d}`, id, kind, shape, created, created+1, created+1+ran, ran)
	}
	jobs := write(t, "jobs.json", `{"data":[`+strings.Join([]string{
		job("job_a", "command", "3g.40gb", at, 600), job("job_b", "command", "1g.10gb", at, 60),
		job("job_c", "command", "7g.80gb", at, 60),       // this node has none as large
		job("job_d", "command", "1g.10gb", at-7200, 600), // over before
	}, ",")+`]}`)
	out, err := tuneWith(t, text.String(), func(c *tuneCmd) {
		c.JSON, c.Jobs, c.Config = true, jobs, write(t, "mixed.yaml", mixedNode)
	})
	if err != nil {
		t.Fatal(err)
	}
	var got tuning
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if got.Jobs != 2 || got.LeftOut != 1 || !strings.Contains(got.Modelled, "the 2 jobs that were recorded") {
		t.Errorf("%d jobs, %d left out: %s", got.Jobs, got.LeftOut, got.Modelled)
	}
	// Both jobs' progress, in compute slices, but for their starts (30 s and 6 s).
	static, now := got.Runs[0], got.Runs[1]
	if all := (3*(600-30) + (60 - 6)) / 3600.; now.LentH < all-0.001 || now.LentH > all+0.001 || static.LentH > now.LentH/2 {
		t.Errorf("lending, jobs made %.4f slice-h of progress, want %.4f; %.4f in a static split", now.LentH, all, static.LentH)
	}
	if static.Queued < 1000 || now.Queued > static.Queued/2 {
		t.Errorf("jobs wait for %.0f s, and for %.0f s in a static split, where one is never done", now.Queued, static.Queued)
	}
}

// What of a recorded job is replayed.
func TestReplayed(t *testing.T) {
	from := time.Unix(10_000, 0)
	to := from.Add(time.Hour)
	when := func(created, started, finished float64) jobWhen {
		return jobWhen{Created: created, Started: started, Finished: finished}
	}
	for _, c := range []struct {
		name     string
		job      tuneJob
		ok       bool
		at, run  time.Duration
		kind     scenario.Kind
		losesAll bool
	}{
		{"its runs, without the queue", tuneJob{Kind: "command", Ran: 100, jobWhen: when(10_060, 10_100, 10_500)}, true, time.Minute, 90 * time.Second, scenario.QuantizeJob, true},
		{"one run", tuneJob{Kind: "command", jobWhen: when(10_060, 10_100, 10_400)}, true, time.Minute, 270 * time.Second, scenario.QuantizeJob, true},
		{"a half that was done", tuneJob{Kind: "command", Ran: 100, jobWhen: when(10_060, 10_100, 0), Progress: jobProgress{Done: 5, Total: 10}}, true, time.Minute, 180 * time.Second, scenario.QuantizeJob, true},
		{"rows", tuneJob{Kind: "batch", Ran: 50, jobWhen: when(10_060, 10_100, 10_150)}, true, time.Minute, 45 * time.Second, scenario.EmbedJob, false},
		{"it saves", tuneJob{Kind: "train", Ran: 1000, Grace: 30, jobWhen: when(10_060, 10_100, 11_100), Progress: jobProgress{CheckpointAt: 11_000}}, true, time.Minute, 970 * time.Second, scenario.TrainJob, false},
		{"the rest of one that came before", tuneJob{Kind: "command", Ran: 500, jobWhen: when(9_000, 9_700, 10_200)}, true, 0, 180 * time.Second, scenario.QuantizeJob, true},
		{"over before", tuneJob{Kind: "command", Ran: 500, jobWhen: when(9_000, 9_400, 9_900)}, false, 0, 0, "", false},
		{"after", tuneJob{Kind: "command", Ran: 500, jobWhen: when(14_000, 14_400, 14_900)}, false, 0, 0, "", false},
		{"never ran", tuneJob{Kind: "command", jobWhen: when(10_060, 0, 0)}, false, 0, 0, "", false},
		{"a shell", tuneJob{Kind: "session", Ran: 500, jobWhen: when(10_060, 10_100, 10_600)}, false, 0, 0, "", false},
	} {
		j, ok := c.job.replayed(from, to)
		if ok != c.ok || j.At != c.at || j.Run != c.run || j.Kind != c.kind || j.LosesAll != c.losesAll {
			t.Errorf("%s: %v, at %v for %v, %s, loses all: %v; want %v, %v, %v, %s, %v", c.name, ok, j.At, j.Run, j.Kind, j.LosesAll, c.ok, c.at, c.run, c.kind, c.losesAll)
		}
	}
}

// A node is rebuilt from what a server says of it.
func TestDevicesOf(t *testing.T) {
	s := &Status{Devices: []DeviceStatus{{Index: 0, Model: "NVIDIA H100 80GB HBM3"}, {Index: 1, Model: "NVIDIA L40S"}},
		Slices: []SliceStatus{{ID: "g0/s0", Shape: "3g.40gb"}, {ID: "g0/s1", Shape: "1g.10gb"}, {ID: "g1/s0", Shape: "full"}}}
	d, err := devicesOf(s)
	if err != nil || len(d) != 2 || len(d[0].Slices) != 2 || d[0].Family != "H100-80GB" || d[0].Slices[0].Shape.ComputeSlices != 3 || d[0].Slices[1].Start != 1 || d[1].Slices[0].Shape.ComputeSlices != 7 {
		t.Errorf("devices %+v, %v", d, err)
	}
	s.Slices[0].Shape = "9g.1gb"
	if _, err := devicesOf(s); err == nil || !strings.Contains(err.Error(), `no MIG tables have "9g.1gb"`) {
		t.Errorf("error %v", err)
	}
}
