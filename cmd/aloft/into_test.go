package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A file is replaced by a whole one or not at all.
func TestInto(t *testing.T) {
	var stdout strings.Builder
	says := func(text string, err error) func(io.Writer) error {
		return func(w io.Writer) error {
			_, bad := io.WriteString(w, text)
			return errors.Join(bad, err)
		}
	}
	dir := t.TempDir()
	file, link := filepath.Join(dir, "a"), filepath.Join(dir, "link")
	if err := os.WriteFile(file, []byte("before"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("a", link); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	for _, c := range []struct {
		to, text string
		err      error
		want     string // in file
	}{
		{file, "half", broken, "before"}, {file, "one", nil, "one"}, {link, "two", nil, "two"}, {link, "half", broken, "two"},
		{"", "nothing", broken, "two"}, {"-", "out", nil, "two"}, {os.DevNull, "gone", nil, "two"},
	} {
		err := into(c.to, &stdout, says(c.text, c.err))
		if want := c.err != nil && c.to != ""; (err != nil) != want {
			t.Errorf("%s: %v", c.to, err)
		}
		if got, _ := os.ReadFile(file); string(got) != c.want {
			t.Errorf("%s: after %q the file has %q, want %q", c.to, c.text, got, c.want)
		}
	}
	if stdout.String() != "out" {
		t.Errorf("standard output has %q", stdout.String())
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file is %v (%v), want the mode that it had", info.Mode(), err)
	}
	if err := into(filepath.Join(dir, "none", "a"), &stdout, says("x", nil)); err == nil {
		t.Error("a folder that is not there, and no error")
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) != 2 {
		t.Errorf("left behind: %q", left)
	}
}

// What cannot be kept is found before it is measured.
func TestKeepable(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	profile := write(t, "p.yaml", "")
	if err := os.Mkdir(at("sub"), 0o777); err != nil {
		t.Fatal(err)
	}
	for _, l := range [][2]string{{"sub", "other"}, {"real.json", "link.json"}} {
		if err := os.Symlink(l[0], at(l[1])); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(at("real.json"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		files []string
		want  string // of the error; "" = none
	}{
		{nil, ""}, {[]string{"", ""}, ""}, {[]string{"-", at("a")}, ""}, {[]string{os.DevNull, os.DevNull}, ""},
		{[]string{at("a"), at("b"), at("sub/a")}, ""},
		{[]string{"-", "-"}, "same file"},
		{[]string{at("a"), at("sub/../a")}, "same file"},
		{[]string{at("sub/a"), at("other/a")}, "same file"},
		{[]string{at("real.json"), at("link.json")}, "same file"},
		{[]string{profile}, "same file"},
		{[]string{at("sub")}, "is a directory"},
		{[]string{at("none/a")}, "no such file"},
	} {
		err := keepable([]string{"", profile}, c.files...)
		if (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.files, err, c.want)
		}
	}
	if left, _ := filepath.Glob(at("*")); len(left) != 4 {
		t.Errorf("left behind: %q", left)
	}
	if info, err := os.Stat(at("real.json")); err != nil || info.Size() != 0 {
		t.Errorf("touched: %v", err)
	}
}
