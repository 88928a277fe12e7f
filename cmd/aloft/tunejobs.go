package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"aloft/gpu"
	"aloft/gpu/simulated"
	"aloft/sim"
	"aloft/sim/scenario"
)

// tuneJob is what is read of a job that was recorded: the object of /aloft/v1/jobs.
type tuneJob struct {
	ID, Kind, State, Shape string

	MinWidth int     `json:"min_width"`
	MaxWidth int     `json:"max_width"`
	Grace    float64 `json:"grace_seconds"`
	Expected float64 `json:"expected_seconds"`
	Ran      float64 `json:"ran_seconds"`
	jobWhen
	Progress jobProgress
}

// jobsPage is one page of them.
type jobsPage struct {
	Data []tuneJob
	More bool   `json:"has_more"`
	Last string `json:"last_id"`
}

// recorded lists the jobs that a file, or else the running server, knows.
func (c *tuneCmd) recorded(ctx context.Context) ([]tuneJob, error) {
	if c.Jobs != "" {
		text, err := os.ReadFile(c.Jobs)
		var page jobsPage
		if err == nil {
			err = json.Unmarshal(text, &page)
		}
		if err != nil {
			return nil, fmt.Errorf("--jobs %s: want what aloft jobs list --json says: %w", c.Jobs, err)
		}
		return page.Data, nil
	}
	var all []tuneJob
	after := ""
	for more := true; more && len(all) < searched; {
		var page jobsPage
		if c.client().call(ctx, http.MethodGet, "/aloft/v1/jobs?limit=1000"+after, nil, &page) != nil {
			return nil, nil // without a server nobody knows
		}
		all = append(all, page.Data...)
		more, after = page.More, "&after="+url.QueryEscape(page.Last)
	}
	return all, nil
}

// At most so long a job of the standard scenarios starts, writes a checkpoint and
// stops, and so often it saves: none of it is recorded.
const (
	tuneBatchStart = 10 * time.Second
	tuneStart      = 30 * time.Second
	tuneSaves      = 10 * time.Minute
	tuneSaveTakes  = 20 * time.Second
	tuneStop       = 500 * time.Millisecond
	tuneLoses      = 5 * time.Second // of a batch: rows under way
)

// replayed is a job as the simulator plays it from a moment on; false = it was over, or
// had not come, or never ran, so that nobody knows how long it takes.
func (j *tuneJob) replayed(from, to time.Time) (scenario.Job, bool) {
	moment := func(s float64) time.Time { return time.UnixMilli(int64(1000 * s)) }
	run := time.Duration(j.Ran * float64(time.Second))
	if run == 0 && j.Started > 0 && j.Finished > j.Started { // one run to the end
		run = moment(j.Finished).Sub(moment(j.Started))
	}
	if p := j.Progress; j.Finished == 0 && p.Done > 0 && p.Total > p.Done {
		run = time.Duration(float64(run) * float64(p.Total) / float64(p.Done))
	}
	run = max(run, time.Duration(j.Expected*float64(time.Second)))
	created := moment(j.Created)
	if run <= 0 || j.Kind == "session" || !created.Before(to) || j.Finished > 0 && !moment(j.Finished).After(from) {
		return scenario.Job{}, false
	}
	if j.Finished > 0 && created.Before(from) { // what was left of it at most
		run = min(run, moment(j.Finished).Sub(from))
	}
	out := scenario.Job{ID: j.ID, At: max(0, created.Sub(from)), Kind: scenario.QuantizeJob, LosesAll: true, Stop: tuneStop,
		Slices: max(1, j.MinWidth, j.MaxWidth), Start: min(tuneStart, run/10)}
	grace := time.Duration(j.Grace * float64(time.Second))
	switch {
	case j.Kind == "batch":
		out.Kind, out.LosesAll, out.Loses, out.Start = scenario.EmbedJob, false, tuneLoses, min(tuneBatchStart, run/10)
	case j.Progress.CheckpointAt > 0 && grace > 0:
		out.Kind, out.LosesAll, out.Grace = scenario.TrainJob, false, grace
		out.Save = scenario.Save{Every: tuneSaves, Median: min(tuneSaveTakes, grace/2), Sigma: 0.25, Pauses: true}
	}
	out.Run = run - out.Start
	return out, true
}

