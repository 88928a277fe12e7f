package variants

import (
	"math"
	"slices"
	"sync"
	"time"
)

// Bounds of what is kept of a side: the newest requests, failures and compared
// answers. A side's 2048 requests are 64 KiB.
const (
	keptRequests = 2048
	keptFailures = 512
	keptAnswers  = 512
)

// Book keeps what the sides of divided models did of late. All its methods may be
// called by many goroutines.
type Book struct {
	mu    sync.Mutex
	pages map[string]*page // by model
}

// page is what is kept of a model: the sides by their names, Base among them.
type page struct {
	sides   map[string]*side
	answers map[string]*ring[answer] // of the variants
	began   map[string]time.Time     // since when a variant is compared
	fell    map[string]int           // requests that the model served in its place
}

type side struct {
	requests ring[request]
	failures ring[time.Time]
}

type request struct {
	at    time.Time
	first time.Duration // to the first content; of a whole answer, to its end
}

// answer is how alike two answers to one request were.
type answer struct {
	at    time.Time
	alike float64
	exact bool
}

// ring keeps the newest of what is put into it.
type ring[T any] struct {
	all  []T
	next int // where the next one goes once it is full
}

func (r *ring[T]) put(v T, most int) {
	if len(r.all) < most {
		r.all = append(r.all, v)
		return
	}
	r.all[r.next] = v
	r.next = (r.next + 1) % most
}

// oldest is the first that is still there, of a ring that has lost some.
func (r *ring[T]) oldest(most int) (v T, ok bool) {
	if len(r.all) < most {
		return v, false
	}
	return r.all[r.next], true
}

// NewBook returns an empty one.
func NewBook() *Book { return &Book{pages: map[string]*page{}} }

// Begin starts the comparison of a variant with its model anew.
func (b *Book) Begin(model, variant string, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.pages[model]
	if p == nil {
		p = &page{sides: map[string]*side{Base: {}}, answers: map[string]*ring[answer]{}, began: map[string]time.Time{}, fell: map[string]int{}}
		b.pages[model] = p
	}
	p.sides[variant], p.answers[variant], p.began[variant], p.fell[variant] = &side{}, &ring[answer]{}, now, 0
}

// End forgets a variant.
func (b *Book) End(model, variant string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.pages[model]
	if p == nil {
		return
	}
	delete(p.sides, variant)
	delete(p.answers, variant)
	delete(p.began, variant)
	delete(p.fell, variant)
	if len(p.began) == 0 {
		delete(b.pages, model)
	}
}

// of is a side that is compared; nil = there is none of that name.
func (b *Book) of(model, name string) *side {
	if p := b.pages[model]; p != nil {
		return p.sides[name]
	}
	return nil
}

// Served notes a request that a side has answered.
func (b *Book) Served(model, name string, at time.Time, first time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.of(model, name); s != nil {
		s.requests.put(request{at, first}, keptRequests)
	}
}

// Failed notes one that it has failed or refused.
func (b *Book) Failed(model, name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.of(model, name); s != nil {
		s.failures.put(time.Now(), keptFailures)
	}
}

// FellBack notes that the model served a request that was the variant's.
func (b *Book) FellBack(model, variant string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p := b.pages[model]; p != nil && p.sides[variant] != nil {
		p.fell[variant]++
	}
}

// Compared notes how alike the answers of a variant and its model were.
func (b *Book) Compared(model, variant string, alike float64, exact bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p := b.pages[model]; p != nil && p.answers[variant] != nil {
		p.answers[variant].put(answer{time.Now(), alike, exact}, keptAnswers)
	}
}

// Comparison is a variant beside its model, over one window of time for both.
type Comparison struct {
	Since     time.Time `json:"since"`
	Base      Numbers   `json:"base"`
	Variant   Numbers   `json:"variant"`
	FellBack  int       `json:"fell_back"` // since the comparison began: served by the model in the variant's place
	Agreement Agreement `json:"agreement"`
	Quality   *Quality  `json:"quality"` // null = nobody has evaluated it
}

// Numbers are what a side did. Latencies are to the first content, of whole
// answers to their end, as a model's target is.
type Numbers struct {
	Requests int     `json:"requests"` // answered
	Failed   int     `json:"failed"`
	P50      float64 `json:"p50_ms"`
	P90      float64 `json:"p90_ms"`
	P99      float64 `json:"p99_ms"`
}

// Errors is the share of requests that failed.
func (n Numbers) Errors() float64 {
	if n.Requests+n.Failed == 0 {
		return 0
	}
	return float64(n.Failed) / float64(n.Requests+n.Failed)
}

// Agreement is how alike answers to the same requests were: vectors by their
// cosine, texts by the share of words before the first that differs.
type Agreement struct {
	Samples int     `json:"samples"`
	Mean    float64 `json:"mean"`
	Exact   float64 `json:"exact"` // share of those that were the same
}

// Quality is what an evaluation found of both, by one measure.
type Quality struct {
	Measure string  `json:"measure"`
	Base    float64 `json:"base"`
	Variant float64 `json:"variant"`
	Lower   bool    `json:"lower_is_better,omitempty"` // of a perplexity or a loss
}

// Drop is by how much the variant is worse, as a share of the model's own value;
// below 0 = it is better.
func (q Quality) Drop() float64 {
	worse := q.Base - q.Variant
	if q.Lower {
		worse = -worse
	}
	if q.Base == 0 {
		return worse
	}
	return worse / math.Abs(q.Base)
}

// Compare sums up what happened in the window before now, or since both sides are
// known for: where a side's requests of the whole window are not kept any more,
// the other's of that time do not count either.
func (b *Book) Compare(model, variant string, now time.Time, window time.Duration) Comparison {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := Comparison{Since: now.Add(-window)}
	p := b.pages[model]
	if p == nil || p.sides[variant] == nil {
		return c
	}
	if at := p.began[variant]; at.After(c.Since) {
		c.Since = at
	}
	for _, s := range []*side{p.sides[Base], p.sides[variant]} {
		if first, full := s.requests.oldest(keptRequests); full && first.at.After(c.Since) {
			c.Since = first.at
		}
	}
	c.Base, c.Variant, c.FellBack = p.sides[Base].since(c.Since), p.sides[variant].since(c.Since), p.fell[variant]
	c.Agreement = agreement(p.answers[variant].all, c.Since)
	return c
}

func (s *side) since(from time.Time) (n Numbers) {
	var took []time.Duration
	for _, r := range s.requests.all {
		if !r.at.Before(from) {
			took = append(took, r.first)
		}
	}
	for _, at := range s.failures.all {
		if !at.Before(from) {
			n.Failed++
		}
	}
	slices.Sort(took)
	n.Requests = len(took)
	n.P50, n.P90, n.P99 = quantile(took, 0.5), quantile(took, 0.9), quantile(took, 0.99)
	return n
}

// quantile of sorted times, by nearest rank, in ms; 0 of none.
func quantile(sorted []time.Duration, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return float64(sorted[int(math.Ceil(q*float64(len(sorted))))-1]) / float64(time.Millisecond)
}

func agreement(all []answer, from time.Time) (a Agreement) {
	for _, x := range all {
		if x.at.Before(from) {
			continue
		}
		a.Samples++
		a.Mean += x.alike
		if x.exact {
			a.Exact++
		}
	}
	if a.Samples > 0 {
		a.Mean /= float64(a.Samples)
		a.Exact /= float64(a.Samples)
	}
	return a
}
