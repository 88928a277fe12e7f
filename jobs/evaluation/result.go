// Package evaluation says how good a model is on a set of rows: whether its
// answers are the expected ones, how well it predicts held-out text, whether its
// vectors find the right documents, how long it takes; and how far two models
// agree on the same rows. `aloft evaluate` runs it, by hand or as a job.
//
// Its result is Result, in JSON. It is what the program reports as the job's
// result, so that it stands in the job's record (jobs.Job.Result), in `aloft
// jobs show` and at GET /aloft/v1/jobs/{id}; whoever decides by it (a variant's
// promotion) decodes it with Decode, which refuses versions that it does not
// know. A field that is nil was not measured: the set has no row of that kind.
package evaluation

import (
	"encoding/json"
	"fmt"
	"time"
)

// Version is that of the results this package writes. A field that is added
// leaves it as it is; one that changes its meaning raises it.
const Version = 1

// Estimate is a figure and its 95 % interval: Wilson's for shares, a bootstrap
// over rows for means and ratios, order statistics for quantiles. Rows of one
// set vary; that another set would give another figure is not in it.
type Estimate struct {
	Value float64 `json:"value"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
	N     int     `json:"n"` // rows behind it
}

// Result is what an evaluation found.
type Result struct {
	Version   int        `json:"version"`
	Set       SetInfo    `json:"set"`
	Model     Measures   `json:"model"`
	Against   *Measures  `json:"against,omitempty"`   // the other model, on the same rows
	Agreement *Agreement `json:"agreement,omitempty"` // of the two
	Ended     time.Time  `json:"ended"`
	Seconds   float64    `json:"seconds"` // that requests took, added up over all runs of a preempted evaluation
}

// SetInfo says which rows were asked: results are comparable when SHA256 is equal.
type SetInfo struct {
	Name   string `json:"name"`
	SHA256 string `json:"sha256"` // of the file's bytes
	Rows   int    `json:"rows"`
}

// Measures are one model's.
type Measures struct {
	Name   string `json:"name"`            // as requests call it, or the candidate's file name
	Bytes  int64  `json:"bytes,omitempty"` // of a candidate's file
	Failed int    `json:"failed"`          // rows without an answer; they count as wrong, and in nothing else
	Error  string `json:"error,omitempty"` // of the first that failed

	ExactMatch  *Estimate  `json:"exact_match,omitempty"`   // share of rows with an expected answer that got it
	BitsPerByte *Estimate  `json:"bits_per_byte,omitempty"` // of held-out text; less is better, and tokenizers do not matter
	Perplexity  *Estimate  `json:"perplexity,omitempty"`    // per token: comparable between models of one tokenizer only
	Retrieval   *Retrieval `json:"retrieval,omitempty"`
	Latency     *Latency   `json:"latency,omitempty"`
}

// Retrieval says how well vectors find documents: by cosine, among all documents
// of the set, each figure a mean over queries.
type Retrieval struct {
	K         int      `json:"k"`
	Documents int      `json:"documents"`
	Recall    Estimate `json:"recall"` // share of a query's relevant documents among the first K
	MRR       Estimate `json:"mrr"`    // 1 / rank of the first relevant one
	NDCG      Estimate `json:"ndcg"`   // of the first K, gain 1 for a relevant one
}

// Latency is that of requests as the client saw them, in milliseconds. First is
// nil where nothing was streamed.
type Latency struct {
	FirstP50 *Estimate `json:"first_p50_ms,omitempty"` // to the first token
	FirstP99 *Estimate `json:"first_p99_ms,omitempty"`
	TotalP50 Estimate  `json:"total_p50_ms"`
	TotalP99 Estimate  `json:"total_p99_ms"`
}

// Agreement compares two models over the rows that both answered. Differences are
// the model's figure less the other's, paired by row: an interval that holds 0
// says that the set does not tell them apart.
type Agreement struct {
	SameText    *Estimate `json:"same_text,omitempty"`     // share of generations that are equal to the last byte
	SameFirst   *Estimate `json:"same_first,omitempty"`    // share of queries whose first document is the same
	Cosine      *Estimate `json:"cosine,omitempty"`        // mean, of the two vectors of a text; only where both have one length
	ExactMatch  *Estimate `json:"exact_match,omitempty"`   // difference
	BitsPerByte *Estimate `json:"bits_per_byte,omitempty"` // difference; above 0: the model is worse
	Recall      *Estimate `json:"recall,omitempty"`        // difference
	Total       *Estimate `json:"total_ratio,omitempty"`   // median of the model's total time / the other's
}

// Decode reads a result that some version of this package has written.
func Decode(b []byte) (Result, error) {
	var head struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(b, &head); err != nil {
		return Result{}, fmt.Errorf("evaluation result: %w", err)
	}
	if head.Version != Version {
		return Result{}, fmt.Errorf("evaluation result has version %d, want %d", head.Version, Version)
	}
	var r Result
	if err := json.Unmarshal(b, &r); err != nil {
		return Result{}, fmt.Errorf("evaluation result: %w", err)
	}
	return r, nil
}
