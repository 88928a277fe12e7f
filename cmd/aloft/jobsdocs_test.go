package main

import (
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// docs/jobs.md has every command about jobs with every flag, each key of the
// configuration's jobs, each field of a submission, and the exit codes.
func TestDocsJobs(t *testing.T) {
	page := read(t, "docs/jobs.md")
	k, err := kong.New(&cli{}, kong.Name("aloft"), kong.Writers(io.Discard, io.Discard), kong.Vars{"version": ""})
	if err != nil {
		t.Fatal(err)
	}
	general := map[string]bool{"help": true, "url": true, "key": true, "ca": true, "data": true, "json": true}
	commands := 0
	for _, group := range k.Model.Children {
		if !slices.Contains([]string{"batch", "jobs", "session"}, group.Name) {
			continue
		}
		for _, c := range group.Children {
			commands++
			if !strings.Contains(page, "aloft "+group.Name+" "+c.Name) {
				t.Errorf("docs/jobs.md: no `aloft %s %s`", group.Name, c.Name)
			}
			for _, f := range c.Flags {
				if !general[f.Name] && !strings.Contains(page, "--"+f.Name) {
					t.Errorf("docs/jobs.md: nothing of --%s of aloft %s %s", f.Name, group.Name, c.Name)
				}
			}
		}
	}
	if commands < 19 {
		t.Errorf("found %d commands: the search is wrong", commands)
	}
	for flag := range general {
		if flag != "help" && !strings.Contains(page, "--"+flag) {
			t.Errorf("docs/jobs.md: nothing of --%s", flag)
		}
	}
	with := page // and the pages that it leads to, but for the one that lists all
	for _, m := range regexp.MustCompile(`\]\(([a-z-]+)\.md`).FindAllStringSubmatch(page, -1) {
		if m[1] != "configuration" {
			with += read(t, "docs/"+m[1]+".md")
		}
	}
	for _, key := range keysOf(reflect.ValueOf(defaults().Jobs), "jobs") {
		_, last, listed := strings.Cut(key.path, "[]")
		last = last[strings.LastIndex(last, "[]")+1:]
		if !strings.Contains(with, "`"+key.path+"`") && (!listed || !strings.Contains(with, "`"+strings.TrimPrefix(last, "]")+"`")) {
			t.Errorf("docs/jobs.md: nothing of the key %s", key.path)
		}
	}
	_, rest, _ := strings.Cut(read(t, "gateway/jobsubmit.go"), "type jobWish struct {")
	wish, _, _ := strings.Cut(rest, "\n}\n")
	_, fields, _ := strings.Cut(page, "| field of the body | |")
	fields, _, _ = strings.Cut(fields, "\n\n")
	var told []string
	for _, row := range strings.Split(fields, "\n") {
		if first, _, ok := strings.Cut(strings.TrimPrefix(row, "| "), " | "); ok {
			for _, m := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(first, -1) {
				told = append(told, m[1])
			}
		}
	}
	var known []string
	for _, m := range regexp.MustCompile("`json:\"([a-z_]+)\"`").FindAllStringSubmatch(wish, -1) {
		known = append(known, m[1])
	}
	slices.Sort(told)
	slices.Sort(known)
	if len(known) < 15 || !slices.Equal(told, known) {
		t.Errorf("docs/jobs.md explains the fields %v, a submission has %v", told, known)
	}
	for code, word := range map[exitCode]string{exitFailed: "failed", exitCancelled: "cancelled", exitExpired: "expired", exitTimeout: "not ended"} {
		if !strings.Contains(page, fmt.Sprintf("\n| %d | %s", code, word)) {
			t.Errorf("docs/jobs.md: exit code %d (%s) has no row", code, word)
		}
	}
}
