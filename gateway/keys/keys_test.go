package keys

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"aloft/backends"
	"aloft/gateway"
	"aloft/jobs"
)

var (
	_ gateway.Keys     = (*Store)(nil)
	_ gateway.KeyAdmin = (*Store)(nil)
)

func open(t *testing.T) *Store {
	t.Helper()
	dir := t.TempDir()
	s, err := Open(filepath.Join(dir, "keys.yaml"), filepath.Join(dir, "usage.json"), nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *Store) mustMake(t *testing.T, spec gateway.KeySpec) (gateway.KeyInfo, string) {
	t.Helper()
	info, secret, err := s.Make(spec)
	if err != nil {
		t.Fatal(err)
	}
	return info, secret
}

// The file decides whether keys are wanted; revoking the last one does not open
// the door, and neither does deleting the file.
func TestEnabled(t *testing.T) {
	s := open(t)
	if g, ok := s.Find(nil, time.Now()); s.Enabled() || g != nil || !ok {
		t.Fatalf("no file: enabled %v, Find %v %v; want everybody", s.Enabled(), g, ok)
	}
	info, secret := s.mustMake(t, gateway.KeySpec{Tenant: "a", Class: "standard", Models: []string{"m"}, Overflow: true})
	g, ok := s.Find([]byte(secret), time.Now())
	want := gateway.Grant{ID: info.ID, Tenant: "a", Class: backends.Standard, Models: []string{"m"}, Overflow: true}
	if !ok || !reflect.DeepEqual(*g, want) {
		t.Errorf("Find = %+v %v, want %+v", g, ok, want)
	}
	for _, wrong := range []string{"", "x", secret + " ", secret[:len(secret)-1], strings.ToUpper(secret)} {
		if _, ok := s.Find([]byte(wrong), time.Now()); ok {
			t.Errorf("%q opens", wrong)
		}
	}
	st, err := os.Stat(s.path)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("key file: %v %v, want mode 0600", st.Mode(), err)
	}
	if text, _ := os.ReadFile(s.path); strings.Contains(string(text), secret) || !strings.HasPrefix(string(text), "# The API keys") {
		t.Errorf("key file %s", text)
	}
	if err := s.Revoke(info.ID); err != nil {
		t.Fatal(err)
	}
	if _, ok := s.Find([]byte(secret), time.Now()); ok || !s.Enabled() {
		t.Errorf("revoked: found %v, enabled %v", ok, s.Enabled())
	}
	if _, ok := s.ByID(info.ID, time.Now()); ok {
		t.Error("revoked: found by id")
	}
	os.Remove(s.path)
	if err := s.Reload(); err == nil || !s.Enabled() {
		t.Errorf("file gone: %v, enabled %v; want an error and keys still wanted", err, s.Enabled())
	}
	if _, _, err := s.Make(gateway.KeySpec{Tenant: "a"}); err == nil {
		t.Error("a key was made in a file that is gone: the others would be lost")
	}
}

func TestExpiryAndRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t)
		info, old := s.mustMake(t, gateway.KeySpec{Tenant: "a", Expires: time.Now().Add(72 * time.Hour)})
		rotated, secret, err := s.Rotate(info.ID, 24*time.Hour)
		if err != nil || rotated.ID != info.ID || rotated.Hint != secret[len(secret)-4:] || !rotated.Rotated.Equal(time.Now()) {
			t.Fatalf("Rotate: %+v %v", rotated, err)
		}
		opens := func(secret string) bool { _, ok := s.Find([]byte(secret), time.Now()); return ok }
		time.Sleep(24*time.Hour - 1)
		if !opens(old) || !opens(secret) {
			t.Error("one of the two secrets does not open within the overlap")
		}
		time.Sleep(time.Nanosecond)
		if opens(old) || !opens(secret) {
			t.Errorf("after the overlap: old %v, new %v", opens(old), opens(secret))
		}
		_, third, err := s.Rotate(info.ID, 0)
		if err != nil || opens(secret) || !opens(third) {
			t.Errorf("rotated without overlap: old %v, new %v (%v)", opens(secret), opens(third), err)
		}
		if _, ok := s.Find([]byte(third), time.Now().Add(48*time.Hour)); ok {
			t.Error("it opens at a time after its end: the clock is the caller's")
		}
		time.Sleep(48 * time.Hour)
		if _, ok := s.ByID(info.ID, time.Now()); opens(third) || ok {
			t.Error("an expired key opens")
		}
		for _, d := range []time.Duration{-1, MaxOverlap + 1} {
			if _, _, err := s.Rotate(info.ID, d); !isInvalid(err, "overlap_seconds") {
				t.Errorf("overlap %v: %v", d, err)
			}
		}
		if _, _, err := s.Rotate("key_none", 0); !errors.Is(err, jobs.ErrNotFound) {
			t.Errorf("unknown key: %v", err)
		}
		if err := s.Revoke("key_none"); !errors.Is(err, jobs.ErrNotFound) {
			t.Errorf("unknown key: %v", err)
		}
	})
}

