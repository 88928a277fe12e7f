package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"aloft/sim/batching"
)

// result is what one benchmark found.
type result struct {
	name  string
	title string
	how   string // how it was measured, one paragraph
	head  []string
	rows  [][]string
	notes []string
	marks []mark
	where surrounding
	took  time.Duration
	// others is how many cores other work on the machine used meanwhile, this
	// program's and its children's left out.
	others float64
}

// mark is one figure of the machine-readable report. Mark says what is wanted of
// it, "" that nothing is promised; then OK is true.
type mark struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Mark  string  `json:"mark"`
	OK    bool    `json:"ok"`
	// Between are the ends of the 95 % interval, or of the rounds, where there are.
	Between []float64 `json:"between,omitempty"`
}

func (r *result) row(cells ...string) { r.rows = append(r.rows, cells) }

func (r *result) note(format string, args ...any) {
	r.notes = append(r.notes, fmt.Sprintf(format, args...))
}

// measured adds a figure of which nothing is promised.
func (r *result) measured(name string, v float64) {
	r.marks = append(r.marks, mark{Name: name, Value: round(v), OK: true})
}

// atLeast adds a figure with a lower mark. It is judged before it is rounded.
func (r *result) atLeast(name string, v, want float64) {
	r.marks = append(r.marks, mark{Name: name, Value: round(v), Mark: fmt.Sprintf(">= %v", want), OK: v >= want})
}

// atMost adds a figure with an upper mark.
func (r *result) atMost(name string, v, want float64) {
	r.marks = append(r.marks, mark{Name: name, Value: round(v), Mark: fmt.Sprintf("<= %v", want), OK: v <= want})
}

// measuredIn, atLeastIn and atMostIn add a figure with its interval; the estimate
// is judged.
func (r *result) measuredIn(name string, v batching.Interval) {
	r.measured(name, v.Value)
	r.between(v)
}

func (r *result) atLeastIn(name string, v batching.Interval, want float64) {
	r.atLeast(name, v.Value, want)
	r.between(v)
}

func (r *result) atMostIn(name string, v batching.Interval, want float64) {
	r.atMost(name, v.Value, want)
	r.between(v)
}

// interval is the median of rounds and their extremes.
func interval(s spread) batching.Interval {
	return batching.Interval{Value: s.median, Low: s.min, High: s.max}
}

func (r *result) between(v batching.Interval) {
	r.marks[len(r.marks)-1].Between = []float64{round(v.Low), round(v.High)}
}

// show writes the figure and, where there is one, its interval.
func (m mark) show() string {
	if m.Between == nil {
		return fmt.Sprint(m.Value)
	}
	return fmt.Sprintf("%v (%v to %v)", m.Value, m.Between[0], m.Between[1])
}

// round keeps four digits: no figure here is known better.
func round(v float64) float64 {
	if v == 0 || math.IsNaN(v) || math.IsInf(v, 0) {
		return v
	}
	scale := math.Pow(10, 3-math.Floor(math.Log10(math.Abs(v))))
	return math.Round(v*scale) / scale
}

// surrounding is what was measured, on what.
type surrounding struct {
	commit, machine string
	at              time.Time
}

// surroundings describes tree and machine as they are now: before a benchmark
// runs, so that the load average is that of others.
func surroundings(ctx context.Context) surrounding {
	s := surrounding{commit: "unknown", at: time.Now()}
	if b, err := exec.CommandContext(ctx, "git", "rev-parse", "--short", "HEAD").Output(); err == nil {
		s.commit = strings.TrimSpace(string(b))
		// What benchmarks write themselves changes nothing of what they measure.
		b, err = exec.CommandContext(ctx, "git", "status", "--porcelain", "--", ".", ":!"+page).Output()
		if err != nil || len(b) > 0 {
			s.commit += "+dirty"
		}
	}
	load, _, _ := strings.Cut(field("/proc/loadavg", ""), " ")
	memory := 0
	_, _ = fmt.Sscan(field("/proc/meminfo", "MemTotal:"), &memory) // kB; 0 where there is no /proc
	s.machine = fmt.Sprintf("%s, %d cores, %.1f GiB, load average %s at start, %s/%s, %s", field("/proc/cpuinfo", "model name"), runtime.NumCPU(),
		float64(memory)/(1<<20), load, runtime.GOOS, runtime.GOARCH, runtime.Version())
	return s
}

