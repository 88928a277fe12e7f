package main

import (
	"fmt"
	"io"
	"math"

	"aloft/arbiter"
	"aloft/gateway"
)

// variantLine is a variant in one line.
func variantLine(o gateway.VariantObject) string {
	line := fmt.Sprintf("%s  %s", o.ID, o.State)
	switch o.State {
	case gateway.VariantCanary:
		line += fmt.Sprintf(", share %.3g", o.Share)
	case gateway.VariantPromoting, gateway.VariantRollsBack:
		line += fmt.Sprintf(", %d replicas of it are ready, %d of the model", o.Ready, o.BaseReady)
	}
	if o.Why != "" {
		line += ": " + o.Why
	}
	return line
}

// drawVariant compares a variant with its model for people, at most 100 columns
// wide but for reasons.
func drawVariant(w io.Writer, o gateway.VariantObject) {
	fmt.Fprintln(w, variantLine(o))
	c := o.Comparison
	fmt.Fprintf(w, "\nsince %s           %12s %12s\n", c.Since.Local().Format("15:04:05"), "the model", o.Name)
	row := func(what, form string, base, variant any) {
		fmt.Fprintf(w, "%-24s %12s %12s\n", what, fmt.Sprintf(form, base), fmt.Sprintf(form, variant))
	}
	row("ready replicas", "%d", o.BaseReady, o.Ready)
	row("answered", "%d", c.Base.Requests, c.Variant.Requests)
	row("failed", "%d", c.Base.Failed, c.Variant.Failed)
	row("p50 to first content", "%.1f ms", c.Base.P50, c.Variant.P50)
	row("p90", "%.1f ms", c.Base.P90, c.Variant.P90)
	row("p99", "%.1f ms", c.Base.P99, c.Variant.P99)
	if q := c.Quality; q != nil {
		row("quality: "+q.Measure, "%.4g", q.Base, q.Variant)
	}
	fmt.Fprintf(w, "%d requests fell back to the model\n", c.FellBack)
	if a := c.Agreement; a.Samples > 0 {
		fmt.Fprintf(w, "agreement %.4f over %d answers, %.1f %% the same\n", a.Mean, a.Samples, 100*a.Exact)
	} else {
		fmt.Fprintln(w, "agreement: no answers were compared yet")
	}
	if len(o.Verdict.Terms) > 0 {
		fmt.Fprintf(w, "verdict: %s\n", o.Verdict.Action)
		for _, t := range o.Verdict.Terms {
			fmt.Fprintf(w, "  %s if %s\n", t.For, t)
		}
	}
	drawGain(w, o.Gain)
	if o.State == gateway.VariantPromoted {
		fmt.Fprintf(w, "\nTo make it permanent, write it into the configuration, then drop it after a rollback:\n  %s\n", lasting(o))
	}
}

// lasting is what the configuration has to say of the model to be the variant.
func lasting(o gateway.VariantObject) string {
	text := "- {name: " + o.Model
	if o.GGUF != "" {
		text += ", gguf: " + o.GGUF
	}
	if o.Shape != "" {
		text += ", shape: " + o.Shape
	}
	if o.Slots > 0 {
		text += fmt.Sprintf(", slots: %d", o.Slots)
	}
	if len(o.Command) > 0 {
		text += fmt.Sprintf(", command: %q", o.Command)
	}
	return text + "}"
}

// drawGain shows what a promotion freed, by account of the ledger.
func drawGain(w io.Writer, g gateway.VariantGain) {
	b, a := g.Before, g.After
	if b == nil || a == nil || a.Seconds == 0 {
		return
	}
	fmt.Fprintf(w, "\n%-24s %12s %12s %12s\n", "compute slices, mean", "before", "after", "change")
	line := func(what string, x, y float64) {
		fmt.Fprintf(w, "%-24s %12.2f %12.2f %+12.2f\n", what, x, y, y-x)
	}
	line("held by the model", b.Held, a.Held)
	for _, account := range arbiter.Accounts {
		if x, y := b.Ledger[string(account)], a.Ledger[string(account)]; math.Abs(x)+math.Abs(y) >= 0.005 {
			line("  "+string(account), x, y)
		}
	}
	fmt.Fprintf(w, "measured over %v before and %v after, at %.1f and %.1f requests a second\n", seconds(b.Seconds), seconds(a.Seconds), b.Rate, a.Rate)
}
