package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"aloft/gateway"
	"aloft/gateway/variants"
)

// variantCmd are the commands about variants of served models.
type variantCmd struct {
	Add      variantAddCmd      `cmd:"" help:"Register a variant of a served model as a canary."`
	List     variantListCmd     `cmd:"" help:"List variants."`
	Show     variantShowCmd     `cmd:"" help:"Compare a variant with its model."`
	Share    variantShareCmd    `cmd:"" help:"Set the share of requests that a canary serves."`
	Rule     variantRuleCmd     `cmd:"" help:"Set the rule by which it is promoted or dropped."`
	Quality  variantQualityCmd  `cmd:"" help:"Take the quality of both from an evaluation job."`
	Promote  variantPromoteCmd  `cmd:"" help:"Put a variant in the place of its model."`
	Rollback variantRollbackCmd `cmd:"" help:"Put the model back in its place."`
	Drop     variantDropCmd     `cmd:"" help:"Drain a variant and forget it."`
}

const variantsPath = "/aloft/v1/variants"

// oneVariant are the arguments that name a variant.
type oneVariant struct {
	remote
	Model string `arg:"" help:"Model, or MODEL@NAME."`
	Name  string `arg:"" optional:"" help:"Variant, where the model alone is named before."`
}

func (v oneVariant) path() (string, error) {
	id := v.Model
	if v.Name != "" {
		id += "@" + v.Name
	}
	if !strings.Contains(id, "@") {
		return "", fmt.Errorf("%s: which variant? Name it after the model, or as MODEL@NAME", v.Model)
	}
	return variantsPath + "/" + url.PathEscape(id), nil
}

// tell changes a variant and says how it stands.
func (v oneVariant) tell(ctx context.Context, suffix string, change any) error {
	path, err := v.path()
	if err != nil {
		return err
	}
	var raw json.RawMessage
	if err := v.client().call(ctx, http.MethodPost, path+suffix, change, &raw); err != nil {
		return err
	}
	return v.say(raw)
}

// say prints one variant.
func (r remote) say(raw json.RawMessage) error {
	if r.JSON {
		fmt.Println(string(raw))
		return nil
	}
	var o gateway.VariantObject
	if err := json.Unmarshal(raw, &o); err != nil {
		return err
	}
	fmt.Println(variantLine(o))
	return nil
}

// ruleFlags are a rule, from a file or one by one.
type ruleFlags struct {
	Rule             string   `help:"File with promote_if and drop_if, YAML or JSON." placeholder:"FILE" type:"existingfile"`
	PromoteSamples   int      `help:"Promote when each side has answered so many requests in ten minutes, and all below holds." placeholder:"N"`
	PromoteAgreement *float64 `help:"Answers agree at least so far, 0 to 1." placeholder:"SHARE"`
	PromoteP99       *float64 `name:"promote-p99-ratio" help:"Its p99 is at most so many times the model's." placeholder:"RATIO"`
	PromoteQuality   *float64 `name:"promote-quality-drop" help:"An evaluation finds it at most so much worse, as a share." placeholder:"SHARE"`
	PromoteCompared  int      `help:"Answers that must have been compared before agreement is judged; 0: 20." placeholder:"N"`
	DropSamples      int      `help:"Drop only after so many requests of it." default:"50"`
	DropErrors       *float64 `name:"drop-error-rate" help:"Drop when more than this share of them failed." placeholder:"SHARE"`
	DropP99          *float64 `name:"drop-p99-ratio" help:"Drop when its p99 is more than so many times the model's." placeholder:"RATIO"`
	DropAgreement    *float64 `help:"Drop when answers agree less than this." placeholder:"SHARE"`
}

