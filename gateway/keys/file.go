package keys

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"

	"aloft/backends"
	"aloft/gateway"
	"aloft/jobs"
)

const (
	maxKeys  = 10_000  // of a file
	maxBytes = 4 << 20 // of a file; goccy/go-yaml takes half a second a MiB
	maxName  = 200     // bytes of a name, tenant or model
	maxModel = 1000    // names that a key lists
	maxLimit = 1 << 40 // of any limit: keeps sums far from overflow
)

// Entry is a key as the key file has it. Times are whole seconds in UTC.
type Entry struct {
	ID              string    `yaml:"id"`
	SHA256          string    `yaml:"sha256"` // of the secret, 64 hex digits
	Previous        *Previous `yaml:"previous,omitempty"`
	Created         time.Time `yaml:"created,omitempty"`
	Rotated         time.Time `yaml:"rotated,omitempty"`
	Hint            string    `yaml:"hint,omitempty"` // the secret's last four characters
	gateway.KeySpec `yaml:",inline"`
}

// Previous is the secret before the last rotation, good until a time.
type Previous struct {
	SHA256 string    `yaml:"sha256"`
	Until  time.Time `yaml:"until"`
}

type file struct {
	Keys []Entry `yaml:"keys"`
}

const heading = `# The API keys of Aloft, written by "aloft keys" and the admin API and safe to
# edit: a running server reads it again when it changes. Secrets are not in it,
# only their SHA-256. While this file exists every request needs a key, even if
# it lists none: delete the entry, not the file, to revoke the last key.
`

// long is what may be a secret or a hash, or most of one, in the wrong place of a
// damaged file: errors come into logs and answers without it.
var long = regexp.MustCompile(`sk-[A-Za-z0-9_-]+|[A-Za-z0-9_+/=-]{24,}`)

// parse reads a key file. An error names the line and the entry, and what was
// expected there.
func parse(text []byte) ([]Entry, error) {
	list, err := read(text)
	if err != nil {
		return nil, errors.New(long.ReplaceAllString(err.Error(), "(hidden)"))
	}
	return list, nil
}

func read(text []byte) ([]Entry, error) {
	if len(text) > maxBytes {
		return nil, fmt.Errorf("%d bytes, want at most %d", len(text), maxBytes)
	}
	tree, err := tree(text)
	var f file
	if err == nil && len(tree.Docs) > 0 && tree.Docs[0].Body != nil {
		err = yaml.NodeToValue(tree.Docs[0].Body, &f, yaml.Strict())
	}
	if err != nil {
		return nil, readable(err)
	}
	if len(f.Keys) > maxKeys {
		return nil, fmt.Errorf("%d keys, want at most %d", len(f.Keys), maxKeys)
	}
	ids, hashes := map[string]int{}, map[string]int{}
	for i := range f.Keys {
		e := &f.Keys[i]
		e.tidy()
		field, err := e.check()
		if err == nil {
			field, err = e.repeats(i, ids, hashes)
		}
		if err != nil {
			return nil, fmt.Errorf("%skeys[%d] (%.70q): %w", lineOf(tree, i, field), i, e.ID, err)
		}
	}
	return f.Keys, nil
}

// readable says in our words what the library found; an error of ours says it.
func readable(err error) error {
	wrong, ok := errors.AsType[yaml.Error](err)
	if !ok || wrong.GetToken() == nil {
		return err
	}
	text := wrong.GetMessage()
	if kind, ok := errors.AsType[*yaml.TypeError](err); ok {
		text = fmt.Sprintf("a %s stands where %s is wanted", kind.SrcType, kind.DstType)
	}
	return fmt.Errorf("line %d: %s; a key file is \"keys:\" and below it a list of entries with id, sha256, tenant and limits",
		wrong.GetToken().Position.Line, text)
}

// lineOf finds the line of an entry's field, or of the entry: "line 12: ".
func lineOf(tree *ast.File, i int, field string) string {
	for _, at := range []string{fmt.Sprintf("$.keys[%d].%s", i, field), fmt.Sprintf("$.keys[%d]", i)} {
		p, err := yaml.PathString(at)
		if err != nil {
			continue
		}
		if node, err := p.FilterFile(tree); err == nil && node != nil && node.GetToken() != nil {
			return fmt.Sprintf("line %d: ", node.GetToken().Position.Line)
		}
	}
	return ""
}

// tidy brings an entry into the one form that is compared and written.
func (e *Entry) tidy() {
	e.SHA256 = strings.ToLower(e.SHA256)
	if e.Previous != nil {
		e.Previous.SHA256 = strings.ToLower(e.Previous.SHA256)
		e.Previous.Until = second(e.Previous.Until)
	}
	e.Created, e.Rotated, e.Expires = second(e.Created), second(e.Rotated), second(e.Expires)
	if len(e.Models) == 0 {
		e.Models = nil
	}
}

func second(t time.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return t.UTC().Truncate(time.Second)
}

