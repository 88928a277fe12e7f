package batching

import (
	"fmt"
	"time"
)

// Cell is one point of a study: every arm meets the same plans in the same world.
type Cell struct {
	World   World
	Source  *Source
	Load    float64 // offered rate as a share of the knee for these lengths
	Lasts   time.Duration
	AtLeast int      // requests in a plan, if Lasts is too short for them
	Seeds   []uint64 // of the plans that are judged
	Search  []uint64 // of those on which Tuned is searched for
	Arms    []string
}

// Run is one arm with one plan.
type Run struct {
	*Outcome
	P50, P99 time.Duration
	Lost     int // neither answered nor refused: always 0, or the arm is at fault
}

// Findings are what became of a cell.
type Findings struct {
	Rate   float64 // requests a second
	Tuned  Fixed
	Plans  []string         // hashes, of all senders of each seed
	Runs   map[string][]Run // by arm, one for each seed
	Bounds []float64        // good requests that nobody exceeds, one for each seed
}

// Rate is the offered rate, requests a second.
func (c Cell) Rate() float64 { return c.Load * c.World.Knee(c.Source.Mean) }

// Do lets all arms of the cell run.
func (c Cell) Do() (*Findings, error) {
	f := &Findings{Rate: c.Rate(), Runs: map[string][]Run{}}
	lasts := max(c.Lasts, time.Duration(float64(c.AtLeast)/f.Rate*float64(time.Second)))
	var search [][]Request
	for i, seed := range c.Search {
		long := lasts
		if i == 0 { // which all settings meet
			long -= (lasts - c.World.Warm) / 2
		}
		d, err := c.Source.Draw(f.Rate, long, seed)
		if err != nil {
			return nil, err
		}
		search = append(search, d.Requests)
	}
	if len(search) > 0 {
		before := c.World // who sets a batcher does not know that the engine will slow down
		before.SlowAt = 0
		f.Tuned = Tune(before, Grid(c.World.Target), search...)
	}
	for _, seed := range c.Seeds {
		d, err := c.Source.Draw(f.Rate, lasts, seed)
		if err != nil {
			return nil, err
		}
		f.Plans = append(f.Plans, d.Hashes...)
		f.Bounds = append(f.Bounds, float64(Bound(c.World, d.Requests)))
		w := c.World
		w.Seed = seed
		ranks := deciles(w, d.Requests)
		for _, arm := range c.Arms {
			reqs := d.Requests
			if arm == OursBlind {
				reqs = blind(reqs)
			}
			o := simulate(w, New(arm, w, f.Tuned), reqs, ranks)
			run := Run{Outcome: o, P50: o.Quantile(.5), P99: o.Quantile(.99), Lost: o.Unanswered()}
			if run.Lost > 0 {
				return nil, fmt.Errorf("%s at %.2f of the knee, %s, seed %d: %d requests were neither answered nor refused", c.Source.Name, c.Load, arm, seed, run.Lost)
			}
			o.forget()
			f.Runs[arm] = append(f.Runs[arm], run)
		}
	}
	return f, nil
}

func blind(reqs []Request) []Request {
	out := make([]Request, len(reqs))
	for i, q := range reqs {
		q.Tenant = ""
		out[i] = q
	}
	return out
}

// Each lists a figure of arm's windows, [seed][window], for Ratio.
func (f *Findings) Each(arm string, figure func(*Window) float64) [][]float64 {
	out := make([][]float64, len(f.Runs[arm]))
	for i, run := range f.Runs[arm] {
		for w := range run.Windows {
			out[i] = append(out[i], figure(&run.Windows[w]))
		}
	}
	return out
}

// Good and Offered are figures of a window.
func Good(w *Window) float64    { return float64(w.Good) }
func Offered(w *Window) float64 { return float64(w.Offered) }

// Total sums a figure of arm's runs.
func (f *Findings) Total(arm string, figure func(Run) float64) (sum float64) {
	for _, r := range f.Runs[arm] {
		sum += figure(r)
	}
	return sum
}

// Attainment of an arm over all seeds.
func (f *Findings) Attainment(arm string) Interval {
	return Ratio(f.Each(arm, Good), f.Each(arm, Offered))
}

// Over is the goodput of one arm by another's.
func (f *Findings) Over(arm, other string) Interval {
	return Ratio(f.Each(arm, Good), f.Each(other, Good))
}

// Best is the arm with the most good requests.
func (f *Findings) Best() (best string) {
	most := -1.0
	for _, arm := range Arms {
		if n := f.Total(arm, func(r Run) float64 { return float64(r.Good) }); f.Runs[arm] != nil && n > most {
			best, most = arm, n
		}
	}
	return best
}

// PerGood is replica time per good request of one arm by another's.
func (f *Findings) PerGood(arm, other string) Interval {
	return Quotient(f.Each(arm, busy), f.Each(arm, Good), f.Each(other, busy), f.Each(other, Good))
}

func busy(w *Window) float64 { return w.Busy.Seconds() }
