package scenario

import (
	"strings"
	"testing"
)

func TestChange(t *testing.T) {
	text, err := Text("small-8gpu-conv")
	if err != nil {
		t.Fatal(err)
	}
	got, err := Change(text, []string{"jobs.offered_load=1.2", "models.chat.slo.ttft_s=2", "models.*.service_time.slots=8", "jobs.train.width_slices.8=28", "jobs.quantize.burst_jobs=[1, 2]", "backlog=null"})
	if err != nil {
		t.Fatal(err)
	}
	s, err := Parse(got)
	if err != nil {
		t.Fatalf("%v in\n%s", err, got)
	}
	if s.Jobs.OfferedLoad != 1.2 || s.Models[0].SLO.TTFTS != 2 || s.Models[1].SLO.TTFTS != 1 || s.Models[1].Service.Slots != 8 || s.Jobs.Train.WidthSlices[8] != 28 || s.Jobs.Quantize.BurstJobs != [2]int{1, 2} || s.Backlog.Kind != "" {
		t.Errorf("changed to\n%s", got)
	}
	same, err := Change(text, nil)
	if err != nil {
		t.Fatal(err)
	}
	was, _ := JSON(text)
	is, err := JSON(same)
	if err != nil || string(was) != string(is) {
		t.Errorf("nothing was to be changed: %v\n%s\n%s", err, was, is)
	}
	for set, says := range map[string]string{
		"jobs.offered_load":      `"jobs.offered_load" is no key=value`,
		"models.nobody.slots=1":  "there is no nobody; there are chat, assistant, or * for all",
		"job.offered_load=1":     "there is no job; there are name, horizon_h",
		"jobs.offered_load.x=1":  "lies below a value that has no keys",
		"jobs.offered_load=[1":   "no YAML value",
		"cluster.gpu=9":          "", // Parse says it
		"models.chat.slo.ttft=1": "",
	} {
		text, err := Change(text, []string{set})
		if says == "" {
			if err == nil {
				_, err = Parse(text)
			}
			says = "unknown field"
		}
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", set, err, says)
		}
	}
}
