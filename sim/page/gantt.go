package page

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"aloft/arbiter"
	"aloft/loadgen/page/sheet"
	"aloft/sim"
	"aloft/sim/scenario"
	"aloft/sim/study"
)

// Of the chart of slices: more can neither be told apart nor kept on a page.
const (
	maxGPUs  = 8
	maxSpans = 1200
)

// phases are what a slice does, with the class of each: the colours of the ledger.
var phases = map[arbiter.Phase]sheet.Key{
	arbiter.Ready: {Class: "k1", Name: "serves"}, arbiter.JobRuns: {Class: "k3", Name: "job runs"}, arbiter.JobStart: {Class: "k6", Name: "job starts"},
	arbiter.Checkpoint: {Class: "k5", Name: "job leaves"}, arbiter.Loading: {Class: "k7", Name: "loads or wakes"}, arbiter.Draining: {Class: "k9", Name: "drains"},
	arbiter.Reshaping: {Class: "k8", Name: "reshapes"}, arbiter.Asleep: {Class: "k10", Name: "asleep"}, arbiter.Free: {Class: "k13", Name: "free"}, arbiter.Unhealthy: {Class: "k14", Name: "unhealthy"},
}

var phaseOrder = []arbiter.Phase{arbiter.Ready, arbiter.JobRuns, arbiter.JobStart, arbiter.Checkpoint, arbiter.Loading, arbiter.Draining, arbiter.Reshaping, arbiter.Asleep, arbiter.Free, arbiter.Unhealthy}

// gantt shows what each slice did, one lane each; nil without spans. It says what
// it leaves out.
func gantt(r *study.Run, fromH float64) (*sheet.Chart, sheet.Table, string) {
	shown, gpus, to := window(&r.Spans)
	if len(shown) == 0 {
		return nil, sheet.Table{}, ""
	}
	hour := func(s float64) float64 { return fromH + s/3600 }
	var legend []sheet.Key
	for _, p := range phaseOrder {
		if slices.ContainsFunc(shown, func(s sim.Span) bool { return s.Phase == p }) {
			legend = append(legend, phases[p])
		}
	}
	lanes := scenario.SlicesPerGPU * len(gpus)
	c := sheet.NewLanes("Slices over time", hours(hour(r.Spans.FromS), hour(to)), legend, lanes)
	table := sheet.Table{Caption: "What the slices drawn did: slice-seconds by GPU and phase", Text: 1, Head: []string{"GPU"}}
	for _, k := range legend {
		table.Head = append(table.Head, k.Name)
	}
	for i, g := range gpus {
		c.LaneName(scenario.SlicesPerGPU*i, scenario.SlicesPerGPU, fmt.Sprintf("GPU %d", g))
		sums := map[string]float64{}
		for _, s := range shown {
			if s.GPU != g {
				continue
			}
			key := phases[s.Phase]
			sums[key.Name] += (s.ToS - s.FromS) * float64(s.Width)
			who := ""
			if s.Who != "" {
				who = " for " + s.Who
			}
			c.Lane(scenario.SlicesPerGPU*i+s.Start, s.Width, sheet.Span{From: hour(s.FromS), To: hour(s.ToS), Class: key.Class,
				Text: fmt.Sprintf("GPU %d, slice %d, %s to %s s: %s%s", s.GPU, s.Start, sheet.Plain(s.FromS), sheet.Plain(s.ToS), key.Name, who)})
		}
		row := []string{fmt.Sprintf("GPU %d", g)}
		for _, k := range legend {
			row = append(row, sheet.Number(sums[k.Name]))
		}
		table.Rows = append(table.Rows, row)
	}
	c.Desc = fmt.Sprintf("One lane for each slice of %d GPUs, coloured by what it did from hour %s to hour %s: %d spans. The table of slice-seconds by GPU sums them.", len(gpus), sheet.Number(hour(r.Spans.FromS)), sheet.Number(hour(to)), len(shown))
	return c, table, fmt.Sprintf("Slices over time shows hours %s to %s", sheet.Number(hour(r.Spans.FromS)), sheet.Number(hour(to))) + leftOut(&r.Spans, len(shown), len(gpus))
}

// leftOut says what the chart of slices does not show.
func leftOut(of *sim.Spans, shown, gpus int) (text string) {
	all := map[int]bool{}
	for _, s := range of.List {
		all[s.GPU] = true
	}
	if len(all) > gpus {
		text += fmt.Sprintf(" of the first %d of %d GPUs", gpus, len(all))
	}
	if more := len(of.List) - shown + of.LeftOut; more > 0 {
		text += fmt.Sprintf("; %d spans are left out", more)
	}
	return text + ". Point at a span to read who holds the slice."
}

// window is what can be drawn: the first GPUs, up to the time at which there are
// too many spans.
func window(all *sim.Spans) (shown []sim.Span, gpus []int, to float64) {
	for _, s := range all.List {
		if !slices.Contains(gpus, s.GPU) {
			gpus = append(gpus, s.GPU)
		}
	}
	slices.Sort(gpus)
	gpus = gpus[:min(len(gpus), maxGPUs)]
	for _, s := range all.List {
		if slices.Contains(gpus, s.GPU) && s.ToS > s.FromS && s.Start >= 0 && s.Width > 0 && s.Start+s.Width <= scenario.SlicesPerGPU {
			shown = append(shown, s)
		}
	}
	slices.SortStableFunc(shown, func(a, b sim.Span) int {
		return cmp.Or(cmp.Compare(a.FromS, b.FromS), cmp.Compare(a.GPU, b.GPU), cmp.Compare(a.Start, b.Start), strings.Compare(a.Who, b.Who))
	})
	to = all.ToS
	if len(shown) > maxSpans {
		to = shown[maxSpans].FromS
		shown = shown[:maxSpans]
	}
	for i := range shown {
		shown[i].FromS, shown[i].ToS = max(shown[i].FromS, all.FromS), min(shown[i].ToS, to)
	}
	shown = slices.DeleteFunc(shown, func(s sim.Span) bool { return s.ToS <= s.FromS })
	return shown, gpus, to
}
