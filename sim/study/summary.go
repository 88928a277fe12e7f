package study

import (
	"math"
	"slices"

	"aloft/loadgen"
	"aloft/loadgen/binomial"
	"aloft/sim"
	"aloft/sim/rivals"
)

// Stat is a figure over seeds.
type Stat struct {
	Seeds int     // that have it
	Value float64 // the mean; of a relative figure the median
	Worst float64 // of one seed
	Seed  uint64  // which
	// Interval holds the mean with loadgen.Confidence, were other seeds drawn; Open
	// with one seed.
	Interval loadgen.Interval
}

// Summary is a policy over the seeds of a variant.
type Summary struct {
	Variant, Policy string
	Seeds           int
	Stats           map[string]Stat // by the figure's name
	// Worst is the lowest attainment of a model in a seed.
	Worst ModelSeed
	// Kept, Broken and Faulted are reclaims, over all seeds.
	Kept, Broken, Faulted int
	// Models are the same for each model, in the scenario's order.
	Models []ModelSummary
	Checks int64 // invariants that were checked, over all seeds
}

// ModelSeed is a model in one seed.
type ModelSeed struct {
	Model      string
	Seed       uint64
	Attainment float64
}

// ModelSummary is one model under a policy, over seeds.
type ModelSummary struct {
	Model             string
	Requests          int // judged, all seeds
	Attainment, Worst float64
	Seed              uint64  // of the worst
	Caused, Net       float64 // per 100,000 requests, all seeds together
	Compared          bool    // with static: Caused and Net are known
	TTFT99, TPOT99    float64 // seconds, the highest of any seed
	Ready             float64 // replicas, mean
	Static            int     // share
	Hopeless          int     // requests that would miss on an idle replica too
}

// Summaries are all policies of all variants, in the order of the study.
func (s *Study) Summaries() []Summary {
	var out []Summary
	for _, v := range s.variantNames() {
		for _, p := range s.policies() {
			if sum, ok := s.summary(v, p); ok {
				out = append(out, sum)
			}
		}
	}
	return out
}

// runs are those of a policy in a variant, by seed.
func (s *Study) runs(variant, policy string) []*Run {
	var out []*Run
	for _, seed := range s.Seeds {
		if r := s.Find(variant, policy, seed); r != nil {
			out = append(out, r)
		}
	}
	return out
}

func (s *Study) world(r *Run) world {
	return world{r, s.Find(r.Variant, Static, r.Seed), s.Find(r.Variant, rivals.Pilot, r.Seed)}
}

func (s *Study) summary(variant, policy string) (Summary, bool) {
	runs := s.runs(variant, policy)
	out := Summary{Variant: variant, Policy: policy, Seeds: len(runs), Stats: map[string]Stat{}, Worst: ModelSeed{Attainment: math.Inf(1)}}
	if len(runs) == 0 {
		return out, false
	}
	for i := range figures {
		if st, ok := s.stat(&figures[i], runs); ok {
			out.Stats[figures[i].Name] = st
		}
	}
	for _, r := range runs {
		kept, broken, faulted := r.Reclaimed()
		out.Kept, out.Broken, out.Faulted = out.Kept+kept, out.Broken+broken, out.Faulted+faulted
		out.Checks += r.Checks
		if w := worst(r); r.judged() && w.Attainment < out.Worst.Attainment {
			out.Worst = ModelSeed{w.Name, r.Seed, w.Attainment}
		}
	}
	for i := range runs[0].Models {
		out.Models = append(out.Models, modelSummary(runs, i))
	}
	return out, true
}

// stat is a figure over the runs that have it.
func (s *Study) stat(f *Figure, runs []*Run) (Stat, bool) {
	var values []float64
	var out Stat
	for _, r := range runs {
		v, ok := f.of(s.world(r))
		if !ok {
			continue
		}
		if len(values) == 0 || (f.Better >= 0 && v < out.Worst) || (f.Better < 0 && v > out.Worst) {
			out.Worst, out.Seed = v, r.Seed
		}
		values = append(values, v)
	}
	if len(values) == 0 {
		return out, false
	}
	out.Seeds = len(values)
	out.Value, out.Interval = meanOf(values, loadgen.Confidence)
	if f.Relative {
		out.Value = median(values)
	}
	return out, true
}

// meanOf is the mean and its interval by Student's t.
func meanOf(values []float64, confidence float64) (float64, loadgen.Interval) {
	n := float64(len(values))
	sum, square := 0.0, 0.0
	for _, v := range values {
		sum += v
	}
	mean := sum / n
	for _, v := range values {
		square += (v - mean) * (v - mean)
	}
	if len(values) < 2 {
		return mean, loadgen.Interval{Lo: mean, Hi: mean, Open: true}
	}
	half := binomial.Student(len(values)-1, confidence) * math.Sqrt(square/(n-1)/n)
	return mean, loadgen.Interval{Lo: mean - half, Hi: mean + half}
}

func median(values []float64) float64 {
	v := slices.Sorted(slices.Values(values))
	n := len(v)
	return (v[(n-1)/2] + v[n/2]) / 2
}

func modelSummary(runs []*Run, i int) ModelSummary {
	out := ModelSummary{Model: runs[0].Models[i].Name, Static: runs[0].Models[i].Static, Worst: math.Inf(1)}
	good, gross, net, compared := 0, 0, 0, 0
	for _, r := range runs {
		m := &r.Models[i]
		out.Requests, good = out.Requests+m.Requests, good+m.Good
		out.TTFT99, out.TPOT99 = max(out.TTFT99, m.TTFT.P99), max(out.TPOT99, m.TPOT.P99)
		out.Ready += m.ReadyMean / float64(len(runs))
		out.Hopeless += m.Hopeless
		if m.Attainment < out.Worst {
			out.Worst, out.Seed = m.Attainment, r.Seed
		}
		if c := causedOf(r, m.Name); c != nil {
			gross, net, compared = gross+c.Gross, net+c.Net, compared+c.Requests
		}
	}
	out.Attainment = 1
	if out.Requests > 0 {
		out.Attainment = float64(good) / float64(out.Requests)
	}
	if compared > 0 {
		out.Compared = true
		out.Caused, out.Net = 1e5*float64(gross)/float64(compared), 1e5*float64(net)/float64(compared)
	}
	return out
}

func causedOf(r *Run, model string) *sim.Cause {
	for i := range r.Caused {
		if r.Caused[i].Model == model {
			return &r.Caused[i]
		}
	}
	return nil
}
