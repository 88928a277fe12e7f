package loadgen

import (
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Cut is the part of a workload's measured requests that have something in
// common.
type Cut struct {
	Workload string `json:"workload"`
	By       string `json:"by"`   // tenant, class, or input_tokens: a tenth of the requests by their length
	Name     string `json:"name"` // of the tenant or class; a tenth's is its range of lengths, such as 12-80
	Tally
	Attainment float64    `json:"attainment"` // ok / offered
	E2E        Quantiles  `json:"e2e"`
	TTFT       *Quantiles `json:"ttft,omitempty"`
	TPOT       *Quantiles `json:"tpot,omitempty"`
}

// The kinds of Cut.By.
const (
	byTenant = "tenant"
	byClass  = "class"
	byLength = "input_tokens"
)

// String names the cut as an assert does, without its workload.
func (c *Cut) String() string { return c.By + "=" + c.Name }

// result is the cut as a phase, for what can be asked of both: it has no rates,
// no time line, and no other distributions.
func (c *Cut) result() *Result {
	return &Result{Name: c.Workload, Tally: c.Tally, Attainment: c.Attainment, Quantiles: c.E2E, TTFT: c.TTFT, TPOT: c.TPOT}
}

// cut gathers one.
type cut struct {
	tally           Tally
	low, high       int // the shortest and the longest, of a tenth by length
	e2e, ttft, tpot packedDist
}

type packedDist struct {
	h                 *hdrhistogram.PackedHistogram
	requests, atLeast int
	max               int64
}

func (d *packedDist) add(us int64, gaveUp bool) {
	if d.h == nil {
		d.h = packed(3)
	}
	_ = d.h.RecordValue(us)
	d.max = max(d.max, us)
	d.requests++
	if gaveUp {
		d.atLeast++
	}
}

func (d *packedDist) merge(from *packedDist) {
	if from.h == nil {
		return
	}
	if d.h == nil {
		d.h = packed(3)
	}
	d.h.Merge(from.h)
	d.requests, d.atLeast, d.max = d.requests+from.requests, d.atLeast+from.atLeast, max(d.max, from.max)
}

func (d *packedDist) quantiles(offered int) Quantiles {
	out := Quantiles{LeftOut: offered - d.requests, AtLeast: d.atLeast}
	if d.h != nil {
		out.fill(d.h, d.max)
		out.Mean = d.h.Mean() / 1000
		out.HDR = &Histogram{packed: d.h}
	}
	return out
}

func (c *cut) add(s *sample, stream bool) {
	c.tally.add(s)
	if s.left() || !s.answered() && !s.gaveUp() {
		return
	}
	c.e2e.add(micros(s.latency()), s.gaveUp())
	if !stream {
		return
	}
	switch {
	case s.first > 0:
		c.ttft.add(micros(s.first-s.intended), false)
	case s.gaveUp():
		c.ttft.add(micros(s.latency()), true)
	}
	if t := s.perToken(); t > 0 && s.answered() {
		c.tpot.add(micros(t), false)
	}
}

// span widens the lengths.
func (c *cut) span(low, high int) {
	if c.low == 0 || low < c.low {
		c.low = low
	}
	c.high = max(c.high, high)
}

func (c *cut) merge(from *cut) {
	c.tally.merge(&from.tally)
	c.span(from.low, from.high)
	c.e2e.merge(&from.e2e)
	c.ttft.merge(&from.ttft)
	c.tpot.merge(&from.tpot)
}

// cuts are those of one workload, over its phases.
type cuts struct {
	w       *Workload
	tenants []cut // by index
	classes map[string]*cut
	lengths map[uint32]*cut // by length, rounded down to 1/32
}

func newCuts(w *Workload) cuts {
	return cuts{w: w, tenants: make([]cut, len(w.Tenants)), classes: map[string]*cut{}, lengths: map[uint32]*cut{}}
}

func (c *cuts) add(s *sample) {
	if s.tenant < len(c.tenants) {
		c.tenants[s.tenant].add(s, c.w.Stream)
	}
	if class := c.class(s.tenant); class != "" {
		at(c.classes, class).add(s, c.w.Stream)
	}
	// What was planned is known of failures too.
	length := s.input
	if length == 0 {
		length = s.prompt
	}
	if length > 0 {
		x := at(c.lengths, rounded(length))
		x.add(s, c.w.Stream)
		x.span(length, length)
	}
}

// class is that of a tenant, or what the workload's own header says.
func (c *cuts) class(tenant int) string {
	if tenant < len(c.w.Tenants) && c.w.Tenants[tenant].Class != "" {
		return c.w.Tenants[tenant].Class
	}
	for name, value := range c.w.Headers {
		if strings.EqualFold(name, "x-aloft-priority") {
			return value
		}
	}
	return ""
}

func at[K comparable](m map[K]*cut, key K) *cut {
	if m[key] == nil {
		m[key] = &cut{}
	}
	return m[key]
}

// rounded keeps the five bits after the first, so that there are at most some
// 900 lengths however many requests.
func rounded(n int) uint32 {
	v := uint32(min(n, 1<<31))
	drop := max(bits.Len32(v)-6, 0)
	return v >> drop << drop
}

// list is all cuts: tenants as configured, classes by name, tenths by length.
func (c *cuts) list() []Cut {
	var out []Cut
	for i := range c.tenants {
		out = append(out, c.show(byTenant, c.w.Tenants[i].Name, &c.tenants[i]))
	}
	for _, class := range slices.Sorted(maps.Keys(c.classes)) {
		out = append(out, c.show(byClass, class, c.classes[class]))
	}
	return append(out, c.tenths()...)
}

// tenths cuts the requests at the deciles of their lengths. Requests of one
// length stay together, so that there may be fewer than ten.
func (c *cuts) tenths() []Cut {
	keys := slices.Sorted(maps.Keys(c.lengths))
	total := 0
	for _, k := range keys {
		total += c.lengths[k].tally.Offered
	}
	var out []Cut
	var now cut
	seen := 0
	for i, k := range keys {
		now.merge(c.lengths[k])
		// A tenth ends where the requests so far reach the next decile.
		so, far := seen*10/max(total, 1), (seen+now.tally.Offered)*10/max(total, 1)
		if far == so && i < len(keys)-1 {
			continue
		}
		name := strconv.Itoa(now.low)
		if now.high != now.low {
			name = fmt.Sprintf("%d-%d", now.low, now.high)
		}
		seen += now.tally.Offered
		out = append(out, c.show(byLength, name, &now))
		now = cut{}
	}
	return out
}

func (c *cuts) show(by, name string, x *cut) Cut {
	out := Cut{Workload: c.w.Name, By: by, Name: name, Tally: x.tally, Attainment: share(x.tally.OK, x.tally.Offered), E2E: x.e2e.quantiles(x.tally.Offered)}
	if c.w.Stream {
		ttft, tpot := x.ttft.quantiles(x.tally.Offered), x.tpot.quantiles(x.tally.Offered)
		out.TTFT, out.TPOT = &ttft, &tpot
	}
	return out
}

func share(n, of int) float64 {
	if of == 0 {
		return 0
	}
	return float64(n) / float64(of)
}