// queue puts the recorded jobs in the place of the queue that never ends. from is when
// the replayed hours began; zero = nobody knows.
func (t *tuning) queue(all []tuneJob, from time.Time) {
	if from.IsZero() {
		return
	}
	var list []scenario.Job
	for i := range all {
		j, ok := all[i].replayed(from, from.Add(t.world.Horizon))
		if !ok {
			continue
		}
		shape, err := shapeOn(t.node.Devices, all[i].Shape)
		if err != nil { // it could not run here
			t.LeftOut++
			continue
		}
		j.Slices = min(j.Slices, room(t.node.Devices, shape))
		t.node.Jobs[j.ID] = shape
		list = append(list, j)
	}
	if len(list) == 0 {
		return
	}
	slices.SortStableFunc(list, func(a, b scenario.Job) int { return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.ID, b.ID)) })
	t.Jobs, t.world.Jobs, t.world.Backlog = len(list), list, nil
}

// tuneNode is the machine as a running server shows it, else as it is configured.
func tuneNode(ctx context.Context, conf *Config, status *Status) (*sim.Node, error) {
	n := &sim.Node{Models: map[string]gpu.Shape{}, Jobs: map[string]gpu.Shape{}}
	var err error
	if len(status.Slices) > 0 {
		n.Devices, err = devicesOf(status)
	} else {
		var node *simulated.Node
		if node, err = simulated.New(conf.simulated()); err == nil {
			n.Devices, err = node.List(ctx)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("tune: the node: %w", err)
	}
	for _, m := range conf.Models {
		if n.Models[m.Name], err = shapeOn(n.Devices, m.Shape); err != nil {
			return nil, fmt.Errorf("tune: model %s: %w", m.Name, err)
		}
	}
	return n, nil
}

// devicesOf rebuilds the devices of a status, whose slices have no places: they are
// put side by side.
func devicesOf(status *Status) ([]gpu.Device, error) {
	out := make([]gpu.Device, len(status.Devices))
	at := map[string]int{} // by gN
	for i, d := range status.Devices {
		out[i] = gpu.Device{Index: i, Model: d.Model}
		at[fmt.Sprintf("g%d", d.Index)] = i
	}
	for _, s := range status.Slices {
		g, _, _ := strings.Cut(s.ID, "/")
		i, ok := at[g]
		if !ok {
			return nil, fmt.Errorf("slice %s is on no GPU of the status", s.ID)
		}
		shape, family, err := shapeBy(out[i].Model, s.Shape)
		if err != nil {
			return nil, err
		}
		d := &out[i]
		d.Family = family
		d.Slices = append(d.Slices, gpu.Slice{ID: s.ID, GPU: i, Start: len(d.Slices), Shape: shape})
	}
	return out, nil
}

// shapeBy finds a profile in the tables of a product, else in the first that have it.
func shapeBy(model, profile string) (shape gpu.Shape, family string, err error) {
	if profile == gpu.Full {
		return gpu.FullShape(0), "", nil
	}
	for _, name := range gpu.Families() {
		f, _ := gpu.Lookup(name)
		s, no := gpu.ShapeOf(name, profile)
		if no != nil {
			continue
		}
		if here := gpu.FamilyOf(model, f.Bytes) == name; here || family == "" {
			shape, family = s, name
			if here {
				break
			}
		}
	}
	if family == "" {
		return shape, "", fmt.Errorf("no MIG tables have %s", strconv.Quote(profile))
	}
	return shape, family, nil
}