func (f ruleFlags) rule() (r variants.Rule, err error) {
	if f.Rule != "" {
		text, err := os.ReadFile(f.Rule)
		if err != nil {
			return r, err
		}
		asJSON, err := yaml.YAMLToJSON(text)
		if err == nil {
			d := json.NewDecoder(strings.NewReader(string(asJSON)))
			d.DisallowUnknownFields()
			err = d.Decode(&r)
		}
		if err != nil {
			return r, fmt.Errorf("rule %s: %w", f.Rule, err)
		}
	}
	if f.PromoteSamples > 0 {
		r.Promote = &variants.PromoteIf{Samples: f.PromoteSamples, Compared: f.PromoteCompared, Agreement: f.PromoteAgreement,
			P99Ratio: f.PromoteP99, QualityDrop: f.PromoteQuality}
	} else if f.PromoteAgreement != nil || f.PromoteP99 != nil || f.PromoteQuality != nil {
		return r, fmt.Errorf("--promote-samples is missing: how many requests must have been compared?")
	}
	if f.DropErrors != nil || f.DropP99 != nil || f.DropAgreement != nil {
		r.Drop = &variants.DropIf{Samples: f.DropSamples, ErrorRate: f.DropErrors, P99Ratio: f.DropP99, Agreement: f.DropAgreement}
	}
	return r, r.Validate()
}

type variantAddCmd struct {
	remote
	ruleFlags
	Model     string            `arg:"" help:"Served model."`
	Command   []string          `arg:"" optional:"" passthrough:"" help:"Engine command: the variant's argument list, after --."`
	Name      string            `help:"Name of the variant, as q8; default: the type that --job has quantized to." placeholder:"NAME"`
	Job       string            `help:"Quantize job whose file it is." placeholder:"JOB"`
	GGUF      string            `name:"gguf" help:"Its GGUF file, on the server." placeholder:"FILE"`
	Tokenizer string            `help:"Its vocabulary, if not the model's and not in the file." placeholder:"FILE"`
	Env       map[string]string `help:"Engine command: environment besides the model's." placeholder:"NAME=VALUE"`
	Alpha     time.Duration     `help:"Engine synthetic: fixed time of a batch." placeholder:"DURATION"`
	Beta      time.Duration     `help:"Engine synthetic: time of each token." placeholder:"DURATION"`
	Shape     string            `help:"Smallest slice that will do; default: the model's." placeholder:"SHAPE"`
	Slots     int               `help:"Sequences at once; default: the model's." placeholder:"N"`
	Memory    int64             `help:"Bytes that its engine needs free; default: the model's." placeholder:"BYTES"`
	Min       int               `name:"min-replicas" help:"Replicas while it is a canary, at least." default:"1"`
	Max       int               `name:"max-replicas" help:"And at most; 0: the model's." default:"0"`
	Share     float64           `help:"Of the model's requests that it serves." default:"0.05"`
	Shadow    float64           `help:"Of the whole answers that the other side is asked for, too, to compare them." default:"0.05"`
}

// Run implements kong's command.
func (c *variantAddCmd) Run(ctx context.Context) error {
	spec := gateway.VariantSpec{Model: c.Model, Name: c.Name, GGUF: c.GGUF, Tokenizer: c.Tokenizer, Env: c.Env, Shape: c.Shape, Slots: c.Slots,
		Memory: c.Memory, Replicas: gateway.VariantReplicas{Min: c.Min, Max: c.Max}, Share: c.Share, Shadow: c.Shadow}
	if len(c.Command) > 0 && c.Command[0] == "--" {
		c.Command = c.Command[1:]
	}
	spec.Command = c.Command
	if c.Alpha != 0 || c.Beta != 0 {
		spec.Law = &gateway.VariantLaw{Alpha: text(c.Alpha), Beta: text(c.Beta)}
	}
	var err error
	if spec.Rule, err = c.rule(); err != nil {
		return err
	}
	switch {
	case c.Job != "":
		if spec.Job, err = c.client().findJob(ctx, c.Job); err != nil {
			return err
		}
	case c.Name == "":
		return errors.New("missing flags: --name=NAME")
	}
	for _, file := range []*string{&spec.GGUF, &spec.Tokenizer} {
		if *file == "" || strings.HasPrefix(*file, "builtin:") {
			continue
		}
		if *file, err = filepath.Abs(*file); err != nil {
			return err
		}
	}
	var raw json.RawMessage
	if err := c.client().call(ctx, http.MethodPost, variantsPath, spec, &raw); err != nil {
		return err
	}
	return c.say(raw)
}

// text is a duration, or nothing where it is none.
func text(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return d.String()
}

type variantListCmd struct {
	remote
	Model string `arg:"" optional:"" help:"Only those of this model."`
}

