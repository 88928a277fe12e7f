package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"aloft/arbiter"
)

// madeMetrics finds each instrument of ours where it is made: its name, kind and
// unit, and what the exporter for Prometheus calls it.
func madeMetrics(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	made := regexp.MustCompile(`\.(?:Int64|Float64)(?:Observable)?(Counter|Gauge|Histogram|UpDownCounter)\("(aloft\.[a-z._]+)"([^\n]*)`)
	unit := regexp.MustCompile(`WithUnit\("([^"]+)"\)`)
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range made.FindAllStringSubmatch(string(text), -1) {
			name := strings.ReplaceAll(m[2], ".", "_")
			if u := unit.FindStringSubmatch(m[3]); u != nil {
				switch u[1] {
				case "s":
					name += "_seconds"
				case "USD":
					name += "_USD"
				}
			}
			if m[1] == "Counter" {
				name += "_total"
			}
			out[name] = m[2]
		}
	}
	if len(out) < 30 {
		t.Fatalf("found %d instruments: the search is wrong", len(out))
	}
	return out
}

// documented are the metrics of docs/metrics.md.
func documented(t *testing.T) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(aloft_[A-Za-z_]+)` \\|").FindAllStringSubmatch(read(t, "docs/metrics.md"), -1) {
		out[m[1]] = true
	}
	return out
}

// Every metric of ours has its row, by the name that Prometheus sees, and there
// is no row of another: dashboards and alerts are built on these names.
func TestDocsMetrics(t *testing.T) {
	made, shown := madeMetrics(t), documented(t)
	for name, of := range made {
		if !shown[name] {
			t.Errorf("docs/metrics.md: no row of %s (%s)", name, of)
		}
	}
	for name := range shown {
		if made[name] == "" {
			t.Errorf("docs/metrics.md: nothing makes %s", name)
		}
	}
}

// loadAlerts reads Prometheus rules as far as they concern us: known keys, and
// metrics that exist.
func loadAlerts(file string, known map[string]bool) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var rules struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
	if err := yaml.UnmarshalWithOptions(text, &rules, yaml.Strict()); err != nil {
		return err
	}
	n := 0
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			names := regexp.MustCompile(`\baloft_[A-Za-z_]+`).FindAllString(r.Expr, -1)
			if r.Alert == "" || r.Labels["severity"] == "" || r.Annotations["summary"] == "" || r.Annotations["action"] == "" || len(names) == 0 {
				return fmt.Errorf("alert %q: want a name, a severity, a summary, an action and a metric of ours", r.Alert)
			}
			if strings.Count(r.Expr, "(") != strings.Count(r.Expr, ")") {
				return fmt.Errorf("alert %s: brackets in %s", r.Alert, r.Expr)
			}
			if _, err := time.ParseDuration(cmp.Or(r.For, "0s")); err != nil {
				return fmt.Errorf("alert %s: for: %w", r.Alert, err)
			}
			for _, name := range names {
				if !known[strings.TrimSuffix(name, "_bucket")] {
					return fmt.Errorf("alert %s: there is no metric %s", r.Alert, name)
				}
			}
			n++
		}
	}
	if n == 0 {
		return errors.New("no alert is in it")
	}
	return nil
}

func TestLoadAlerts(t *testing.T) {
	known := map[string]bool{"aloft_x": true}
	rule := func(expr string) string {
		return write(t, "a.yaml", "groups: [{name: g, rules: [{alert: A, expr: '"+expr+"', labels: {severity: s}, annotations: {summary: s, action: a}}]}]\n")
	}
	for expr, want := range map[string]string{"aloft_x > 1": "", "sum(aloft_x_bucket) > 1": "", "aloft_y > 1": "no metric aloft_y", "sum(aloft_x > 1": "brackets", "up": "a metric of ours"} {
		if err := loadAlerts(rule(expr), known); fmt.Sprint(err) == "<nil>" != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", expr, err, want)
		}
	}
}

// The operator's page explains every reason, account and cause of the code, and
// no others.
func TestDocsArbiter(t *testing.T) {
	page := read(t, "docs/arbiter.md")
	section := func(title string) string {
		_, text, ok := strings.Cut(page, "\n"+title+"\n")
		if !ok {
			t.Fatalf("docs/arbiter.md has no %s", title)
		}
		text, _, _ = strings.Cut(text, "\n## ")
		return text
	}
	rows := func(text string) (out []string) {
		for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|").FindAllStringSubmatch(text, -1) {
			out = append(out, m[1])
		}
		slices.Sort(out)
		return out
	}
	var accounts, reasons []string
	for _, a := range arbiter.Accounts {
		accounts = append(accounts, string(a))
	}
	files, _ := filepath.Glob("../../arbiter/*.go")
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^\s+[A-Z]\w+\s+Reason\s+= "([a-z_]+)"`).FindAllStringSubmatch(string(text), -1) {
			reasons = append(reasons, m[1])
		}
	}
	slices.Sort(accounts)
	slices.Sort(reasons)
	if len(reasons) < 12 {
		t.Fatalf("found the reasons %v: the search is wrong", reasons)
	}
	if got := rows(section("### Reasons")); !slices.Equal(got, reasons) {
		t.Errorf("docs/arbiter.md explains the reasons\n%v, want\n%v", got, reasons)
	}
	if got := rows(section("## The ledger")); !slices.Equal(got, accounts) {
		t.Errorf("docs/arbiter.md explains the accounts\n%v, want\n%v", got, accounts)
	}
	for _, c := range arbiter.Causes {
		if !strings.Contains(page, "`"+string(c)+"`") {
			t.Errorf("docs/arbiter.md: no word of the cause %s", c)
		}
	}
}