// field returns what follows a key in a file of /proc.
func field(file, key string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return "unknown"
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, key); ok {
			return strings.TrimSpace(strings.TrimLeft(rest, " \t:"))
		}
	}
	return "unknown"
}

// section is the benchmark's part of BENCHMARKS.md.
func (r *result) section() string {
	var b strings.Builder
	fmt.Fprintf(&b, "## %s\n\n%s\n\n", r.title, r.how)
	fmt.Fprintf(&b, "`go run ./cmd/bench %s` at commit %s, %s, in %.0f s; %s; other work used %.1f cores meanwhile.\n\n",
		r.name, r.where.commit, r.where.at.UTC().Format("2006-01-02 15:04 UTC"), r.took.Seconds(), r.where.machine, r.others)
	writeTable(&b, r.head, r.rows)
	for _, n := range r.notes {
		fmt.Fprintf(&b, "\n%s\n", n)
	}
	var promised [][]string
	for _, m := range r.marks {
		verdict := "ok"
		if !m.OK {
			verdict = "**missed**"
		}
		if m.Mark != "" {
			promised = append(promised, []string{m.Name, m.show(), m.Mark, verdict})
		}
	}
	if len(promised) == 0 {
		b.WriteString("\nNo marks: these figures are shown, not promised.")
		return b.String()
	}
	b.WriteByte('\n')
	writeTable(&b, []string{"mark", "measured", "wanted", ""}, promised)
	return strings.TrimSuffix(b.String(), "\n")
}

func writeTable(b *strings.Builder, head []string, rows [][]string) {
	line := func(cells []string) { fmt.Fprintf(b, "| %s |\n", strings.Join(cells, " | ")) }
	line(head)
	b.WriteString(strings.Repeat("|---", len(head)) + "|\n")
	for _, r := range rows {
		line(r)
	}
}

// page is the file with everyone's figures.
const page = "BENCHMARKS.md"

const preface = `# Benchmarks

Written by ` + "`make bench`" + ` (all) and ` + "`make bench-NAME`" + `; each program replaces its own section. The same figures for machines: bench/out/NAME.json.
`

// write replaces the benchmark's section below root and writes its JSON.
func (r *result) write(root string) error {
	path := filepath.Join(root, page)
	old, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		old, err = []byte(preface), nil
	}
	if err != nil {
		return err
	}
	text, err := replaceSection(old, r.name, r.section())
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		return err
	}
	out := struct {
		Commit  string `json:"commit"`
		Machine string `json:"machine"`
		Marks   []mark `json:"marks"`
	}{r.where.commit, r.where.machine, r.marks}
	b, err := json.MarshalIndent(out, "", "  ")
	if err != nil {
		return fmt.Errorf("%s: %w", r.name, err)
	}
	dir := filepath.Join(root, "bench", "out")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, r.name+".json"), append(b, '\n'), 0o644)
}

// replaceSection puts text between the section's marker lines, and adds them at
// the end of a page that has none. The rest of the page stays as it is.
func replaceSection(page []byte, name, text string) ([]byte, error) {
	open, end := []byte("<!-- bench "+name+": written by a program -->\n"), []byte("<!-- end of "+name+" -->\n")
	before, rest, found := bytes.Cut(page, open)
	if !found {
		before = append(bytes.TrimRight(page, "\n"), "\n\n"...)
	}
	_, after, closed := bytes.Cut(rest, end)
	if found && !closed {
		return nil, fmt.Errorf("the section %s has a first marker line and no last one", name)
	}
	return bytes.Join([][]byte{before, open, []byte(text + "\n"), end, after}, nil), nil
}