func isInvalid(err error, param string) bool {
	bad, ok := errors.AsType[*jobs.InvalidError](err)
	return ok && bad.Param == param
}

func TestMakeRefuses(t *testing.T) {
	s := open(t)
	for param, spec := range map[string]gateway.KeySpec{
		"tenant":              {},
		"class":               {Tenant: "a", Class: "best"},
		"name":                {Tenant: "a", Name: "two\nlines"},
		"models":              {Tenant: "a", Models: []string{""}},
		"requests_per_minute": {Tenant: "a", RPM: -1},
		"tokens_per_month":    {Tenant: "a", Budget: maxLimit + 1},
		"expires_at":          {Tenant: "a", Expires: time.Now().Add(-time.Hour)},
	} {
		if _, _, err := s.Make(spec); !isInvalid(err, param) {
			t.Errorf("%s: %v", param, err)
		}
	}
	if s.Enabled() {
		t.Error("a refused key has made the file")
	}
}

var hashA, hashB = strings.Repeat("aa", 32), strings.Repeat("bb", 32)

func TestParseRefuses(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"keys:\n- id: a\n  sha256: " + hashA + "\n  tenant: t\n- id: b\n  sha256: zz\n  tenant: t\n", `line 6: keys[1] ("b"): sha256`},
		{"keys:\n- id: a\n  sha256: " + hashA + "\n", `line 2: keys[0] ("a"): tenant`},
		{"keys:\n- id: a\n  sha256: " + hashA + "\n  tenant: t\n  clas: x\n", `line 5: unknown field "clas"; a key file is "keys:"`},
		{"keys:\n- id: a\n  sha256: " + hashA + "\n  tenant: t\n- id: a\n  sha256: " + hashB + "\n  tenant: t\n", `line 5: keys[1] ("a"): id is that of keys[0]`},
		{"keys:\n- id: a\n  sha256: " + hashA + "\n  tenant: t\n- id: b\n  sha256: " + strings.ToUpper(hashA) + "\n  tenant: t\n", `line 6: keys[1] ("b"): a hash is that of keys[0]`},
		{"keys:\n- id: a\n  sha256: " + hashA + "\n  tenant: t\n  previous: {sha256: " + hashA + ", until: 2030-01-01T00:00:00Z}\n", `keys[0] ("a"): a hash is that`},
		{"keys:\n- id: a\n  sha256: " + hashA + "\n  tenant: t\n  previous: {sha256: " + hashB + "}\n", `previous.until`},
		{"keys:\n- id: ../a\n  sha256: " + hashA + "\n  tenant: t\n", `line 2: keys[0] ("../a"): id is`},
		{"keys:\n- id: a\n  sha256: " + hashA + "\n  tenant: t\n  requests_per_minute: many\n", "line 5: a string stands where int is wanted"},
		{"keys:\n- id: a\n  sha256: " + hashA + "\n  tenant: t\n  parallel: -1\n", "line 5: "},
		{"keys: 5\n", "line 1: int was used where sequence is expected"},
		{"keys:\n- id: a\n  id: b\n", "line 3: "},
		{"keys:\n- &a {id: a, sha256: " + hashA + ", tenant: t}\n", "line 2: an anchor"},
		{"keys:\n- *a\n", "line 2: an alias"},
		{"keys:\n- <<: {id: a}\n", "line 2: a merge key"},
		{"keys: !!seq\n- id: a\n", "line 1: a tag"},
		{"%YAML 1.2\n---\nkeys: []\n", "line 1: a directive"},
		{"? keys\n: []\n", "line 1: a complex key"},
		{"keys:\n- id: a\n  name: |\n    x\n", "line 3: a block of text"},
		{"keys:\n- id: a\n  name: >-  # why\r\n    x\n", "line 3: a block of text"},
		{"keys: []\n---\nkeys: []\n", "line 2: 2 YAML documents"},
		{"keys: " + strings.Repeat("[", 1000), "line 1: too deep"},
		{strings.Repeat("{keys: ", 1<<16), "line 1: too deep"},
		{strings.Repeat("- ", 1<<16), "line 1: too deep"},
		{"keys:\n" + strings.Repeat(" ", 65) + "- id: a\n", "line 2: too deep"},
		{"keys: |\r" + strings.Repeat(" \r", 1<<20), "line 1: a block of text"},
		{"--- !a &b |+2 #\n" + strings.Repeat(" \n", 1<<20), "line 1: a block of text"},
		{"keys: |\n" + strings.Repeat(" \n", 1<<20), "line 1: a block of text"},
		{strings.Repeat(" ", maxBytes+1), "want at most"},
	} {
		if _, err := parse([]byte(tt.text)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s\ngave %v, want …%s…", tt.text, err, tt.want)
		}
	}
	var b strings.Builder
	b.WriteString("keys:\n")
	for i := range maxKeys + 1 {
		fmt.Fprintf(&b, "- {id: k%d, sha256: %064x, tenant: t}\n", i, i)
	}
	if _, err := parse([]byte(b.String())); err == nil || !strings.Contains(err.Error(), "at most 10000") {
		t.Errorf("%d keys: %v", maxKeys+1, err)
	}
}

