package loadgen

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// metric numbers the distributions that are kept of a phase.
type metric int

const (
	e2e metric = iota
	e2eSent
	sendLag
	ttfb
	ttfbSent
	roleChunk
	roleSent
	ttft
	ttftSent
	visible
	visibleSent
	tpot
	itl
	chunkGap
	lateness
	metrics // how many there are
)

// metricNames are what asserts, CSV files, comparisons and tables call them, and
// what each one is.
var metricNames = [metrics]struct{ name, what string }{
	e2e:         {"e2e", "intended start to the end of the answer"},
	e2eSent:     {"e2e_sent", "the same from the actual send"},
	sendLag:     {"lag", "intended start to the actual send: the generator's own delay"},
	ttfb:        {"ttfb", "intended start to the first byte of the answer"},
	ttfbSent:    {"ttfb_sent", "the same from the actual send"},
	roleChunk:   {"role", "intended start to the first chunk of a stream, be it empty"},
	roleSent:    {"role_sent", "the same from the actual send"},
	ttft:        {"ttft", "intended start to the first content, reasoning or tool argument"},
	ttftSent:    {"ttft_sent", "the same from the actual send"},
	visible:     {"visible", "intended start to the first content that a reader sees"},
	visibleSent: {"visible_sent", "the same from the actual send"},
	tpot:        {"tpot", "(last token - first token) / (tokens - 1), one figure a request"},
	itl:         {"itl", "gap between reads / tokens it brought, once for each token"},
	chunkGap:    {"gap", "gap between reads that brought content, one figure a read"},
	lateness:    {"lateness", "worst token against an even playback from the first token"},
}

// Metrics names the distributions of a Result, headline first.
func Metrics() []string {
	out := make([]string, metrics)
	for m := range metricNames {
		out[m] = metricNames[m].name
	}
	return out
}

// Meanings says of each of Metrics what it is.
func Meanings() map[string]string {
	out := map[string]string{}
	for _, m := range metricNames {
		out[m.name] = m.what
	}
	return out
}

// dist is one distribution while the run goes on.
type dist struct {
	h        *hdrhistogram.Histogram // microseconds; nil until the first value
	requests int                     // that have values in it
	atLeast  int                     // of those: given up, so that the value is their age then
	coarse   [len(coarseBounds) + 1]int64
	sum, max int64     // microseconds; to find them in h takes as long as all quantiles
	shown    Quantiles // as of the last snapshot
}

// coarseBounds are what Coarse counts by: they double from 62.5 us to 65.5 s.
var coarseBounds = func() (out [21]float64) {
	for i := range out {
		out[i] = float64(int64(62500)<<i) / 1e9
	}
	return out
}()

// CoarseBounds are the upper ends of Coarse's counts, in seconds; the last count
// has none.
func CoarseBounds() []float64 { return slices.Clone(coarseBounds[:]) }

// coarsely is the index of the first bound that a duration does not exceed.
func coarsely(us int64) int {
	return min(bits.Len64(uint64(max(2*us-1, 0))/125), len(coarseBounds))
}

// Coarse is a distribution as what watches a run reads it: in few buckets.
type Coarse struct {
	Counts []int64 // by CoarseBounds, of each what is above the bound before
	Sum    float64 // seconds
}

// histogram counts microseconds up to the longest possible request (timeout
// plus drain) with three significant digits: 0.1 %.
func histogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, (maxTimeout + maxDrain).Microseconds(), 3)
}

// packed is a histogram for the many small sets of a run, with so many
// significant digits.
func packed(digits int) *hdrhistogram.PackedHistogram {
	return hdrhistogram.NewPacked(1, (maxTimeout + maxDrain).Microseconds(), digits)
}

// add enters n equal durations of one request; one outside the range at its end.
func (d *dist) add(took time.Duration, n int64) {
	if d.h == nil {
		d.h = histogram()
	}
	us := micros(took)
	_ = d.h.RecordValues(us, n)
	d.coarse[coarsely(us)] += n
	d.sum, d.max = d.sum+us*n, max(d.max, us)
}

// one enters the only duration of a request.
func (d *dist) one(took time.Duration, gaveUp bool) {
	d.add(took, 1)
	d.requests++
	if gaveUp {
		d.atLeast++
	}
}

