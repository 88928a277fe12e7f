package scenario

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

// embedOver is the part of the horizon in which embedding and quantization jobs
// are submitted.
const embedOver = 0.92

// burstSpread is how long a burst of jobs takes.
const burstSpread = 5 * time.Second

// jobs draws the jobs of the whole horizon, by time of submission.
func (s *Scenario) jobs(seed uint64, traces string) ([]Job, error) {
	if s.Jobs.OfferedLoad == 0 {
		return nil, nil
	}
	horizon := float64(s.HorizonH) * 3600
	total := s.Jobs.OfferedLoad * float64(s.Cluster.Jobs) * horizon // slice-seconds
	var all []Job
	if t := s.Jobs.Train; t.LoadShare > 0 {
		text, err := find(traces, t.Trace)
		if err != nil {
			return nil, err
		}
		rows, err := jobRows(text, t.Trace)
		if err != nil {
			return nil, err
		}
		if all, err = t.draw(rows, seed, total*t.LoadShare, horizon); err != nil {
			return nil, fmt.Errorf("trace %s: %w", t.Trace, err)
		}
	}
	all = append(all, s.Jobs.Embed.draw(seed, total*s.Jobs.Embed.LoadShare, horizon)...)
	all = append(all, s.Jobs.Quantize.draw(seed, total*s.Jobs.Quantize.LoadShare, horizon)...)
	if len(all) > maxJobs {
		return nil, fmt.Errorf("%d are needed, want at most %d", len(all), maxJobs)
	}
	slices.SortStableFunc(all, func(a, b Job) int { return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.ID, b.ID)) })
	return all, nil
}

// wide gives a job its width: whole GPUs where it is a multiple of seven.
func (j Job) wide(slices int) Job {
	if slices%SlicesPerGPU == 0 {
		j.GPUs = slices / SlicesPerGPU
	} else {
		j.Slices = slices
	}
	return j
}

// width is the number of slices of a row, 0 = the scenario does not say. A row
// that asks for part of one GPU gets that part of what one GPU gets, at least a
// slice.
func (t Train) width(row jobRow) int {
	w := t.WidthSlices[row.gpus]
	if row.part > 0 {
		w = max(1, int(math.Ceil(row.part*float64(w))))
	}
	return w
}

// nearer reports whether one more piece brings a sum nearer to the work.
func nearer(sum, piece, work float64) bool { return math.Abs(sum+piece-work) < math.Abs(sum-work) }

// draw takes consecutive rows from a random row on until the work is reached: the
// last row is taken if that is nearer than without it. Gaps between the rows that
// are taken, of skipped ones too, are stretched to their part of the horizon.
func (t Train) draw(rows []jobRow, seed uint64, work, horizon float64) ([]Job, error) {
	first := stream(seed, "train", 0).IntN(len(rows))
	lap := rows[len(rows)-1].at - rows[0].at
	var out []Job
	var at []float64
	sum, skipped := 0.0, 0
	for i := first; sum < work; i++ {
		row := rows[i%len(rows)]
		run := min(max(row.run/t.DurationDivisor, float64(t.DurationMinS)), float64(t.DurationMaxS))
		width := t.width(row)
		if width == 0 {
			return nil, fmt.Errorf("a job has %d GPUs, for which width_slices has no entry", row.gpus)
		}
		j := t.job(len(out)+1, run).wide(width)
		if j.Work() > t.LargestShare*work {
			if skipped++; skipped == len(rows) {
				return nil, fmt.Errorf("all of its jobs are larger than largest_job_share, %v, of %.0f slice-seconds", t.LargestShare, work)
			}
			continue
		}
		skipped = 0
		if !nearer(sum, j.Work(), work) {
			break
		}
		if len(out) == maxJobs {
			return nil, fmt.Errorf("more than %d jobs are needed", maxJobs)
		}
		sum += j.Work()
		at = append(at, row.at+lap*float64(i/len(rows)))
		out = append(out, j)
	}
	for i := range out {
		if span := at[len(at)-1] - at[0]; span > 0 {
			out[i].At = time.Duration((at[i] - at[0]) / span * t.OverHorizon * horizon * float64(time.Second))
		}
	}
	return out, nil
}

func (t Train) job(n int, run float64) Job {
	return Job{ID: fmt.Sprintf("train-%04d", n), Kind: TrainJob, Run: time.Duration(run * float64(time.Second)),
		Start: t.StartS.Duration(), Grace: t.GraceS.Duration(),
		Save: Save{t.CheckpointEvery.Duration(), t.CheckpointS.Duration(), t.CheckpointSigma, t.Pauses}}
}

// draw takes jobs until the work is reached. Their times are those of a Poisson
// process that had so many of them.
func (e Embed) draw(seed uint64, work, horizon float64) []Job {
	runs, times := stream(seed, "embed work", 0), stream(seed, "embed times", 0)
	var out []Job
	for sum := 0.0; sum < work; {
		run := float64(e.WorkMeanS) * math.Exp(e.WorkSigma*runs.NormFloat64()-e.WorkSigma*e.WorkSigma/2)
		j := Job{ID: fmt.Sprintf("embed-%04d", len(out)+1), Kind: EmbedJob, Run: time.Duration(run * float64(time.Second)),
			Start: e.StartS.Duration(), Stop: e.StopS.Duration(), Loses: e.LosesS.Duration()}.wide(e.WidthSlices)
		if !nearer(sum, j.Work(), work) || len(out) > maxJobs {
			break
		}
		sum += j.Work()
		out = append(out, j)
	}
	at := make([]time.Duration, len(out))
	for i := range at {
		at[i] = time.Duration(times.Float64() * embedOver * horizon * float64(time.Second))
	}
	slices.Sort(at)
	for i := range out {
		out[i].At = at[i]
	}
	return out
}

// draw takes bursts of jobs until the work is reached. Bursts come at any time of
// the same part of the horizon as embedding jobs.
func (q Quantize) draw(seed uint64, work, horizon float64) []Job {
	r := stream(seed, "quantize", 0)
	var out []Job
	for sum := 0.0; sum < work; {
		burst := time.Duration(r.Float64() * embedOver * horizon * float64(time.Second))
		for range q.BurstJobs[0] + r.IntN(q.BurstJobs[1]-q.BurstJobs[0]+1) {
			run := float64(q.WorkMeanS) * (0.5 + r.Float64())
			j := Job{ID: fmt.Sprintf("quantize-%04d", len(out)+1), Kind: QuantizeJob, At: burst + time.Duration(r.Float64()*float64(burstSpread)),
				Run: time.Duration(run * float64(time.Second)), Start: q.StartS.Duration(), Stop: q.StopS.Duration(), LosesAll: true}.wide(q.WidthSlices)
			if !nearer(sum, j.Work(), work) || len(out) > maxJobs {
				return out
			}
			sum += j.Work()
			out = append(out, j)
		}
	}
	return out
}