// Run implements kong's command.
func (c *variantListCmd) Run(ctx context.Context) error {
	return c.show(ctx, http.MethodGet, variantsPath+"?"+url.Values{"model": {c.Model}}.Encode(), func(b []byte) error {
		var v struct{ Data []gateway.VariantObject }
		if err := json.Unmarshal(b, &v); err != nil {
			return err
		}
		for _, o := range v.Data {
			fmt.Println(variantLine(o))
		}
		return nil
	})
}

type variantShowCmd struct{ oneVariant }

// Run implements kong's command.
func (c *variantShowCmd) Run(ctx context.Context) error {
	path, err := c.path()
	if err != nil {
		return err
	}
	return c.show(ctx, http.MethodGet, path, func(b []byte) error {
		var o gateway.VariantObject
		if err := json.Unmarshal(b, &o); err != nil {
			return err
		}
		var text strings.Builder
		drawVariant(&text, o)
		fmt.Print(text.String())
		return nil
	})
}

type variantShareCmd struct {
	oneVariant
	Share  float64  `name:"to" help:"Of the model's requests, 0 to 1." required:"" placeholder:"SHARE"`
	Shadow *float64 `help:"Of the whole answers that are compared." placeholder:"SHARE"`
}

// Run implements kong's command.
func (c *variantShareCmd) Run(ctx context.Context) error {
	return c.tell(ctx, "", map[string]any{"share": c.Share, "shadow": c.Shadow})
}

type variantRuleCmd struct {
	oneVariant
	ruleFlags
}

// Run implements kong's command.
func (c *variantRuleCmd) Run(ctx context.Context) error {
	rule, err := c.rule()
	if err != nil {
		return err
	}
	return c.tell(ctx, "", map[string]any{"rule": rule})
}

type variantQualityCmd struct {
	oneVariant
	Job     string `help:"Job that has evaluated one against the other (aloft evaluate)." required:"" placeholder:"JOB"`
	Measure string `help:"exact_match, bits_per_byte, perplexity or recall; default: the first of them that was measured." enum:",exact_match,bits_per_byte,perplexity,recall" default:""`
}

// Run implements kong's command.
func (c *variantQualityCmd) Run(ctx context.Context) error {
	job, err := c.client().findJob(ctx, c.Job)
	if err != nil {
		return err
	}
	return c.tell(ctx, "", map[string]any{"evaluation": gateway.VariantEvaluation{Job: job, Measure: c.Measure}})
}

type variantPromoteCmd struct {
	oneVariant
	Wait bool `help:"Wait until it has taken over."`
}

// Run implements kong's command.
func (c *variantPromoteCmd) Run(ctx context.Context) error {
	return c.move(ctx, "/promote", c.Wait, gateway.VariantPromoting, gateway.VariantPromoted)
}

type variantRollbackCmd struct {
	oneVariant
	Wait bool `help:"Wait until the model serves again."`
}

// Run implements kong's command.
func (c *variantRollbackCmd) Run(ctx context.Context) error {
	return c.move(ctx, "/rollback", c.Wait, gateway.VariantRollsBack, gateway.VariantCanary)
}

// move starts a passage and, if wanted, waits for its end.
func (v oneVariant) move(ctx context.Context, suffix string, wait bool, during, after gateway.VariantState) error {
	path, err := v.path()
	if err != nil {
		return err
	}
	api := v.client()
	var raw json.RawMessage
	if err := api.call(ctx, http.MethodPost, path+suffix, struct{}{}, &raw); err != nil {
		return err
	}
	for wait {
		var o gateway.VariantObject
		if err := json.Unmarshal(raw, &o); err != nil {
			return err
		}
		if o.State == after {
			break
		}
		if o.State != during {
			return fmt.Errorf("%s is %s: %s", o.ID, o.State, cmp.Or(o.Why, "somebody else has changed it"))
		}
		select {
		case <-time.After(500 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		raw = nil
		if err := api.call(ctx, http.MethodGet, path, nil, &raw); err != nil {
			return err
		}
	}
	return v.say(raw)
}

type variantDropCmd struct{ oneVariant }

// Run implements kong's command.
func (c *variantDropCmd) Run(ctx context.Context) error {
	path, err := c.path()
	if err != nil {
		return err
	}
	return c.show(ctx, http.MethodDelete, path, func([]byte) error {
		fmt.Println("dropped")
		return nil
	})
}
