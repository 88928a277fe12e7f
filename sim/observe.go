package sim

import (
	"math"
	"time"

	"aloft/arbiter"
	"aloft/gpu"
	"aloft/sim/scenario"
)

// kinds of jobs in the arbiter's words. A file of embeddings is a batch.
var kinds = map[scenario.Kind]string{scenario.TrainJob: "train", scenario.EmbedJob: "batch", scenario.QuantizeJob: "quantize"}

// endless is how wide the backlog may grow.
const endless = 1 << 20

// p99Of is the 99 % quantile of a log-normal with median 1: exp(2.326 sigma).
func p99Of(sigma float64) float64 { return math.Exp(2.326 * sigma) }

// observe brings the observation up to date. It is asked for twice a simulated
// second: what rarely changes is kept.
func (r *engine) observe() {
	o := &r.seen
	o.Now = r.clock()
	if !r.placed {
		r.place()
	}
	if len(o.Models) == 0 {
		for i := range r.serving {
			o.Models = append(o.Models, r.describeModel(&r.serving[i]))
		}
	}
	for i := range r.serving {
		m, a := &r.serving[i], &o.Models[i]
		l := m.server.Load(r.now)
		a.Work, a.InFlight, a.P99, a.Samples = l.Work, float64(l.Waiting+l.Running), l.P99, l.Samples
		a.Useful, a.Late, a.Out = m.good, m.late, m.outP99()
		if r.world.Rows {
			a.Rows = m.rows(r.now)
		}
	}
	for i, j := range r.shown {
		r.update(j, &o.Jobs[i])
	}
}

// place lists the replicas, awake ones before the sleepers beside them.
func (r *engine) place() {
	r.placed = true
	p := r.seen.Placed[:0]
	for _, s := range r.slots {
		if s.model >= 0 {
			name := r.serving[s.model].traffic.Model.Name
			p = append(p, arbiter.Placed{Slice: s.ID, Model: name, Replica: name + "@" + s.ID, Phase: s.phase})
		}
		for i := range r.serving {
			if s.asleep&(1<<i) != 0 && s.model != i {
				name := r.serving[i].traffic.Model.Name
				p = append(p, arbiter.Placed{Slice: s.ID, Model: name, Replica: name + "@" + s.ID, Phase: arbiter.Asleep})
			}
		}
	}
	r.seen.Placed = p
}

func (r *engine) describeModel(m *served) arbiter.Model {
	t := m.traffic.Model
	tail := p99Of(t.Start.Sigma)
	needs, _ := r.needs(t.Name)
	a := arbiter.Model{Name: t.Name, Needs: needs, Min: 1, Max: most(t.Static), Slots: t.Service.Slots,
		Target: t.SLO.TTFTS.Duration(), Limits: arbiter.Limits{Static: t.Static},
		Back: times(t.Start.WakeMedianS.Duration(), tail), Cold: times(t.Start.ColdMedianS.Duration(), tail)}
	if t.Replicas.Max > 0 {
		a.Min, a.Max = t.Replicas.Min, t.Replicas.Max
	}
	if t.Service.Merged() {
		a.Slots = 0
	}
	return a
}

func times(d time.Duration, by float64) time.Duration { return time.Duration(float64(d) * by) }

// describe is what never changes of a job. How long it will run is told of files
// alone, whose rows are counted; nobody knows it of the others.
func (r *engine) describe(j *job) arbiter.Job {
	a := arbiter.Job{ID: j.ID, Kind: kinds[j.Kind], Needs: r.needsOf(j), MaxWidth: j.Slices, MinWidth: j.Slices, Tenant: "jobs",
		Created: epoch.Add(j.At), Grace: j.Grace, Restart: j.Start}
	a.Leave = j.Stop
	if j.GPUs > 0 {
		a.MaxWidth, a.MinWidth = j.GPUs, j.GPUs
	}
	if j.Grace > 0 {
		a.Save = times(j.Save.Median, p99Of(j.Save.Sigma))
		a.Leave = min(j.Grace, a.Save)
	}
	if j.backlog {
		a.MaxWidth, a.MinWidth, a.Priority, a.Queued = endless, 0, -1, a.Created
	}
	return a
}

// update is what changes.
func (r *engine) update(j *job, a *arbiter.Job) {
	a.Slices = j.held
	if j.backlog {
		a.Running, a.Unsaved = len(j.held) > 0, j.Loses
		return
	}
	for len(j.stops) > 0 && a.Created.Before(j.stops[0]) && epoch.Add(r.now).Sub(j.stops[0]) > time.Hour {
		j.stops = j.stops[1:]
	}
	a.Preempted = j.stops
	t := j.stint
	if t == nil {
		a.Queued, a.Running, a.Unsaved = epoch.Add(j.queuedAt), false, 0
		return
	}
	made, kept := t.made, j.kept
	if t.running {
		made, kept = made+r.now-t.from, kept+r.now-t.from
	}
	a.Queued, a.Running = time.Time{}, t.running || t.slots[0].phase == arbiter.Checkpoint
	switch {
	case j.LosesAll:
		a.Unsaved = kept
	case j.Grace > 0:
		a.Unsaved = kept - j.saved
	default:
		a.Unsaved = min(j.Loses, made)
	}
	if j.Kind == scenario.EmbedJob {
		a.Rest = j.Run - kept
	}
}

// device is a GPU as an inventory lists it, without its slices.
func (r *engine) device(d *device) gpu.Device {
	if r.node != nil { // without a family nobody gives it other instances
		return gpu.Device{Index: d.index, Model: r.node.Devices[d.index].Model, Health: health(!d.broken), Slices: r.deviceSlices(d), Modeled: true}
	}
	c := r.world.Scenario.Cluster
	return gpu.Device{Index: d.index, Model: c.GPUModel, Family: r.family.Name, Bytes: r.family.Bytes, MIG: true,
		Health: health(!d.broken), Slices: r.deviceSlices(d), Modeled: true}
}

// deviceSlices reuses the list that the device had.
func (r *engine) deviceSlices(d *device) []gpu.Slice {
	if old := r.seen.Devices[:cap(r.seen.Devices)]; d.index < len(old) {
		return old[d.index].Slices[:0]
	}
	return nil
}

func health(ok bool) gpu.Health {
	if ok {
		return gpu.Health{OK: true}
	}
	return gpu.Health{Reason: "XID 79: GPU fell off the bus"}
}

// geometry is a GPU as the view shows it.
func (r *engine) geometry(d *device) arbiter.GPU {
	g := arbiter.GPU{Index: d.index, Server: d.server, Family: r.family.Name, Health: health(!d.broken)}
	if d.version > 0 {
		g.Reshaped = epoch.Add(d.reshaped)
	}
	if r.node != nil {
		return g
	}
	for _, p := range r.machine.layout(d.isWhole) {
		g.Mask |= p.Mask()
	}
	return g
}

// health shows that a GPU failed or returned.
func (r *engine) health(d *device, ok bool) {
	r.seen.Devices[d.index].Health = health(ok)
	r.view.GPUs[d.index].Health = health(ok)
}

// most is how many replicas a model may have for a level that is there: a quarter
// more than its share. What stays ready for a level that may come is at most its
// share. The standard scenarios say nothing of it; an operator's replicas.max does.
func most(share int) int { return share + (share+3)/4 }