var full = Entry{ID: "a", SHA256: hashA, Previous: &Previous{hashB, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)},
	Created: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), Rotated: time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC), Hint: "-_09",
	KeySpec: gateway.KeySpec{Name: "n: #é", Tenant: "123", Class: "offline", Models: []string{"org/m:x", "true"}, Admin: true, Overflow: true,
		RPM: 1, TPM: 2, Parallel: 3, Budget: 4, Expires: time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)}}

// Wherever a file is damaged, and where a secret was pasted, no error repeats a
// secret or a hash, or a telling part of one.
func TestErrorsHideSecrets(t *testing.T) {
	const hash, secret = "0123456789abcdef0123456789abcdefABCDEF0123456789abcdef9876543210", "sk-aloft-Zm9vYmFyYmF6cXV4Zm9vYmFyYmF6cXV4Zm9vYmFyYmE"
	good := "keys:\n- id: a\n  sha256: " + hash + "\n  tenant: t\n  expires_at: 2030-01-01T00:00:00Z\n"
	texts := []string{hash + ": x\n", "keys:\n- " + secret + "\n", "keys:\n- {id: " + secret + "}\n", "keys:\n- {id: \"" + hash + "\"}\n",
		strings.Replace(good, "2030-01-01T00:00:00Z", secret, 1), strings.Replace(good, "tenant: t", "class: "+secret, 1),
		strings.Replace(good, "tenant: t", "parallel: "+hash, 1), strings.Replace(good, "tenant: t", secret+": t", 1), strings.Replace(good, "tenant: t", "models: "+secret, 1)}
	for i := range good {
		texts = append(texts, good[:i]+good[i+1:])
		for _, put := range []string{":", ": ", "\"", "\n", "\n- ", "{", "-", " ", ", ", "'", "\t"} {
			texts = append(texts, good[:i]+put+good[i:])
		}
	}
	refused := 0
	for _, text := range texts {
		_, err := parse([]byte(text))
		if err == nil {
			continue
		}
		refused++
		for _, hidden := range []string{hash, secret} {
			for i := 0; i+20 <= len(hidden); i++ {
				if strings.Contains(err.Error(), hidden[i:i+20]) {
					t.Fatalf("%s\ngave %v", text, err)
				}
			}
		}
		if !strings.HasPrefix(err.Error(), "line ") {
			t.Errorf("%q gave %v, which names no line", text, err)
		}
	}
	if refused < 300 {
		t.Errorf("%d of %d damaged files were refused", refused, len(texts))
	}
}

func TestFormat(t *testing.T) {
	list := []Entry{full, {ID: "b", SHA256: strings.Repeat("0", 64), KeySpec: gateway.KeySpec{Tenant: "t"}}}
	for i, odd := range []string{"a |", "|", "x >2", "- |", "&a", "*a", "!t", "%d", "? q", "<<", "[[[[[[[[[[", "a: |", "it's \"so\" #x", "~", "1e3", "0x10", "é b", "x - |", "x- >"} {
		list = append(list, Entry{ID: fmt.Sprint("odd", i), SHA256: fmt.Sprintf("%064x", 1000+i), KeySpec: gateway.KeySpec{Tenant: odd, Name: odd, Models: []string{odd, odd}}})
	}
	text, err := format(list)
	if err != nil {
		t.Fatal(err)
	}
	got, err := parse(text)
	if err != nil || !reflect.DeepEqual(got, list) {
		t.Errorf("%s\nreads back as %+v, %v", text, got, err)
	}
	if strings.Contains(string(text), "0001-01-01") {
		t.Errorf("%s\nhas times that are not set", text)
	}
}

