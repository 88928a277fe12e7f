package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"aloft/arbiter"
	"aloft/gateway"
	"aloft/gateway/keys"
	"aloft/gateway/variants"
	"aloft/jobs"
)

// maxVariants bounds a model's variants: each has engines of its own.
const maxVariants = 4

// kept is a variant as it lies in the data folder.
type kept struct {
	gateway.VariantSpec
	State   gateway.VariantState    `json:"state"`
	Wanted  int                     `json:"wanted,omitempty"` // replicas that who takes over has ready first
	Given   int                     `json:"given,omitempty"`  // replicas that who leaves has given up for that
	Quality *variants.Quality       `json:"quality,omitempty"`
	Before  *gateway.VariantHolding `json:"before,omitempty"`
	After   *gateway.VariantHolding `json:"after,omitempty"`
	Why     string                  `json:"why,omitempty"` // what became of the last try
	Created time.Time               `json:"created"`
	Changed time.Time               `json:"changed"` // of the state

	aside   string // why it does not serve, as things are; "" = it does
	verdict variants.Verdict
}

// id is what a variant is asked for and stored by, and what serves it is called.
func (v *kept) id() string { return v.Model + "@" + v.Name }

// current reports whether it serves what its model is asked for.
func (v *kept) current() bool {
	return v.aside == "" && (v.State == gateway.VariantPromoted || v.State == gateway.VariantRollsBack)
}

// variantSet is what there is of variants, on disk and in memory.
type variantSet struct {
	path   string
	book   *variants.Book
	shadow *variants.Shadow

	mu      sync.Mutex // held while what is served changes, whoever changes it
	all     []*kept    // in the order in which they came
	samples []sample   // of the last minutes, for their gain
	saved   time.Time
}

// openVariants reads what earlier servers have left.
func openVariants(path string) (*variantSet, error) {
	vs := &variantSet{path: path, book: variants.NewBook()}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return vs, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &vs.all)
	}
	if err != nil { // rather no start than the model that was replaced for good reason
		return nil, fmt.Errorf("read the variants of models: %s: %w", path, err)
	}
	for _, v := range vs.all {
		vs.book.Begin(v.Model, v.Name, time.Now())
	}
	return vs, nil
}

// save writes all of them. mu is held.
func (vs *variantSet) save() error {
	b, err := json.MarshalIndent(vs.all, "", "  ")
	if err == nil {
		err = keys.WriteFile(vs.path, b)
	}
	if err != nil {
		return fmt.Errorf("keep the variants of models: %w", err)
	}
	return nil
}

// find is the variant of an id. mu is held.
func (vs *variantSet) find(id string) (*kept, error) {
	for _, v := range vs.all {
		if v.id() == id {
			return v, nil
		}
	}
	return nil, fmt.Errorf("variant %.100s: %w", id, jobs.ErrNotFound)
}

// of are the variants of a model. mu is held.
func (vs *variantSet) of(model string) (out []*kept) {
	for _, v := range vs.all {
		if v.Model == model {
			out = append(out, v)
		}
	}
	return out
}

// side is what a served model is to another; the zero side is a model by itself.
type side struct {
	of      string // the model whose variant it is; "" = none's
	variant string // its name as one
	share   variants.Share
	current bool // it serves what is asked of that model
	idle    bool // a variant serves what is asked of this one
}

// withVariants is a configuration in which each variant is a model of its own,
// in the place of its model where it has taken over. One that cannot be served is
// put aside, so that it keeps neither a server from starting nor a configuration
// from being read. mu is held.
func (s *server) withVariants(c *Config) *Config {
	out := *c
	out.Models, out.sides = slices.Clone(c.Models), map[string]side{}
	for _, v := range s.way.variants.all {
		i := slices.IndexFunc(c.Models, func(m ModelConfig) bool { return m.Name == v.Model })
		m, err := ModelConfig{}, fmt.Errorf("the configuration has no model %q", v.Model)
		if i >= 0 {
			m, err = v.config(&c.Models[i])
		}
		if err == nil {
			err = s.checkVariant(&out, &m)
		}
		if was := v.aside; err != nil {
			v.aside = err.Error()
			if was != v.aside {
				s.log.Warn("a variant is put aside", "variant", v.id(), "state", v.State, "error", err)
			}
			continue
		}
		v.aside = ""
		as := side{of: v.Model, variant: v.Name, current: v.current()}
		switch base := &out.Models[i]; v.State {
		case gateway.VariantPromoted:
			out.sides[m.Name], *base = as, m
			continue
		case gateway.VariantRollsBack:
			base.Replicas.Min = min(base.Replicas.Max, max(base.Replicas.Min, v.Wanted))
			out.sides[base.Name] = side{idle: true}
		default:
			if base.Replicas.Max -= v.Given; base.Replicas.Max < 1 {
				base.Replicas.Max = 1
			}
			base.Replicas.Min = min(base.Replicas.Min, base.Replicas.Max)
			as.share = variants.Share{Name: v.Name, Model: m.Name, Share: v.Share, Shadow: v.Shadow}
		}
		out.sides[m.Name] = as
		out.Models = append(out.Models, m)
	}
	return &out
}

// called is what the engine of a model calls it: of a variant, as its model's
// does, so that an answer looks the same.
func (c *Config) called(m *ModelConfig) string {
	if of := c.sides[m.Name].of; of != "" {
		return of
	}
	return m.Name
}

