// Package aloft_test holds the repository to its own rules: who imports whom,
// how large things may be, what decides without a clock.
package aloft_test

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// mayImport is the architecture: each package and what of ours it may import.
// cmd may import everything, tests too. ARCHITECTURE.md shows the same table.
var mayImport = map[string][]string{
	"arbiter":                {"gpu"},
	"backends":               {},
	"backends/llama":         {"backends", "backends/openai", "backends/serve"},
	"backends/openai":        {"backends"},
	"backends/openaihttp":    {"backends", "backends/openai", "backends/socket"},
	"backends/serve":         {"backends", "backends/openai"},
	"backends/socket":        {},
	"backends/synthetic":     {"backends", "backends/openai", "backends/serve", "backends/synthetic/law"},
	"backends/synthetic/law": {},
	"backends/tokens":        {},
	"batcher":                {"backends", "backends/openai"},
	"configs":                {},
	"gateway":                {"backends", "backends/openai", "backends/socket", "gateway/variants", "jobs"},
	"gateway/cache":          {"backends", "backends/openai", "gateway"},
	"gateway/keys":           {"backends", "gateway", "jobs"},
	"gateway/overflow":       {"backends", "backends/openai", "gateway"},
	"gateway/variants":       {"backends", "backends/openai"},
	"gpu":                    {},
	"gpu/nvml":               {"gpu"},
	"gpu/proc":               {},
	"gpu/simulated":          {"gpu"},
	"jobs":                   {"backends", "backends/openai", "gpu", "gpu/proc"},
	"jobs/boltstore":         {"jobs"},
	"jobs/evaluation":        {"loadgen", "loadgen/binomial"},
	"jobs/storesuite":        {"jobs"},
	"jobs/trainer":           {},
	"loadgen":                {"loadgen/arrivals", "loadgen/binomial", "loadgen/wire"},
	"loadgen/arrivals":       {},
	"loadgen/binomial":       {},
	"loadgen/known":          {"loadgen", "loadgen/arrivals"},
	"loadgen/page":           {"loadgen", "loadgen/page/sheet", "loadgen/search"},
	"loadgen/page/sheet":     {},
	"loadgen/page/suite":     {},
	"loadgen/search":         {"loadgen", "loadgen/arrivals", "loadgen/binomial"},
	"loadgen/wire":           {},
	"pool":                   {"backends", "gpu", "gpu/proc"},
	"sim":                    {"arbiter", "gpu", "sim/scenario", "sim/serving"},
	"sim/batching":           {"backends", "backends/synthetic/law", "batcher", "loadgen/arrivals"},
	"sim/packing":            {"arbiter", "gpu"},
	"sim/page":               {"arbiter", "loadgen", "loadgen/page/sheet", "sim", "sim/scenario", "sim/study"},
	"sim/rivals":             {"arbiter", "sim"},
	"sim/scenario":           {"backends/synthetic/law", "configs", "loadgen/arrivals"},
	"sim/serving":            {"batcher"},
	"sim/study":              {"arbiter", "loadgen", "loadgen/binomial", "sim", "sim/rivals", "sim/scenario"},
}

// only lists imports from outside that few folders keep to themselves.
var only = map[string][]string{
	"C":                              {"gpu/nvml"},
	"github.com/NVIDIA/go-nvml":      {"gpu/nvml"},
	"github.com/valyala/fasthttp":    {"cmd/bench", "gateway"}, // the benchmark has a bare proxy
	"github.com/hybridgroup/yzma":    {"backends/llama"},
	"github.com/ebitengine/purego":   {"backends/llama"},
	"github.com/sony/gobreaker":      {"pool"},
	"github.com/HdrHistogram":        {"loadgen"},
	"go.etcd.io/bbolt":               {"jobs/boltstore"},
	"gocloud.dev/blob/fileblob":      {"cmd"},
	"github.com/alecthomas/kong":     {"cmd"},
	"github.com/netresearch/go-cron": {"cmd"},
	"github.com/caarlos0/env":        {"cmd"},
	"github.com/goccy/go-yaml":       {"cmd", "gateway/keys", "loadgen", "sim/scenario"}, // a report repeats its profile
	"github.com/prometheus":          {"cmd", "pool"},                                    // pool parses engines' metrics
	"go.opentelemetry.io/otel/sdk":   {"cmd"},
	"flag":                           {"cmd"},
	"testing":                        {"jobs/storesuite", "loadgen/page/suite"},
	"github.com/openai/openai-go":    {}, // a client of ours, in tests alone
}

// limits that files, functions and types keep; tests and generated files are free.
const (
	maxFileLines = 500
	maxFuncLines = 70
	maxMethods   = 5
	maxFields    = 20
	maxParams    = 4 // after the context
)

// exceptions to the limits, each with its reason. One that is no longer needed
// fails the test.
var exceptions = map[string]string{}

// source is one parsed file that is neither a test nor generated.
type source struct {
	path, folder string // from the repository root, with slashes
	lines        int
	*ast.File
}

