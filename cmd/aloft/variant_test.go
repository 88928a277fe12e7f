package main

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"aloft/arbiter"
	"aloft/gateway"
	"aloft/gateway/variants"
	"aloft/jobs"
	"aloft/jobs/evaluation"
)

// docs/variants.md has every command, every field of a variant and of a rule.
func TestDocsVariants(t *testing.T) {
	page := read(t, "docs/variants.md")
	k, err := kong.New(&variantCmd{}, kong.Name("aloft"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range k.Model.Children {
		if !strings.Contains(page, "aloft variant "+c.Name) && !strings.Contains(strings.ReplaceAll(page, "\n", " "), "aloft variant "+c.Name) {
			t.Errorf("docs/variants.md: no word of aloft variant %s", c.Name)
		}
	}
	fields := func(of any, prefix string) {
		x := reflect.TypeOf(of)
		for i := range x.NumField() {
			name, _, _ := strings.Cut(x.Field(i).Tag.Get("json"), ",")
			if name != "" && name != "-" && !strings.Contains(page, "`"+prefix+name+"`") {
				t.Errorf("docs/variants.md: no word of %s%s", prefix, name)
			}
		}
	}
	fields(gateway.VariantSpec{}, "")
	fields(variants.PromoteIf{}, "promote_if.")
	fields(variants.DropIf{}, "drop_if.")
	for _, s := range []gateway.VariantState{gateway.VariantPromoting, gateway.VariantPromoted, gateway.VariantAside} {
		if !strings.Contains(page, "`"+string(s)+"`") {
			t.Errorf("docs/variants.md: no word of the state %s", s)
		}
	}
	for _, by := range []string{variants.Base, variants.Fallback} {
		if !strings.Contains(page, "`"+by+"`") {
			t.Errorf("docs/variants.md: no word of %s", by)
		}
	}
	for _, a := range []arbiter.Account{arbiter.JobUseful, arbiter.FreeEmpty, arbiter.WarmReserve} {
		if !strings.Contains(page, "`"+string(a)+"`") {
			t.Errorf("docs/variants.md: no word of the account %s", a)
		}
	}
}

func TestQualityOf(t *testing.T) {
	at := func(x float64) *evaluation.Estimate { return &evaluation.Estimate{Value: x} }
	small := evaluation.Measures{Name: "small", ExactMatch: at(0.5), BitsPerByte: at(1.5)}
	base := evaluation.Measures{Name: "lm", ExactMatch: at(0.6), BitsPerByte: at(1.2), Perplexity: at(20)}
	exact := variants.Quality{Measure: "exact_match", Base: 0.6, Variant: 0.5}
	for _, c := range []struct {
		result  evaluation.Result
		measure string
		want    variants.Quality
		fault   string
	}{
		{evaluation.Result{Model: small, Against: &base}, "", exact, ""},
		{evaluation.Result{Model: base, Against: &small}, "", exact, ""}, // the other way round
		{evaluation.Result{Model: small, Against: &base}, "bits_per_byte", variants.Quality{Measure: "bits_per_byte", Base: 1.2, Variant: 1.5, Lower: true}, ""},
		{evaluation.Result{Model: small, Against: &base}, "perplexity", variants.Quality{}, "not measured perplexity of both"},
		{evaluation.Result{Model: small}, "", variants.Quality{}, "evaluated small alone"},
	} {
		got, err := qualityOf(c.result, "lm", c.measure)
		if got != c.want || (err == nil) != (c.fault == "") || err != nil && !strings.Contains(err.Error(), c.fault) {
			t.Errorf("%q: %+v, %v; want %+v, %q", c.measure, got, err, c.want, c.fault)
		}
	}
}

func TestArtefact(t *testing.T) {
	file := write(t, "small.gguf", "12345")
	result := func(kind, file string, size int) json.RawMessage {
		return fmt.Appendf(nil, `{"version":1,"kind":%q,"file":%q,"type":"Q4_0","bytes_out":%d}`, kind, file, size)
	}
	done := jobs.Job{State: jobs.Succeeded, Course: jobs.Course{Result: result("quantization", file, 5)}}
	var spec gateway.VariantSpec
	if err := artefact(done, &spec); err != nil || spec.GGUF != file || spec.Name != "q4_0" {
		t.Errorf("%+v, %v", spec, err)
	}
	for want, c := range map[string]struct {
		state  jobs.State
		result json.RawMessage
		spec   gateway.VariantSpec
	}{
		"want one that has succeeded": {jobs.Failed, done.Result, gateway.VariantSpec{}},
		"names no file":               {jobs.Succeeded, result("evaluation", file, 5), gateway.VariantSpec{}},
		"no file of a quantization":   {jobs.Succeeded, nil, gateway.VariantSpec{}},
		"no longer what it wrote":     {jobs.Succeeded, result("quantization", file, 6), gateway.VariantSpec{}},
		"want no other beside it":     {jobs.Succeeded, done.Result, gateway.VariantSpec{GGUF: "/other.gguf"}},
	} {
		if err := artefact(jobs.Job{State: c.state, Course: jobs.Course{Result: c.result}}, &c.spec); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
