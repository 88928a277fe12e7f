package main

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"aloft/loadgen"
	"aloft/loadgen/arrivals"
)

// profileKeys walks a profile by its yaml tags; a distribution, a goal and the
// parts of a mix are each one key, explained once.
func profileKeys(t reflect.Type, path string) (out []string) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	whole := t == reflect.TypeFor[arrivals.Dist]() || t == reflect.TypeFor[loadgen.Goal]() && strings.HasSuffix(path, ".goal")
	if list := t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct; list && !strings.HasSuffix(path, ".parts") {
		return profileKeys(t.Elem(), path+"[]")
	}
	if t.Kind() != reflect.Struct || whole {
		return []string{path}
	}
	for f := range t.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		switch {
		case options == "inline":
			out = append(out, profileKeys(f.Type, path)...)
		case name != "" && name != "-":
			out = append(out, profileKeys(f.Type, strings.TrimPrefix(path+"."+name, "."))...)
		}
	}
	return out
}

// Every key of a profile is in its reference, and nothing else is.
func TestLoadProfileReference(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "load.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\n## The profile\n")
	section, _, _ := strings.Cut(rest, "\n## ")
	var told []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(section, -1) {
		told = append(told, row[1])
	}
	keys := profileKeys(reflect.TypeFor[loadgen.Options](), "")
	for _, k := range keys {
		if !slices.Contains(told, k) {
			t.Errorf("docs/load.md says nothing of %s", k)
		}
	}
	for _, k := range told {
		if !slices.Contains(keys, k) {
			t.Errorf("docs/load.md explains %s, which is no key", k)
		}
	}
}