// sources parses every file of the repository that a build may compile. It
// reads them itself: the test cache sees which files a test opened, but not
// what a `go list` that it started has read.
func sources(t *testing.T, fset *token.FileSet) []source {
	t.Helper()
	const root = "."
	var out []source
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if path != root && (strings.HasPrefix(name, ".") || name == "node_modules" || name == "testdata") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel := filepath.ToSlash(path)
		file, err := parser.ParseFile(fset, rel, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		if !ast.IsGenerated(file) {
			out = append(out, source{rel, filepath.ToSlash(filepath.Dir(rel)), strings.Count(string(text), "\n"), file})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(out) < len(mayImport) {
		t.Fatalf("found %d files: not the repository", len(out))
	}
	return out
}

func TestStructureImports(t *testing.T) {
	fset := token.NewFileSet()
	seen := map[string]bool{}
	for _, s := range sources(t, fset) {
		allowed, known := mayImport[s.folder]
		seen[s.folder] = true
		isCmd := strings.HasPrefix(s.folder, "cmd/")
		if !known && !isCmd {
			t.Errorf("%s: folder %s has no row in the import table", s.path, s.folder)
			continue
		}
		for _, spec := range s.Imports {
			path, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			at := fset.Position(spec.Pos())
			ours, isOurs := strings.CutPrefix(path, "aloft/")
			switch {
			case isOurs && strings.HasPrefix(ours, "cmd/"):
				t.Errorf("%s: imports the program %s", at, path)
			case isOurs && !isCmd && !slices.Contains(allowed, ours):
				t.Errorf("%s: %s may not import %s", at, s.folder, ours)
			}
			for what, folders := range only {
				if within(path, what) && !slices.ContainsFunc(folders, func(f string) bool { return within(s.folder, f) }) {
					t.Errorf("%s: %s may not import %s: only %v may", at, s.folder, path, folders)
				}
			}
		}
	}
	for folder := range mayImport {
		if !seen[folder] {
			t.Errorf("the import table has a row for %s, which has no code", folder)
		}
	}
}

// Why a client should come again is one of a closed list (backends/errors.go):
// nobody writes a word of his own.
func TestStructureReasons(t *testing.T) {
	fset := token.NewFileSet()
	found := 0
	for _, s := range sources(t, fset) {
		ast.Inspect(s.File, func(n ast.Node) bool {
			lit, ok := n.(*ast.CompositeLit)
			if !ok || lit.Type == nil {
				return true
			}
			if of, ok := lit.Type.(*ast.SelectorExpr); !ok || of.Sel.Name != "RetryError" {
				return true
			}
			for _, e := range lit.Elts {
				kv, _ := e.(*ast.KeyValueExpr)
				if key, ok := kv.Key.(*ast.Ident); !ok || key.Name != "Reason" {
					continue
				}
				found++
				if word, ok := kv.Value.(*ast.BasicLit); ok {
					t.Errorf("%s: reason %s is a literal, want one of the constants", fset.Position(word.Pos()), word.Value)
				}
			}
			return true
		})
	}
	if found < 5 {
		t.Errorf("found %d reasons: this test looks for the wrong thing", found)
	}
}

// within reports whether path is the folder or lies below it.
func within(path, folder string) bool {
	return path == folder || strings.HasPrefix(path, folder+"/")
}

// The page that people read shows the table that is held.
func TestStructureArchitecturePage(t *testing.T) {
	page, err := os.ReadFile("ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "| package | may import |")
	table, _, _ = strings.Cut(table, "\n\n")
	var shown, want []string
	for line := range strings.Lines(table) {
		if cells := strings.Split(strings.NewReplacer("`", "", "–", "").Replace(line), "|"); len(cells) == 4 && !strings.HasPrefix(line, "|-") {
			shown = append(shown, strings.TrimSpace(cells[1])+": "+strings.TrimSpace(cells[2]))
		}
	}
	for _, folder := range slices.Sorted(maps.Keys(mayImport)) {
		want = append(want, folder+": "+strings.Join(mayImport[folder], ", "))
	}
	if !slices.Equal(shown, want) {
		t.Errorf("ARCHITECTURE.md's import table reads\n%s\nwant\n%s", strings.Join(shown, "\n"), strings.Join(want, "\n"))
	}
}

func TestStructureNames(t *testing.T) {
	fset := token.NewFileSet()
	documented := map[string]bool{}
	for _, s := range sources(t, fset) {
		if slices.Contains([]string{"util", "utils", "common", "helper", "helpers", "types", "misc", "shared", "base"}, s.Name.Name) {
			t.Errorf("%s: a package named %s says nothing: name the one thing it is about", s.path, s.Name.Name)
		}
		for _, part := range strings.Split(s.folder, "/") {
			if part == "internal" || part == "pkg" {
				t.Errorf("%s: no folder is called %s here: the tree is the architecture", s.path, part)
			}
		}
		documented[s.folder] = documented[s.folder] || s.Doc != nil && !strings.HasPrefix(s.Doc.Text(), "go:build")
	}
	for folder, ok := range documented {
		if !ok {
			t.Errorf("%s: no package comment", folder)
		}
	}
}

func TestStructureLimits(t *testing.T) {
	fset := token.NewFileSet()
	used := map[string]bool{}
	for _, s := range sources(t, fset) {
		over := func(at token.Pos, name, what string, n, limit int) {
			key := s.folder + "." + name + ": " + what
			if n <= limit {
				return
			}
			if used[key] = true; exceptions[key] == "" {
				t.Errorf("%s: %s has %d %s, want at most %d", fset.Position(at), name, n, what, limit)
			}
		}
		over(s.Package, filepath.Base(s.path), "lines", s.lines, maxFileLines)
		inspect(fset, s.File, over)
	}
	for key, reason := range exceptions {
		if !used[key] {
			t.Errorf("the exception %q (%s) is no longer needed", key, reason)
		}
	}
}

// inspect measures every function and type of a file.
func inspect(fset *token.FileSet, file *ast.File, over func(at token.Pos, name, what string, n, limit int)) {
	name := "" // of the declaration that we are in
	for _, decl := range file.Decls {
		var visit func(ast.Node) bool
		visit = func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				name = cmp.Or(receiver(n)+n.Name.Name, name)
				over(n.Pos(), name, "lines", fset.Position(n.End()).Line-fset.Position(n.Pos()).Line+1, maxFuncLines)
			case *ast.TypeSpec:
				name = n.Name.Name
			case *ast.InterfaceType:
				over(n.Pos(), name, "methods", fields(n.Methods, false), maxMethods)
			case *ast.StructType:
				over(n.Pos(), name, "fields", fields(n.Fields, false), maxFields)
			case *ast.FuncLit: // its parameters are its function's affair
				ast.Inspect(n.Body, visit)
				return false
			case *ast.FuncType:
				over(n.Pos(), name, "parameters", fields(n.Params, true), maxParams)
			}
			return true
		}
		ast.Inspect(decl, visit)
	}
}

// receiver returns "T." for a method of T or *T.
func receiver(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	x := f.Recv.List[0].Type
	if star, ok := x.(*ast.StarExpr); ok {
		x = star.X
	}
	if generic, ok := x.(*ast.IndexExpr); ok {
		x = generic.X
	}
	return fmt.Sprint(x) + "."
}

// fields counts names, and what has none as one; a leading context is free if
// so asked.
func fields(list *ast.FieldList, freeContext bool) int {
	n := 0
	for i, f := range list.List {
		if sel, ok := f.Type.(*ast.SelectorExpr); ok && i == 0 && freeContext && sel.Sel.Name == "Context" {
			continue
		}
		n += max(1, len(f.Names))
	}
	return n
}

// pure lists the files and folders that decide without a clock, a lock, a
// goroutine, a file or a network: whoever calls them can replay them.
var pure = []string{
	"arbiter/arbiter.go", "arbiter/decide.go", "arbiter/need.go", "arbiter/ledger.go",
	"arbiter/place.go", "arbiter/reshape.go",
	"backends/openai", "backends/synthetic/law",
	"batcher/admit.go", "batcher/affinity.go", "batcher/core.go", "batcher/fill.go", "batcher/hedge.go", "batcher/fit.go", "batcher/kv.go", "batcher/order.go", "batcher/replicas.go",
	"gateway/keys/limits.go", "gpu/mig.go", "gpu/layout.go", "gpu/families.go", "gpu/reshape.go",
	"jobs/jobs.go", "loadgen/arrivals", "loadgen/binomial", "pool/states.go",
}

func TestStructurePure(t *testing.T) {
	fset := token.NewFileSet()
	seen := map[string]bool{}
	for _, s := range sources(t, fset) {
		i := slices.IndexFunc(pure, func(p string) bool { return p == s.path || p == s.folder })
		if i < 0 {
			continue
		}
		seen[pure[i]] = true
		for _, spec := range s.Imports {
			switch strings.Trim(spec.Path.Value, `"`) {
			case "sync", "sync/atomic", "os", "net", "net/http", "log/slog":
				t.Errorf("%s: a pure file imports %s", fset.Position(spec.Pos()), spec.Path.Value)
			}
		}
		ast.Inspect(s.File, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s: a pure file starts a goroutine", fset.Position(n.Pos()))
			case *ast.SelectorExpr:
				clock := []string{"Now", "Since", "Until", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick", "Sleep"}
				if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains(clock, n.Sel.Name) {
					t.Errorf("%s: a pure file reads the clock: time.%s", fset.Position(n.Pos()), n.Sel.Name)
				}
			}
			return true
		})
	}
	for _, p := range pure {
		if !seen[p] {
			t.Errorf("%s is called pure and is not there", p)
		}
	}
}
