package scenario

import (
	"math"
	"testing"
	"time"
)

// chat of the standard scenarios: step(16) = 12 + 0.6 x 16 = 21.6 ms.
func chat() *Model {
	return &Model{Name: "chat", Static: 10, Service: Service{AlphaMs: 12, BetaMsPerSeq: 0.6, Slots: 16, PrefillPerS: 6000, SpeedWhenPrefill: 0.5}, SLO: SLO{TTFTS: 1, TTFTMsPerTok: 0.2, TPOTMs: 50}}
}

func TestKneeByHand(t *testing.T) {
	embed := &Model{Service: Service{AlphaMs: 40, BetaMsPerToken: 0.1, MaxTokens: 2048}}
	for _, c := range []struct {
		name    string
		m       *Model
		decode  bool
		in, out int32
		want    float64
	}{
		{"decode-bound", chat(), true, 1200, 200, 200*0.0216/16 + 0.5*0.2},        // 0.27 + 0.1 = 0.37
		{"prefill-bound", chat(), false, 1200, 200, 0.2},                          // 1200 / 6000
		{"merged", embed, false, 512, 0, 512.0 * (40.0/2048 + 0.1) / 1000},        // 61.2 ms
		{"merged, a whole call", embed, false, 2048, 0, (40 + 0.1*2048) / 1000.0}, // 244.8 ms
	} {
		tr := Traffic{Model: c.m, DecodeBound: c.decode}
		if got := tr.Knee(c.in, c.out); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("%s: knee work is %v, want %v", c.name, got, c.want)
		}
	}
}

// The form is chosen over the whole trace. Summed by another program: 7,383.2 and
// 3,727.0 slice-seconds for the conversation trace, 1,837.0 and 3,010.0 for the
// code trace.
func TestKneeFormOfTheTraces(t *testing.T) {
	for file, want := range map[string][2]float64{"azure-llm-2023/AzureLLMInferenceTrace_conv.csv": {7383.19, 3726.98}, "azure-llm-2023/AzureLLMInferenceTrace_code.csv": {1836.96, 3010.00}} {
		text, err := find("", file)
		if err != nil {
			t.Fatal(err)
		}
		rows, _, err := records(text, 1, file)
		if err != nil {
			t.Fatal(err)
		}
		tr := Traffic{Model: chat()}
		tr.form(rows)
		var sums [2]float64
		for _, r := range rows {
			sums[0] += tr.Model.Service.decode(int32(r.InputTokens), int32(r.OutputTokens))
			sums[1] += tr.Model.Service.prefill(int32(r.InputTokens))
		}
		if math.Abs(sums[0]-want[0]) > 0.01 || math.Abs(sums[1]-want[1]) > 0.01 || tr.DecodeBound != (want[0] > want[1]) {
			t.Errorf("%s: sums %.2f, decode-bound %v, want %.2f", file, sums, tr.DecodeBound, want)
		}
	}
}

// Slots in flight. Three requests of 1,200 tokens in and 100 out at 0.5 s: a
// sequence stays 16 x (100 x 0.0216/16 + 0.5 x 0.2) = 2.16 + 1.6 = 3.76 s, until
// 4.26 s. At the ends of seconds 1 to 4 three are in flight, 3/(0.95 x 16) =
// 0.1974, and none after the fifth. Prefill: 3 x 0.2 = 0.6 s. Over L with slack
// 0.8 s: 0.6/1.8 = 0.3333 at second 1; at second 2 the window of 2 s gives
// 0.6/2.8 = 0.2143, at 3 that of 3 s 0.6/3.8 = 0.1579, which the slots pass; at 5
// the window of 5 s 0.6/5.8 = 0.1034, which holds alone.
func TestNeedByHand(t *testing.T) {
	at := 500 * time.Millisecond
	tr := &Traffic{Model: chat(), DecodeBound: true, Arrivals: []Arrival{{at, 1200, 100}, {at, 1200, 100}, {at, 1200, 100}, {time.Hour, 1, 1}}}
	slots := 3 / (0.95 * 16)
	want := []float64{0.6 / 1.8, 0.6 / 2.8, slots, slots, 0.6 / 5.8, 0.6 / 10.8}
	got := Need(tr, 6*time.Second)
	if len(got) != len(want) {
		t.Fatalf("%d seconds, want %d", len(got), len(want))
	}
	for i := range want {
		if math.Abs(got[i]-want[i]) > 1e-12 {
			t.Errorf("second %d: need %.4f, want %.4f", i+1, got[i], want[i])
		}
	}
	if _, arrived := Demand(tr, 2*time.Second); math.Abs(arrived[0]-0.6) > 1e-12 || arrived[1] != 0 {
		t.Errorf("work that arrived is %v, want 0.6 replica-seconds and none", arrived)
	}
}

// Merged calls have no slots: knee work in windows. 512 tokens are 0.0612 s of a
// replica; with a target of 1.5 s the window of 1 s has 0.0612/(1 + 1.2).
func TestNeedOfMergedCalls(t *testing.T) {
	m := &Model{Service: Service{AlphaMs: 40, BetaMsPerToken: 0.1, MaxTokens: 2048}, SLO: SLO{TTFTS: 1.5}}
	got := Need(&Traffic{Model: m, Arrivals: []Arrival{{0, 512, 0}}}, 2*time.Second)
	for i, want := range []float64{0.0612 / 2.2, 0.0612 / 3.2} {
		if math.Abs(got[i]-want) > 1e-12 {
			t.Errorf("second %d: need %v, want %v", i+1, got[i], want)
		}
	}
}

// In a steady state the need is the work: chat at 0.4 of 10 slices needs about
// 4 / 0.95 in the mean, whatever the windows make of its peaks.
func TestNeedFollowsTheWork(t *testing.T) {
	w := draw(t, "bursty-8gpu-code", 1, DrawOptions{To: 2})
	need := Need(&w.Traffic[0], w.Horizon)
	mean := 0.0
	for _, v := range need {
		mean += v / float64(len(need))
	}
	if mean < 4/0.95*0.97 || mean > 4/0.95*1.1 {
		t.Errorf("mean need is %.2f, want a little above %.2f", mean, 4/0.95)
	}
}