func micros(d time.Duration) int64 {
	return min(max(d.Microseconds(), 0), (maxTimeout + maxDrain).Microseconds())
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// Quantiles of a distribution, by the nearest rank, in milliseconds; all 0
// without values. Beside them stands what they leave out, since a figure over the
// answered alone makes a server look quicker the more it fails to answer.
type Quantiles struct {
	N       int64   `json:"n"`        // values: one a request, or for itl one a token and for gap one a read
	LeftOut int     `json:"left_out"` // requests of those offered that have no value here
	AtLeast int     `json:"at_least"` // requests that were given up: their age then stands for a longer time
	Mean    float64 `json:"mean_ms"`
	P50     float64 `json:"p50_ms"`
	P90     float64 `json:"p90_ms"`
	P95     float64 `json:"p95_ms"`
	P99     float64 `json:"p99_ms"`
	P999    float64 `json:"p999_ms"`
	Max     float64 `json:"max_ms"`
	// HDR is the whole distribution; nil in snapshots and without values.
	HDR *Histogram `json:"hdr,omitempty"`
	// Coarse is the same for who watches; nil but in snapshots.
	Coarse *Coarse `json:"-"`
}

// quantiles of the values so far, of offered requests.
func (d *dist) quantiles(offered int, whole bool) Quantiles {
	if d.h != nil && d.h.TotalCount() != d.shown.N {
		d.shown.fill(d.h, d.max)
		d.shown.Mean = float64(d.sum) / float64(d.shown.N) / 1000
	}
	out := d.shown
	out.LeftOut, out.AtLeast = offered-d.requests, d.atLeast
	switch {
	case d.h == nil:
	case whole:
		out.HDR = &Histogram{h: d.h}
	default:
		out.Coarse = &Coarse{slices.Clone(d.coarse[:]), float64(d.sum) / 1e6}
	}
	return out
}

// counts is what the two kinds of histogram have in common.
type counts interface {
	TotalCount() int64
	ValueAtPercentilesSlice([]float64) []int64
}

// fill sets what can be read off quickly. A quantile is the upper end of its
// bucket, which may be 0.1 % above the greatest value, most microseconds: none is
// shown to be.
func (q *Quantiles) fill(h counts, most int64) {
	q.N = h.TotalCount()
	at := h.ValueAtPercentilesSlice(percentiles(q.N, 0.5, 0.9, 0.95, 0.99, 0.999))
	us := func(v int64) float64 { return float64(min(v, most)) / 1000 }
	q.P50, q.P90, q.P95, q.P99, q.P999, q.Max = us(at[0]), us(at[1]), us(at[2]), us(at[3]), us(at[4]), us(most)
}

// percentiles are what a histogram of n values has to be asked for the quantiles
// by the nearest rank: each is the least value that at least its share does not
// exceed. Asked for a share itself it rounds the rank, and p99 of 60 is the 59th.
func percentiles(n int64, shares ...float64) []float64 {
	out := make([]float64, len(shares))
	for i, q := range shares {
		out[i] = 100 * math.Ceil(q*float64(n)-1e-9) / float64(max(n, 1))
	}
	return out
}

// At is the quantile of that name (mean, p50, p90, p95, p99, p999, max), in
// milliseconds.
func (q *Quantiles) At(name string) (float64, bool) {
	switch name {
	case "mean":
		return q.Mean, true
	case "p50":
		return q.P50, true
	case "p90":
		return q.P90, true
	case "p95":
		return q.P95, true
	case "p99":
		return q.P99, true
	case "p999":
		return q.P999, true
	case "max":
		return q.Max, true
	}
	return 0, false
}

// Histogram is a whole distribution. As text it is HdrHistogram's compressed
// base64 form of microseconds (V2), which other tools read too.
type Histogram struct {
	h *hdrhistogram.Histogram
	// packed stands for h where it is nil: a report may have a thousand cuts, whose
	// whole histograms would take 200 KB each.
	packed *hdrhistogram.PackedHistogram
}

// whole is the histogram, made of a packed one each time.
func (h *Histogram) whole() *hdrhistogram.Histogram {
	if h.h != nil {
		return h.h
	}
	out := histogram()
	h.packed.MergeInto(out)
	return out
}

// MarshalText implements encoding.TextMarshaler.
func (h *Histogram) MarshalText() ([]byte, error) {
	text, err := h.whole().Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	if err != nil {
		return nil, fmt.Errorf("loadgen: encode histogram: %w", err)
	}
	return text, nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (h *Histogram) UnmarshalText(text []byte) (err error) {
	if h.h, err = hdrhistogram.Decode(text); err != nil {
		return fmt.Errorf("loadgen: decode histogram: %w", err)
	}
	return nil
}

// N is the number of values.
func (h *Histogram) N() int64 {
	if h.h == nil {
		return h.packed.TotalCount()
	}
	return h.h.TotalCount()
}

// Quantile is the value at q (0 to 1) by the nearest rank, in milliseconds.
func (h *Histogram) Quantile(q float64) float64 {
	return float64(h.whole().ValueAtPercentile(percentiles(h.N(), q)[0])) / 1000
}

// Bucket is a stretch [From, To] of a distribution, in milliseconds.
type Bucket struct {
	From, To float64
	Count    int64
}

// Buckets lists the buckets that have values, in order.
func (h *Histogram) Buckets() []Bucket {
	var out []Bucket
	for _, bar := range h.whole().Distribution() {
		if bar.Count > 0 {
			out = append(out, Bucket{float64(bar.From) / 1000, float64(bar.To) / 1000, bar.Count})
		}
	}
	return out
}