var goodID = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]{0,63}$`)

// check returns the first wrong field and what is wrong.
func (e *Entry) check() (field string, err error) {
	switch {
	case !goodID.MatchString(e.ID):
		return "id", fmt.Errorf("id is %.70q, want a letter and up to 63 letters, digits, - and _", e.ID)
	case !isHash(e.SHA256):
		return "sha256", fmt.Errorf("sha256 is not 64 hex digits")
	case e.Previous != nil && !isHash(e.Previous.SHA256):
		return "previous.sha256", fmt.Errorf("previous.sha256 is not 64 hex digits")
	case e.Previous != nil && !validTime(e.Previous.Until):
		return "previous.until", fmt.Errorf("previous.until is not a time from 2000 to 9999")
	case !optionalTime(e.Created):
		return "created", fmt.Errorf("created is not a time from 2000 to 9999")
	case !optionalTime(e.Rotated):
		return "rotated", fmt.Errorf("rotated is not a time from 2000 to 9999")
	case len(e.Hint) > 8 || !plain(e.Hint):
		return "hint", fmt.Errorf("hint is longer than 8 bytes or not printable")
	}
	if bad := checkSpec(e.KeySpec); bad != nil {
		return bad.Param, bad
	}
	return "", nil
}

// repeats finds an id or a hash that an earlier entry has.
func (e *Entry) repeats(i int, ids, hashes map[string]int) (field string, err error) {
	if j, twice := ids[e.ID]; twice {
		return "id", fmt.Errorf("id is that of keys[%d], too", j)
	}
	ids[e.ID] = i
	own := []string{e.SHA256}
	if e.Previous != nil {
		own = append(own, e.Previous.SHA256)
	}
	for _, h := range own {
		if j, twice := hashes[h]; twice {
			return "sha256", fmt.Errorf("a hash is that of keys[%d], too", j)
		}
		hashes[h] = i
	}
	return "", nil
}

// checkSpec names fields as JSON and YAML do.
func checkSpec(s gateway.KeySpec) *jobs.InvalidError {
	bad := func(field, format string, args ...any) *jobs.InvalidError {
		return &jobs.InvalidError{Param: field, Reason: fmt.Sprintf(format, args...)}
	}
	switch _, known := classes[s.Class]; {
	case s.Tenant == "": // "" would select everybody's files and jobs
		return bad("tenant", "is missing")
	case len(s.Tenant) > maxName || !plain(s.Tenant):
		return bad("tenant", "is longer than %d bytes or not printable", maxName)
	case len(s.Name) > maxName || !plain(s.Name):
		return bad("name", "is longer than %d bytes or not printable", maxName)
	case !known:
		return bad("class", "%.40q is not interactive, standard or offline", s.Class)
	case len(s.Models) > maxModel:
		return bad("models", "has %d names, want at most %d", len(s.Models), maxModel)
	case !optionalTime(s.Expires):
		return bad("expires_at", "is not a time from 2000 to 9999")
	}
	for _, m := range s.Models {
		if m == "" || len(m) > maxName || !plain(m) {
			return bad("models", "%.40q is empty, longer than %d bytes or not printable", m, maxName)
		}
	}
	for _, l := range []struct {
		field string
		n     int64
	}{{"requests_per_minute", int64(s.RPM)}, {"tokens_per_minute", int64(s.TPM)}, {"parallel", int64(s.Parallel)}, {"tokens_per_month", s.Budget}} {
		if l.n < 0 || l.n > maxLimit {
			return bad(l.field, "%d is not from 0 (no limit) to %d", l.n, int64(maxLimit))
		}
	}
	return nil
}

var classes = map[string]backends.Class{
	"": backends.Interactive, "interactive": backends.Interactive, "standard": backends.Standard, "offline": backends.Offline,
}

func isHash(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == sha256.Size
}

func hashOf(s string) (h [sha256.Size]byte) {
	if _, err := hex.Decode(h[:], []byte(s)); err != nil {
		panic("BUG: unchecked hash of a key")
	}
	return h
}

func validTime(t time.Time) bool    { return t.Year() >= 2000 && t.Year() <= 9999 }
func optionalTime(t time.Time) bool { return t.IsZero() || validTime(t) }

// plain is text that looks the same in a file, a table and a log line.
func plain(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) && strings.TrimSpace(s) == s
}

// format is what parse reads back equal.
func format(list []Entry) ([]byte, error) {
	// All strings in quotes: left to itself the library writes "? a" without, and
	// does not read it back.
	quoted := yaml.CustomMarshaler(func(s string) ([]byte, error) { return []byte(strconv.Quote(s)), nil })
	b, err := yaml.MarshalWithOptions(file{list}, yaml.IndentSequence(true), quoted)
	return append([]byte(heading), b...), err
}

// WriteFile replaces a file in one step, readable by its owner alone, and safe on
// disk, with its name, before it returns. After a crash there is the old file or
// the new one.
func WriteFile(path string, b []byte) (err error) {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-") // 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(tmp.Name())
		}
	}()
	_, err = tmp.Write(b)
	if err == nil {
		err = tmp.Sync()
	}
	if e := tmp.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}
