package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"aloft/arbiter"
	"aloft/sim/study"
)

// docs/simulate.md has the figures as the code means them, and every policy,
// account and table.
func TestSimulateDocs(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "simulate.md"))
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, f := range study.Figures() {
		want = append(want, fmt.Sprintf("| `%s` | %s | %s |", f.Name, f.Unit, f.Meaning))
	}
	_, rest, _ := strings.Cut(string(text), "\n| figure | unit | what it is |\n|---|---|---|\n")
	table, _, _ := strings.Cut(rest, "\n\n")
	if got := strings.Split(table, "\n"); !slices.Equal(got, want) {
		t.Errorf("the figures of docs/simulate.md should read\n%s", strings.Join(want, "\n"))
	}
	told := map[string][]string{}
	for _, head := range []string{"policy", "account", "table"} {
		_, rest, _ := strings.Cut(string(text), "\n| "+head+" | ")
		table, _, _ := strings.Cut(rest, "\n\n")
		for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(table, -1) {
			told[head] = append(told[head], row[1])
		}
	}
	var accounts, tables []string
	for _, a := range arbiter.Accounts {
		accounts = append(accounts, string(a))
	}
	for _, f := range (&study.Study{}).CSVFiles() {
		tables = append(tables, f.Name)
	}
	for head, want := range map[string][]string{"policy": study.Policies(), "account": accounts, "table": tables} {
		if !slices.Equal(told[head], want) {
			t.Errorf("docs/simulate.md has of each %s %q, want %q", head, told[head], want)
		}
	}
}
