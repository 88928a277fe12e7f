package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"aloft/arbiter"
	"aloft/sim/study"
)

// Twenty minutes of the small scenario, through the binary: the table, the files,
// what-if and the comparison.
func TestSimulate(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	cut := []string{"simulate", "small-8gpu-conv", "--hours", "8-8.34", "--policy", "static,ours", "--seed", "1-2", "--live", "plain"}
	first := aloft(t, nil, append(cut, "--json", in("a.json"), "--html", in("a.html"), "--csv", in("csv"), "--set", "models.chat.slo.ttft_s=0.05;models.chat.slo.ttft_ms_per_input_token=0")...)
	if code := first.ended(t, patience); code != 0 {
		t.Fatalf("exit code %d: %s", code, first.err.String())
	}
	for _, want := range []string{"small-8gpu-conv, hours 8 to 8.34, seeds 1, 2", "no GPU was used", "=== as it is ===", "=== models.chat.slo.ttft_s=0.05;models.chat.slo.ttft_ms_per_input_token=0 ===", "\nstatic ", "\nours ", "jobs offered:"} {
		if !strings.Contains(first.out.String(), want) {
			t.Errorf("the table does not say %q:\n%s", want, first.out.String())
		}
	}
	s, err := readStudy(in("a.json"))
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Runs) != 8 || len(s.Variants) != 2 {
		t.Fatalf("%d runs of %d variants, want 2 seeds x 2 policies x 2 variants", len(s.Runs), len(s.Variants))
	}
	for i := range s.Runs {
		r := &s.Runs[i]
		sum := 0.0
		for _, a := range arbiter.Accounts {
			sum += r.Ledger[a]
		}
		// 0.34 h of 56 slices.
		if all := 0.34 * 3600 * 56; sum < all-1 || sum > all+1 {
			t.Errorf("%s, seed %d: the ledger sums to %.0f slice-s, want %.0f", r.Policy, r.Seed, sum, all)
		}
		if r.Total.Requests == 0 || r.Checks == 0 || r.Series.Minutes < 20 || len(r.Spans.List) == 0 {
			t.Errorf("%s, seed %d: %d requests, %d checks, %d minutes, %d spans", r.Policy, r.Seed, r.Total.Requests, r.Checks, r.Series.Minutes, len(r.Spans.List))
		}
		if static := r.Policy == study.Static; static != (len(r.Caused) == 0) {
			t.Errorf("%s, seed %d: %d rows of misses caused", r.Policy, r.Seed, len(r.Caused))
		}
	}
	if a, b := s.Find(study.AsIs, "static", 1), s.Find(s.Variants[1].Name, "static", 1); a.Models[0].Good <= b.Models[0].Good || a.Models[1].Good != b.Models[1].Good {
		t.Errorf("good requests %d and %d as it is, %d and %d with a shorter target of the first", a.Models[0].Good, a.Models[1].Good, b.Models[0].Good, b.Models[1].Good)
	}
	html, err := os.ReadFile(in("a.html"))
	if err != nil || !strings.Contains(string(html), "What if: each change") || !strings.Contains(string(html), "Slices over time") {
		t.Errorf("the page: %v", err)
	}
	figures, err := os.ReadFile(in("csv/figures.csv"))
	if err != nil || strings.Count(string(figures), "\n") != 9 {
		t.Errorf("figures.csv: %v\n%s", err, figures)
	}
	// The same again is the same, but for when and how long it was made.
	second := aloft(t, nil, append(cut, "--json", in("b.json"))...)
	if code := second.ended(t, patience); code != 0 {
		t.Fatalf("exit code %d: %s", code, second.err.String())
	}
	compared := aloft(t, nil, "simulate", "--compare", in("a.json"), in("b.json"), "--html", in("c.html"))
	if code := compared.ended(t, patience); code != 0 {
		t.Fatalf("exit code %d: %s", code, compared.err.String())
	}
	if out := compared.out.String(); strings.Contains(out, "better\n") || strings.Contains(out, "worse\n") || !strings.Contains(out, "only in A: models.chat.slo.ttft_s=0.05") {
		t.Errorf("the same worlds compare as\n%s", out)
	}
}

// What is wrong is said with what was expected.
func TestSimulateRefuses(t *testing.T) {
	bad := write(t, "bad.yaml", "name: x\nhorizon_h: 1\nhorizont_h: 2\n")
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"small-8gpu-conv", "--policy", "ours,yours"}, `--policy: "yours" is no policy, want of static, ours`},
		{[]string{"small-8gpu-conv", "--seed", "3-1"}, `--seed: "3-1" is no seed and no range`},
		{[]string{"small-8gpu-conv", "--workers=-1"}, "-1 runs at once (workers), want 1 or more, or 0"},
		{[]string{"small-8gpu-conv", "--seed", "one"}, `want such as 1,2,3 or 1-10`},
		{[]string{"small-8gpu-conv", "--hours", "20-30"}, `want FROM-TO with 0 <= FROM < TO <= 24`},
		{[]string{"small-8gpu-conv", "--hours", "0-0.1"}, `leaves nothing to judge: the first 300 s and the last 120 s`},
		{[]string{"small-8gpu-conv", "--set", "cluster.gpu=3"}, `--set cluster.gpu=3: `},
		{[]string{"small-8gpu-conv", "--set", "models.nobody.static_share_slices=3"}, `there are chat, assistant`},
		{[]string{"small-8gpu-conv", "--set", "models.chat.static_share_slices=3"}, `serving_share_slices`},
		{[]string{"small-8gpu"}, "neither a file nor one of the built-in scenarios bursty-8gpu-code"},
		{[]string{bad}, `line 3: unknown field "horizont_h"`},
		{[]string{"small-8gpu-conv", "stress"}, "want one"},
		{[]string{"--compare", bad}, "want two results"},
		{[]string{"--compare", bad, bad}, "no JSON object"},
		{[]string{"small-8gpu-conv", "--json", "r", "--html", "r"}, "the same file"},
	} {
		run := aloft(t, nil, append([]string{"simulate"}, c.args...)...)
		if code := run.ended(t, patience); code != int(exitError) || !strings.Contains(run.err.String(), c.says) {
			t.Errorf("%q: exit code %d, %s, want %q", c.args, code, run.err.String(), c.says)
		}
	}
}