func FuzzKeyFile(f *testing.F) {
	text, err := format([]Entry{full})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte("keys: [] # as: |\n# or: >\n"))
	f.Add([]byte(""))
	f.Add([]byte("keys:\n- {id: a, sha256: " + hashA + ", tenant: t}\n- {id: b, sha256: " + hashB + ", tenant: \"|-\", models: [\"- x\", \"y: z\", \"'\"]}\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		list, err := parse(text)
		if err != nil {
			return
		}
		again, err := format(list)
		if err != nil {
			t.Fatal(err)
		}
		back, err := parse(again)
		if err != nil || len(back) != len(list) || len(list) > 0 && !reflect.DeepEqual(back, list) {
			t.Fatalf("%q is read as %+v, written as\n%s\nread back as %+v, %v", text, list, again, back, err)
		}
	})
}

// A bad file changes nothing; a good one keeps the limits where they stood.
func TestReload(t *testing.T) {
	s := open(t)
	info, secret := s.mustMake(t, gateway.KeySpec{Tenant: "a", RPM: 2})
	g, _ := s.Find([]byte(secret), time.Now())
	now := time.Now()
	if q, err := s.Reserve(g, now, gateway.Reserving{}); err != nil || q.Requests.Remaining != 1 {
		t.Fatal(q, err)
	}
	good, err := os.ReadFile(s.path)
	if err != nil {
		t.Fatal(err)
	}
	write := func(b []byte) error {
		if err := os.WriteFile(s.path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return s.Reload()
	}
	if err := write(append(good, "- nonsense\n"...)); err == nil || !strings.Contains(err.Error(), s.path) {
		t.Errorf("bad file: %v", err)
	}
	if _, ok := s.Find([]byte(secret), time.Now()); !ok {
		t.Error("a bad file has changed something")
	}
	damaged, _ := os.ReadFile(s.path)
	_, _, made := s.Make(gateway.KeySpec{Tenant: "b"})
	_, _, rotated := s.Rotate(g.ID, 0)
	for _, err := range []error{made, rotated, s.Revoke(g.ID)} { // the admin API answers 409 with these words
		if !errors.Is(err, jobs.ErrConflict) || !strings.HasPrefix(err.Error(), fmt.Sprintf("nothing was changed: key file %s: line %d: ", s.path, strings.Count(string(damaged), "\n"))) ||
			!strings.Contains(err.Error(), "a list of entries with id, sha256") {
			t.Errorf("a damaged file: %v", err)
		}
	}
	if after, _ := os.ReadFile(s.path); string(after) != string(damaged) {
		t.Error("a damaged file was written to")
	}
	if err := write(append([]byte("# a comment\n"), good...)); err != nil {
		t.Fatal(err)
	}
	if q, err := s.Reserve(g, now, gateway.Reserving{}); err != nil || q.Requests.Remaining != 0 {
		t.Errorf("after a reload: %+v %v, want the second of two requests", q, err)
	}
	// Taken out and put back, with requests under way.
	if err := write([]byte("keys: []\n")); err != nil {
		t.Fatal(err)
	}
	s.Settle(g, now, gateway.Reserving{}, 7)
	if err := write(good); err != nil {
		t.Fatal(err)
	}
	g, _ = s.ByID(info.ID, time.Now())
	if _, err := s.Reserve(g, now, gateway.Reserving{}); err == nil {
		t.Error("a key that was away for a moment has its limits anew")
	}
}

func TestUsage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // begins on 1 January 2000
		s := open(t)
		info, secret := s.mustMake(t, gateway.KeySpec{Tenant: "a", Budget: 1000})
		g, _ := s.Find([]byte(secret), time.Now())
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		use := func(n int) error {
			r := gateway.Reserving{Tokens: n}
			_, err := s.Reserve(g, time.Now(), r)
			if err == nil {
				s.Settle(g, time.Now(), r, n)
			}
			return err
		}
		used := func() int64 {
			again, err := Open(s.path, s.usage, nil)
			if err != nil {
				t.Fatal(err)
			}
			return again.List()[0].Used
		}
		if err := use(400); err != nil {
			t.Fatal(err)
		}
		time.Sleep(flushEvery + 1)
		if got := used(); got != 400 {
			t.Errorf("after a flush: %d, want 400", got)
		}
		if err := use(300); err != nil {
			t.Fatal(err)
		}
		cancel()
		if err := <-ended; err != nil || used() != 700 {
			t.Errorf("at the end: %v, %d, want 700", err, used())
		}
		if got := s.List()[0].Used; got != 700 {
			t.Errorf("listed: %d", got)
		}
		again, err := Open(s.path, s.usage, nil)
		if err != nil {
			t.Fatal(err)
		}
		s, g = again, &gateway.Grant{ID: info.ID}
		if e := (*gateway.LimitError)(nil); !errors.As(use(301), &e) || e.Kind != "budget" {
			t.Error("a restart has given back the budget")
		}
		time.Sleep(31 * 24 * time.Hour) // February
		if got := used(); got != 0 {
			t.Errorf("next month: %d, want 0", got)
		}
		if err := use(1000); err != nil {
			t.Errorf("next month: %v", err)
		}
		if err := use(1 << 62); err == nil {
			t.Error("more than the whole budget was given")
		}
		s.Settle(g, time.Now(), gateway.Reserving{}, 1<<62) // what an engine said
		if err := s.flush(time.Now()); err != nil || used() < 1000 {
			t.Errorf("nonsense used: %v, %d after a restart, want no new budget", err, used())
		}
		os.WriteFile(s.usage, []byte("{"), 0o600)
		if _, err := Open(s.path, s.usage, nil); err == nil || !strings.Contains(err.Error(), s.usage) {
			t.Errorf("damaged usage: %v", err)
		}
	})
}