// config is the variant as a model.
func (v *kept) config(base *ModelConfig) (ModelConfig, error) {
	m := *base
	m.Name, m.Pin = v.id(), nil // slices that are the model's alone have its shape
	if v.GGUF != "" {
		m.GGUF = v.GGUF
	}
	if v.Tokenizer != "" {
		m.Tokenizer = v.Tokenizer
	}
	if len(v.Command) > 0 {
		m.Command = v.Command
	}
	if len(v.Env) > 0 {
		m.Env = maps.Clone(base.Env)
		if m.Env == nil {
			m.Env = map[string]string{}
		}
		maps.Copy(m.Env, v.Env)
	}
	if v.Law != nil {
		for text, to := range map[string]*time.Duration{"alpha " + v.Law.Alpha: &m.Law.Alpha, "beta " + v.Law.Beta: &m.Law.Beta} {
			name, text, _ := strings.Cut(text, " ")
			if text == "" {
				continue
			}
			d, err := time.ParseDuration(text)
			if err != nil {
				return m, &jobs.InvalidError{Param: "law." + name, Reason: fmt.Sprintf("%.40q is no duration", text)}
			}
			*to = d
		}
	}
	if v.Shape != "" {
		m.Shape = v.Shape
	}
	if v.Slots > 0 {
		m.Slots = v.Slots
	}
	if v.Memory > 0 {
		m.Memory = v.Memory
	}
	switch v.State {
	case gateway.VariantPromoted, gateway.VariantRollsBack: // it is the model
	default:
		m.Replicas.Min = max(1, v.Replicas.Min) // one that slept would be asked nothing that wakes it
		if v.Replicas.Max > 0 {
			m.Replicas.Max = v.Replicas.Max
		}
		if v.State == gateway.VariantPromoting {
			m.Replicas.Min = max(m.Replicas.Min, v.Wanted)
			m.Replicas.Max = base.Replicas.Max
		}
		m.Replicas.Max = max(m.Replicas.Min, m.Replicas.Max)
	}
	return m, nil
}

// checkVariant finds what a launch would fail for.
func (s *server) checkVariant(c *Config, m *ModelConfig) error {
	if err := m.validate("variant"); err != nil {
		return err
	}
	if _, err := s.shape(m.Shape); err != nil {
		return &jobs.InvalidError{Param: "shape", Reason: err.Error()}
	}
	if m.Engine == "llama" {
		if err := c.checkGGUF(m); err != nil {
			return &jobs.InvalidError{Param: "gguf", Reason: err.Error()}
		}
	}
	_, err := s.profile(os.Args[0], c, *m)
	return err
}

// limits are those of the model whose requests it serves: windows name that.
func (m *served) limits(open []WindowConfig) arbiter.Limits {
	c := m.ModelConfig
	c.Name = m.family(m.Name)
	return c.limits(open)
}

// variantName is what may stand in a header, a metric and a path. Two words say
// who answered in place of a variant.
var variantName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,31}$`)

// admit checks what a new variant says of itself and its place among the others.
// mu is held.
func (vs *variantSet) admit(c *Config, v *kept) error {
	bad := func(param, format string, args ...any) error {
		return &jobs.InvalidError{Param: param, Reason: fmt.Sprintf(format, args...)}
	}
	i := slices.IndexFunc(c.Models, func(m ModelConfig) bool { return m.Name == v.Model })
	others := vs.of(v.Model)
	switch {
	case i < 0:
		return bad("model", "the configuration has no model %.100q", v.Model)
	case !variantName.MatchString(v.Name) || v.Name == variants.Base || v.Name == variants.Fallback:
		return bad("name", "%.60q, want a lower-case letter or digit and then at most 31 of these, '.', '_' and '-'; not base or fallback", v.Name)
	case len(others) >= maxVariants:
		return bad("model", "%s has %d variants, which is the most", v.Model, maxVariants)
	case v.GGUF != "" && !filepath.IsAbs(v.GGUF) && !strings.HasPrefix(v.GGUF, "builtin:"):
		return bad("gguf", "%.200q is no absolute path on the server", v.GGUF)
	case v.Tokenizer != "" && !filepath.IsAbs(v.Tokenizer):
		return bad("tokenizer", "%.200q is no absolute path on the server", v.Tokenizer)
	case v.Slots < 0 || v.Memory < 0:
		return bad("slots", "slots %d and memory %d must not be negative", v.Slots, v.Memory)
	case v.Replicas.Min < 0 || v.Replicas.Max < 0 || v.Replicas.Max > 0 && v.Replicas.Max < v.Replicas.Min:
		return bad("replicas", "min %d, max %d, want 0 <= min <= max", v.Replicas.Min, v.Replicas.Max)
	}
	for _, m := range c.Models {
		if m.Name == v.id() || slices.Contains(m.Aliases, v.id()) {
			return bad("name", "the configuration has a model called %s", v.id())
		}
	}
	for _, o := range others {
		if o.Name == v.Name {
			return conflict("%s is there already", v.id())
		}
		if o.State != gateway.VariantCanary {
			return conflict("%s is %s: the next comparison is with what serves for good", o.id(), o.State)
		}
	}
	return vs.shares(v, v.Share, v.Shadow)
}

// shares checks the parts that a variant is to have. mu is held.
func (vs *variantSet) shares(v *kept, share, shadow float64) error {
	if !(share >= 0 && share <= 1) || !(shadow >= 0 && shadow <= 1) {
		return &jobs.InvalidError{Param: "share", Reason: fmt.Sprintf("share %v, shadow %v, want 0 to 1", share, shadow)}
	}
	sum := share
	for _, o := range vs.of(v.Model) {
		if o.Name != v.Name {
			sum += o.Share
		}
	}
	if sum > 1+1e-9 {
		return &jobs.InvalidError{Param: "share", Reason: fmt.Sprintf("the variants of %s would have %.3g of its requests together, want at most 1", v.Model, sum)}
	}
	return nil
}
