package gateway

import (
	"time"

	"aloft/backends/openai"
	"aloft/gateway/variants"
)

// Variants keeps the variants of served models. Errors are those of jobs, or an
// *openai.Error to be answered as it stands.
type Variants interface {
	Variants() []VariantObject
	AddVariant(spec VariantSpec) (VariantObject, error)
	ChangeVariant(id string, change VariantChange) (VariantObject, error)
	DropVariant(id string) error
}

// VariantSpec is a variant as it is registered: what it has otherwise than its
// model. What is left out is as the model has it.
type VariantSpec struct {
	Model     string            `json:"model"`
	Name      string            `json:"name"`
	Job       string            `json:"job,omitempty"` // the quantize job that made its file
	GGUF      string            `json:"gguf,omitempty"`
	Tokenizer string            `json:"tokenizer,omitempty"`
	Command   []string          `json:"command,omitempty"`
	Env       map[string]string `json:"env,omitempty"`
	Law       *VariantLaw       `json:"law,omitempty"` // engine synthetic
	Shape     string            `json:"shape,omitempty"`
	Slots     int               `json:"slots,omitempty"`
	Memory    int64             `json:"memory,omitempty"`
	Replicas  VariantReplicas   `json:"replicas"`
	Share     float64           `json:"share"`  // of the model's requests, until it is promoted
	Shadow    float64           `json:"shadow"` // of the whole answers, asked of the other side too
	Rule      variants.Rule     `json:"rule"`
}

// VariantLaw is the timed engine's, as durations in text.
type VariantLaw struct {
	Alpha string `json:"alpha"`
	Beta  string `json:"beta"`
}

// VariantReplicas bounds a variant's replicas while it is a canary; a max of 0 is
// the model's.
type VariantReplicas struct {
	Min int `json:"min"`
	Max int `json:"max"`
}

// VariantChange is what is to be otherwise; nil = as it is.
type VariantChange struct {
	State   VariantState      `json:"-"` // promoting or rolling_back: a start; "" = none
	Share   *float64          `json:"share"`
	Shadow  *float64          `json:"shadow"`
	Rule    *variants.Rule    `json:"rule"`
	Quality *variants.Quality `json:"quality"`
	// Evaluation takes the quality of both from the result of an evaluation.
	Evaluation *VariantEvaluation `json:"evaluation"`
}

// VariantEvaluation is a job that has evaluated the variant against its model, or
// the other way round.
type VariantEvaluation struct {
	Job     string `json:"job"`
	Measure string `json:"measure"` // exact_match, bits_per_byte, perplexity or recall; "" = the first of these that it has
}

// VariantState is where a variant is on its way.
type VariantState string

// The states. Of one that is aside the model serves everything: why says what
// keeps it from serving.
const (
	VariantCanary    VariantState = "canary"
	VariantPromoting VariantState = "promoting" // its replicas start, then it takes over
	VariantPromoted  VariantState = "promoted"
	VariantRollsBack VariantState = "rolling_back" // the model's own replicas start, then they take over
	VariantAside     VariantState = "aside"
)

// VariantObject is a variant as /aloft/v1/variants shows it; times are Unix seconds.
type VariantObject struct {
	ID     string `json:"id"` // MODEL@NAME, by which it can be asked for, too
	Object string `json:"object"`
	VariantSpec
	State      VariantState        `json:"state"`
	Why        string              `json:"why,omitempty"`
	Ready      int                 `json:"ready_replicas"`
	BaseReady  int                 `json:"base_ready_replicas"`
	Comparison variants.Comparison `json:"comparison"`
	Verdict    variants.Verdict    `json:"verdict"`
	Gain       VariantGain         `json:"gain"`
	Created    int64               `json:"created_at"`
	Changed    int64               `json:"changed_at"`
}

// VariantGain is what the model held before the variant was there, and what it
// holds since the variant has taken over.
type VariantGain struct {
	Before *VariantHolding `json:"before"` // null: not measured
	After  *VariantHolding `json:"after"`  // null: it has not taken over
}

// VariantHolding is the mean of a while. Slices count by their compute slices.
type VariantHolding struct {
	Since   time.Time          `json:"since"`
	Seconds float64            `json:"observed_s"`
	Held    float64            `json:"held_slices"`    // by the model and its variants
	Rate    float64            `json:"requests_per_s"` // that the model had
	Ledger  map[string]float64 `json:"ledger_slices"`  // of the node, by account
}

// variantRoutes want an admin key: whoever changes what serves a model changes
// everybody's answers.
func (s *Server) variantRoutes(get func(handler) map[string]handler) []*route {
	if s.deps.Variants == nil {
		return nil
	}
	list, one := get(s.listVariants), get(s.getVariant)
	list["POST"], one["POST"], one["DELETE"] = s.addVariant, s.changeVariant, s.dropVariant
	return []*route{
		{path: "/aloft/v1/variants", role: admin, methods: list},
		{path: "/aloft/v1/variants/", role: admin, suffix: "/promote", slashes: true, methods: map[string]handler{"POST": s.moveVariant(VariantPromoting)}},
		{path: "/aloft/v1/variants/", role: admin, suffix: "/rollback", slashes: true, methods: map[string]handler{"POST": s.moveVariant(VariantRollsBack)}},
		{path: "/aloft/v1/variants/", role: admin, slashes: true, methods: one},
	}
}

// listVariants shows all in one page: their number is bounded.
func (s *Server) listVariants(x *exchange) {
	model := string(x.c.QueryArgs().Peek("model"))
	page := newPage[VariantObject](false)
	for _, v := range s.deps.Variants.Variants() {
		if model == "" || v.Model == model {
			page.add(v.ID, v)
		}
	}
	s.json(x, page)
}

func (s *Server) getVariant(x *exchange) {
	for _, v := range s.deps.Variants.Variants() {
		if v.ID == x.path {
			s.json(x, v)
			return
		}
	}
	s.fail(x, &openai.Error{Status: 404, Type: "invalid_request_error", Code: "not_found", Message: "there is no variant " + printable([]byte(x.path))})
}

func (s *Server) addVariant(x *exchange) {
	var in VariantSpec
	err := s.adminBody(x, &in)
	var v VariantObject
	if err == nil {
		v, err = s.deps.Variants.AddVariant(in)
	}
	s.variant(x, v, err)
}

func (s *Server) changeVariant(x *exchange) {
	var in VariantChange
	err := s.adminBody(x, &in)
	var v VariantObject
	if err == nil {
		v, err = s.deps.Variants.ChangeVariant(x.path, in)
	}
	s.variant(x, v, err)
}

func (s *Server) moveVariant(to VariantState) handler {
	return func(x *exchange) {
		var in struct{}
		err := s.adminBody(x, &in)
		var v VariantObject
		if err == nil {
			v, err = s.deps.Variants.ChangeVariant(x.path, VariantChange{State: to})
		}
		s.variant(x, v, err)
	}
}

func (s *Server) dropVariant(x *exchange) {
	if err := s.deps.Variants.DropVariant(x.path); err != nil {
		s.fail(x, err)
		return
	}
	s.json(x, map[string]any{"id": x.path, "object": "variant", "deleted": true})
}

func (s *Server) variant(x *exchange, v VariantObject, err error) {
	if err != nil {
		s.fail(x, err)
		return
	}
	s.json(x, v)
}
