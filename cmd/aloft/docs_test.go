package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"

	"aloft/backends"
	"aloft/gateway/keys"
)

// key is a row of docs/configuration.md but for its last column, the meaning.
type key struct{ path, kind, standard, live string }

// keysOf walks a configuration by its yaml tags. A list is shown by one entry
// with its own defaults.
func keysOf(v reflect.Value, path string) []key {
	if v.Kind() == reflect.Pointer {
		v = reflect.New(v.Type().Elem()).Elem() // what stands below a key that is left out
	}
	if v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Struct {
		one := reflect.New(v.Type().Elem()).Elem()
		if m, ok := one.Addr().Interface().(*ModelConfig); ok {
			m.fill()
		}
		return keysOf(one, path+"[]")
	}
	if v.Kind() != reflect.Struct {
		live := "restart"
		plain := strings.ReplaceAll(path, "[]", "")
		if slices.ContainsFunc(reloadable, func(r string) bool { return plain == r || strings.HasPrefix(plain, r+".") }) {
			live = "live"
		}
		return []key{{path, kindOf(v.Type()), standardOf(v), live}}
	}
	var out []key
	for i := range v.NumField() {
		if tag := v.Type().Field(i).Tag.Get("yaml"); tag != "" {
			below := path
			if tag != ",inline" {
				below = strings.TrimPrefix(path+"."+tag, ".")
			}
			out = append(out, keysOf(v.Field(i), below)...)
		}
	}
	return out
}

func kindOf(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[time.Duration]():
		return "duration"
	case t.Kind() == reflect.Slice:
		return "list of " + kindOf(t.Elem()) + "s"
	case t.Kind() == reflect.Map:
		return "map of " + kindOf(t.Elem()) + "s"
	}
	return map[reflect.Kind]string{reflect.String: "string", reflect.Bool: "bool", reflect.Int: "integer", reflect.Int64: "integer",
		reflect.Float64: "number"}[t.Kind()]
}

func standardOf(v reflect.Value) string {
	switch x := v.Interface().(type) {
	case time.Duration:
		if x == 0 {
			return "0"
		}
		text := x.String() // 10m0s is 10m
		if strings.HasSuffix(text, "m0s") {
			text = strings.TrimSuffix(text, "0s")
		}
		return text
	case bool, float64, int, int64:
		return fmt.Sprint(x)
	case string:
		if x != "" {
			return x
		}
	}
	return "none"
}

// Every key of the configuration is in its reference, with the type, default and
// reload that the code gives it, and nothing else is.
func TestDocsConfiguration(t *testing.T) {
	page := read(t, "docs/configuration.md")
	c := defaults()
	c.Node.Simulated, c.Models = nil, nil
	shown := map[string]key{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_.\\[\\]]+)` \\| ([^|]+) \\| ([^|]+) \\| ([^|]+) \\| [^|]{8,} \\|$").FindAllStringSubmatch(page, -1) {
		shown[m[1]] = key{m[1], m[2], strings.Trim(m[3], "`"), m[4]}
	}
	for _, want := range keysOf(reflect.ValueOf(c), "") {
		if got := shown[want.path]; got != want {
			t.Errorf("docs/configuration.md: %s is shown as %+v, want\n| `%s` | %s | `%s` | %s | meaning |", want.path, got, want.path, want.kind, want.standard, want.live)
		}
		delete(shown, want.path)
	}
	for path := range shown {
		t.Errorf("docs/configuration.md: there is no key %s", path)
	}
}

// Every environment variable that is read has its row.
func TestDocsEnvironment(t *testing.T) {
	names := map[string]bool{}
	for i := range reflect.TypeFor[Process]().NumField() {
		names[reflect.TypeFor[Process]().Field(i).Tag.Get("env")] = true
	}
	k, err := kong.New(&cli{}, kong.Name("aloft"), kong.Writers(io.Discard, io.Discard), kong.Vars{"version": ""})
	if err != nil {
		t.Fatal(err)
	}
	err = kong.Visit(k.Model, func(n kong.Visitable, next kong.Next) error {
		if f, ok := n.(*kong.Flag); ok {
			for _, name := range f.Envs {
				names[name] = true
			}
		}
		return next(nil)
	})
	page := read(t, "docs/configuration.md")
	for name := range names {
		if !strings.Contains(page, "\n| `"+name+"` | ") {
			t.Errorf("docs/configuration.md: no row of %s", name)
		}
	}
	if err != nil || len(names) < 8 {
		t.Errorf("found %d variables (%v): the search is wrong", len(names), err)
	}
}

// The key file that the reference shows is one.
func TestDocsKeyFile(t *testing.T) {
	_, page, _ := strings.Cut(read(t, "docs/configuration.md"), "## The key file")
	file := filepath.Join(t.TempDir(), "keys.yaml")
	m := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindStringSubmatch(page)
	if m == nil || os.WriteFile(file, []byte(m[1]), 0o600) != nil {
		t.Fatal("no key file is shown")
	}
	s, err := keys.Open(file, "", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if g, ok := s.Find([]byte("test"), time.Now()); !ok || g.Tenant != "research" {
		t.Errorf("the secret is said to be test: %+v, %v", g, ok)
	}
}

// The reasons of the error table are those of the code, and the endpoints too.
func TestDocsAPI(t *testing.T) {
	page := read(t, "docs/api.md")
	_, table, _ := strings.Cut(page, "## Errors")
	table, _, _ = strings.Cut(table, "## Streams")
	code := read(t, "gateway/fault.go") + read(t, "gateway/conns.go") + read(t, "backends/errors.go")
	reasons := regexp.MustCompile(`(?m)^(?:const|\t)\s*[rR]eason[A-Za-z]+\s+= "([a-z_]+)"`).FindAllStringSubmatch(code, -1)
	known := map[string]bool{}
	for _, m := range reasons {
		known[m[1]] = true
		if !strings.Contains(table, "`"+m[1]+"`") {
			t.Errorf("docs/api.md: no row of the reason %s", m[1])
		}
	}
	for _, m := range regexp.MustCompile("(?m)^\\| [^|]+\\| [^|]+\\| `([a-z_]+)` \\|").FindAllStringSubmatch(table, -1) {
		if !known[m[1]] {
			t.Errorf("docs/api.md: no error has the reason %s", m[1])
		}
	}
	if len(known) < 16 {
		t.Errorf("found %d reasons: the search is wrong", len(known))
	}
	for _, e := range backends.Endpoints() {
		if row := "| `" + string(e) + "` | `" + strings.Join(e.Paths(), "`, `") + "` |"; !strings.Contains(page, row) {
			t.Errorf("docs/api.md: no row %s", row)
		}
	}
}
