package search

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// Schema names the layout of Answer and Curve as JSON. Adding a field keeps it.
const Schema = "aloft.search/1"

// Stop is why a search or a sweep ended.
type Stop string

// The reasons.
const (
	Found       Stop = "found"
	BelowMin    Stop = "below_min"   // not even the lowest rate holds
	AboveMax    Stop = "above_max"   // the highest rate still holds, or is open
	TimeUp      Stop = "time_up"     // the next run could pass the limit
	TriesUp     Stop = "tries_up"    // more runs than any search should need
	Broken      Stop = "generator"   // the generator failed twice at one rate
	Interrupted Stop = "interrupted" // from outside
	GaveUp      Stop = "hopeless"    // a sweep: so many points in a row are hopeless
	Drawn       Stop = "drawn"       // a sweep: the grid is through
)

// Meaning says it in words.
func (s Stop) Meaning() string {
	return map[Stop]string{
		Found:       "both ends are near enough to each other, and have all their repeats",
		BelowMin:    "no rate held: even the lowest is too much, or the server misses its targets at any load",
		AboveMax:    "no rate failed up to the highest that may be tried",
		TimeUp:      "the next run might not have ended within --limit",
		TriesUp:     "more runs than any search should need",
		Broken:      "the generator failed twice at one rate, which says nothing of the server",
		Interrupted: "ended from outside",
		GaveUp:      "several rates in a row were hopeless",
		Drawn:       "every rate of the grid was measured",
	}[s]
}

// Point is a rate and all that was tried at it.
type Point struct {
	Rate     float64 `json:"rate_per_s"`
	Verdict  Verdict `json:"verdict"`
	Reason   Reason  `json:"reason"`
	Evidence `json:"evidence"`
	Tries    []Try `json:"tries"`
}

// Head is what answers and curves have in common.
type Head struct {
	Schema     string    `json:"schema"`
	Name       string    `json:"name"`
	SLO        SLO       `json:"slo"`
	Attain     float64   `json:"attain"`
	Confidence float64   `json:"confidence"`
	Seed       uint64    `json:"seed"`
	Started    time.Time `json:"started"`
	Elapsed    float64   `json:"elapsed_s"`
	Limit      float64   `json:"limit_s"`
	Stopped    Stop      `json:"stopped"`
	// Config is the profile that was scaled, as a report of a run has it.
	Config json.RawMessage `json:"config,omitempty"`
	// Note says in words what the reader should know of how it ended.
	Note string `json:"note,omitempty"`
	// Points are in order of their rates.
	Points []Point `json:"points"`
}

// Answer is what a search found: the highest rate at which the SLO holds lies
// between Low, the highest that held, and High, the lowest that failed, with the
// confidence that was asked for. Rate is Low: the one that can be promised.
type Answer struct {
	Head
	Rate float64 `json:"rate_per_s"` // 0: none held
	Low  float64 `json:"low_per_s"`
	High float64 `json:"high_per_s"` // 0: none failed
	// Certainty is the confidence that the windows at both ends bear out, all
	// looks at them counted; 0 where an end is missing.
	Certainty float64 `json:"certainty"`
	// Agreed of Windows whole windows at the ends lay, each by itself, on the side
	// of their end.
	Agreed  int `json:"agreed"`
	Windows int `json:"windows"`
}

// Find searches. An error means that there is no answer, or that the generator
// failed (ErrGenerator); what was found until then is in the answer even so. A
// context that ends is no error: the answer says Interrupted.
func Find(ctx context.Context, o Options) (Answer, error) {
	if err := o.Validate(); err != nil {
		return Answer{}, err
	}
	o.Repeats = cmp.Or(o.Repeats, 3)
	s, err := o.searcher()
	if err != nil {
		return Answer{}, err
	}
	var points []Point
	var fail error
	stop := Stop("")
	for stop == "" {
		var rate float64
		if rate, stop = next(points, &s.Options); stop != "" {
			break
		}
		if stop = s.mayRun(ctx, rate); stop != "" {
			break
		}
		points, stop, fail = s.visit(ctx, points, rate)
	}
	points = measured(points)
	a := Answer{Head: s.head(points, stop)}
	for i := range points {
		for j := range points[i].Tries {
			points[i].Tries[j].Report = nil
		}
	}
	a.answer(points, &s.Options)
	a.Note = a.note(fail)
	return a, fail
}