// What clients at once are given never exceeds any limit.
func TestReserveRace(t *testing.T) {
	s := open(t)
	const rpm, tpm, parallel, budget, need, used = 500, 40_000, 8, 30_000, 100, 130
	_, secret := s.mustMake(t, gateway.KeySpec{Tenant: "a", RPM: rpm, TPM: tpm, Parallel: parallel, Budget: budget})
	g, _ := s.Find([]byte(secret), time.Now())
	now := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
	var running, most, admitted, tokens atomic.Int64
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for range 100 {
				r := gateway.Reserving{Tokens: need}
				if _, err := s.Reserve(g, now, r); err != nil {
					continue
				}
				n := running.Add(1)
				for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				}
				admitted.Add(1)
				tokens.Add(used)
				running.Add(-1)
				s.Settle(g, now, r, used)
			}
		})
	}
	wg.Wait()
	if admitted.Load() > rpm || most.Load() > parallel || tokens.Load() > budget+parallel*(used-need) || tokens.Load() < budget-need-used {
		t.Errorf("admitted %d of %d, at once %d of %d, tokens %d of %d", admitted.Load(), rpm, most.Load(), parallel, tokens.Load(), budget)
	}
	if got := s.List(); len(got) != 1 {
		t.Errorf("%d keys", len(got))
	}
}

// Two stores on one file, as a server and `aloft keys` are.
func TestTwoWriters(t *testing.T) {
	a := open(t)
	b, err := Open(a.path, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for _, s := range []*Store{a, b, a, b} {
		wg.Go(func() {
			for range 5 {
				if _, _, err := s.Make(gateway.KeySpec{Tenant: "t"}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if err := a.Reload(); err != nil || len(a.List()) != 20 {
		t.Errorf("%d keys (%v), want 20", len(a.List()), err)
	}
	left, _ := filepath.Glob(filepath.Join(filepath.Dir(a.path), ".keys.yaml-*"))
	if len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestHotPathAllocatesNothing(t *testing.T) {
	s := open(t)
	_, secret := s.mustMake(t, gateway.KeySpec{Tenant: "a", RPM: 1 << 30, TPM: 1 << 30, Parallel: 5, Budget: 1 << 40})
	raw, now, r := []byte(secret), time.Now(), gateway.Reserving{Tokens: 10}
	if n := testing.AllocsPerRun(100, func() {
		g, ok := s.Find(raw, time.Now())
		if _, err := s.Reserve(g, now, r); err != nil || !ok {
			t.Fatal(err)
		}
		s.Settle(g, now, r, 12)
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

func BenchmarkFind(b *testing.B) {
	list := make([]Entry, 1000)
	for i := range list {
		list[i] = Entry{ID: fmt.Sprint("k", i), SHA256: fmt.Sprintf("%064x", i), KeySpec: gateway.KeySpec{Tenant: "t"}}
	}
	path := filepath.Join(b.TempDir(), "keys.yaml")
	text, err := format(list)
	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		b.Fatal(err)
	}
	s, err := Open(path, "", nil)
	if err != nil {
		b.Fatal(err)
	}
	_, secret, err := s.Make(gateway.KeySpec{Tenant: "t"})
	if err != nil {
		b.Fatal(err)
	}
	raw := []byte(secret)
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := s.Find(raw, time.Now()); !ok {
			b.Fatal("not found")
		}
	}
}
