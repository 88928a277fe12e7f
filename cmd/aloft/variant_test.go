package main

import (
	"reflect"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"aloft/arbiter"
	"aloft/gateway"
	"aloft/gateway/variants"
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