// mayRun reports why no further run may begin.
func (s *searcher) mayRun(ctx context.Context, rate float64) Stop {
	switch {
	case ctx.Err() != nil:
		return Interrupted
	case s.left() < s.most(rate):
		return TimeUp
	case s.runs >= maxTries:
		return TriesUp
	}
	return ""
}

// visit does one run at a rate, and another if the generator failed in it.
func (s *searcher) visit(ctx context.Context, points []Point, rate float64) ([]Point, Stop, error) {
	at, there := slices.BinarySearchFunc(points, rate, func(p Point, r float64) int { return cmp.Compare(p.Rate, r) })
	if !there {
		points = slices.Insert(points, at, Point{Rate: rate, Verdict: Open, Reason: Unclear})
	}
	p := &points[at]
	for attempt := 0; ; attempt++ {
		t, err := s.try(ctx, rate, !s.whole && len(p.Tries) == 0)
		if ctx.Err() != nil {
			return points, Interrupted, nil
		}
		if err != nil {
			return points, Interrupted, err
		}
		p.Tries = append(p.Tries, t)
		if s.OnTry != nil {
			s.OnTry(t)
		}
		if t.Discarded == "" {
			p.pool(&s.Options)
			return points, "", nil
		}
		if p.Reason == Unclear && len(p.whole()) == 0 { // nothing better is known
			p.Reason, p.Evidence = t.Reason, t.Evidence
		}
		if attempt == 1 {
			return points, Broken, fmt.Errorf("search: run %d at %.4g/s: %w (%s); this says nothing about the server", t.Run, rate, ErrGenerator, t.Discarded)
		}
		if stop := s.mayRun(ctx, rate); stop != "" {
			return points, stop, nil
		}
	}
}

// measured leaves out the rate whose first run was ended from outside.
func measured(points []Point) []Point {
	return slices.DeleteFunc(points, func(p Point) bool { return len(p.Tries) == 0 })
}

// whole are the windows that were measured to their end.
func (p *Point) whole() (out []*Try) {
	for i := range p.Tries {
		if t := &p.Tries[i]; !t.Early && t.Discarded == "" {
			out = append(out, t)
		}
	}
	return out
}

// pool judges the rate by all its whole windows, or by one that ended early if
// there are none.
func (p *Point) pool(o *Options) {
	whole := p.whole()
	if len(whole) == 0 {
		t := p.Tries[len(p.Tries)-1]
		p.Verdict, p.Reason, p.Evidence = t.Verdict, t.Reason, t.Evidence
		return
	}
	var windows []window
	missed, unknown := 0, Reason("")
	for _, t := range whole {
		windows = append(windows, t.window)
		switch t.clauses {
		case "":
		case ClauseMiss:
			missed++
		default:
			unknown = t.clauses
		}
	}
	clauses := unknown
	switch {
	case missed == len(whole):
		clauses = ClauseMiss
	case missed > 0:
		clauses = Unclear
	}
	p.Evidence = weigh(windows, o.Attain, o.Confidence)
	p.Verdict, p.Reason = p.judge(o.alpha(len(whole)), clauses)
}

// ends are the highest rate that held below every one that failed and the lowest
// that failed above every one that held, as indices; -1 and len(points) if there
// is none. All between is open, or contradicts itself.
func ends(points []Point) (low, high int) {
	low, high = -1, len(points)
	for i := len(points) - 1; i >= 0 && points[i].Verdict != Holds; i-- {
		if points[i].Verdict == Fails {
			high = i
		}
	}
	for i := 0; i < len(points) && points[i].Verdict != Fails; i++ {
		if points[i].Verdict == Holds {
			low = i
		}
	}
	return low, high
}

