package main

import (
	"strings"
	"testing"
	"time"
)

// What `aloft why` is asked about: a while before now, or around a moment.
func TestWhyWhile(t *testing.T) {
	now := time.Date(2026, 11, 30, 14, 10, 0, 0, time.UTC)
	for _, c := range []struct {
		at          string
		since       time.Duration
		from, until string // of the day; a day before with −
	}{
		{"", 0, "", ""},
		{"", time.Hour, "30 13:10:00", ""},
		{"14:05", 0, "30 14:04:00", "30 14:06:00"},
		{"14:05:30", 0, "30 14:04:30", "30 14:06:30"},
		{"14:05", time.Hour, "30 13:05:00", "30 14:06:00"},
		{"23:00", 0, "29 22:59:00", "29 23:01:00"},
		{"2026-11-28 08:00", 0, "28 07:59:00", "28 08:01:00"},
		{"2026-11-28T08:00:00Z", 0, "28 07:59:00", "28 08:01:00"},
	} {
		from, until, err := (&whyCmd{At: c.at, Since: c.since}).while(now)
		say := func(t time.Time) string {
			if t.IsZero() {
				return ""
			}
			return t.Format("02 15:04:05")
		}
		if err != nil || say(from) != c.from || say(until) != c.until {
			t.Errorf("--at %q --since %v: %s to %s (%v), want %s to %s", c.at, c.since, say(from), say(until), err, c.from, c.until)
		}
	}
	if _, _, err := (&whyCmd{At: "noon"}).while(now); err == nil {
		t.Error("--at noon is taken")
	}
	if _, _, err := (&whyCmd{Since: -time.Minute}).while(now); err == nil {
		t.Error("--since -1m is taken")
	}
	if err := (&reportCmd{Since: -time.Hour}).Run(t.Context()); err == nil || !strings.Contains(err.Error(), "want how long ago") {
		t.Errorf("a report of the coming hour: %v", err)
	}
}