// next decides where to go: the rate to run, or why to stop. Both ends are looked
// for by doubling and halving, then the wider of the gaps between them and the
// open rates is halved by logarithm. When the gaps are small, the open rates next
// to the ends and then the ends themselves get their repeats. What changes its
// verdict by them moves an end, and the search goes on from there.
func next(points []Point, o *Options) (rate float64, stop Stop) {
	if len(points) == 0 {
		return o.Start, ""
	}
	low, high := ends(points)
	if lowest := points[0].Rate; low < 0 && lowest > o.Min {
		return max(o.Min, lowest/2), ""
	}
	if highest := points[len(points)-1].Rate; high == len(points) && highest < o.Max {
		return min(o.Max, highest*2), ""
	}
	for _, i := range widest(points, low, high) {
		if points[i+1].Rate > points[i].Rate*(1+o.Resolution) {
			return math.Sqrt(points[i].Rate * points[i+1].Rate), ""
		}
	}
	for _, i := range []int{low + 1, high - 1, low, high} {
		if i >= 0 && i < len(points) && len(points[i].whole()) < o.Repeats {
			return points[i].Rate, ""
		}
	}
	switch {
	case low < 0:
		return 0, BelowMin
	case high == len(points):
		return 0, AboveMax
	}
	return 0, Found
}

// widest are the gaps next to the ends, each by the index of its lower side, the
// wider first.
func widest(points []Point, low, high int) (gaps []int) {
	if low >= 0 && low+1 < len(points) {
		gaps = append(gaps, low)
	}
	if high < len(points) && high > 0 {
		gaps = append(gaps, high-1)
	}
	width := func(i int) float64 { return points[i+1].Rate / points[i].Rate }
	slices.SortStableFunc(gaps, func(a, b int) int { return cmp.Compare(width(b), width(a)) })
	return gaps
}

func (s *searcher) head(points []Point, stop Stop) Head {
	return Head{
		Schema: Schema, Name: s.Base.Name, SLO: s.SLO, Attain: s.Attain, Confidence: s.Confidence, Seed: s.Base.Seed,
		Started: s.began.UTC().Round(0), Elapsed: seconds(time.Since(s.began)), Limit: s.Limit.Seconds(),
		Stopped: stop, Points: points, Config: s.config,
	}
}

// answer fills in what the points say.
func (a *Answer) answer(points []Point, o *Options) {
	low, high := ends(points)
	wrong, both := 0.0, 0
	for _, i := range []int{low, high} {
		if i < 0 || i == len(points) {
			continue
		}
		p := &points[i]
		both++
		switch {
		case p.Verdict == Holds:
			a.Low, a.Rate = p.Rate, p.Rate
			wrong += p.pHolds / o.weight(len(p.whole()))
		case p.Reason == ClauseMiss: // each window might as well have gone the other way, at either end
			a.High = p.Rate
			wrong += 2 * math.Pow(0.5, float64(len(p.whole())))
		default:
			a.High = p.Rate
			wrong += min(p.pFails, p.pGrows) / o.weight(len(p.whole()))
		}
		for _, t := range p.whole() {
			a.Windows++
			if (t.Verdict == Fails || t.Attainment < o.Attain) == (p.Verdict == Fails) {
				a.Agreed++
			}
		}
	}
	if both == 2 {
		a.Certainty = max(0, 1-wrong)
	}
}

// note says what the figures alone do not.
func (a *Answer) note(fail error) string {
	switch {
	case errors.Is(fail, ErrGenerator):
		return "the generator failed: the server may do more than what is shown here"
	case a.Stopped != Found:
		return a.Stopped.Meaning()
	}
	for _, p := range a.Points {
		if p.Verdict == Open && p.Reason == Remembering {
			return fmt.Sprintf("the queue remembers for about %.1f s: a longer window would decide more", p.Memory)
		}
	}
	return ""
}
