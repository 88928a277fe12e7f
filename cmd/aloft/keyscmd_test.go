package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"aloft/backends"
	"aloft/gateway"
	"aloft/gateway/keys"
)

// person runs commands as a person does, in an environment of their own.
type person struct{ t *testing.T }

func newPerson(t *testing.T, env ...string) person {
	for _, name := range []string{"ALOFT_URL", "ALOFT_API_KEY", "ALOFT_DATA"} {
		t.Setenv(name, "")
		os.Unsetenv(name)
	}
	for i := 0; i+1 < len(env); i += 2 {
		t.Setenv(env[i], env[i+1])
	}
	t.Chdir(t.TempDir())
	return person{t}
}

// tries runs a command that may fail.
func (p person) tries(args ...string) (stdout, stderr string, err error) {
	var out, told bytes.Buffer
	err = run(p.t.Context(), append([]string{"keys"}, args...), &out, &told)
	return out.String(), told.String(), err
}

func (p person) does(args ...string) (stdout, stderr string) {
	p.t.Helper()
	stdout, stderr, err := p.tries(args...)
	if err != nil {
		p.t.Fatalf("keys %v: %v", args, err)
	}
	return stdout, stderr
}

// secret runs a command that prints a secret, and nothing else.
func (p person) secret(args ...string) (secret, stderr string) {
	p.t.Helper()
	out, stderr := p.does(args...)
	secret = strings.TrimSuffix(out, "\n")
	if !strings.HasPrefix(secret, "sk-aloft-") || strings.ContainsAny(secret, " \n") || out != secret+"\n" {
		p.t.Errorf("keys %v printed %q, want a secret on its line", args, out)
	}
	if strings.Contains(stderr, secret) {
		p.t.Errorf("the secret is also on standard error: %s", stderr)
	}
	return secret, stderr
}

func (p person) list(args ...string) []gateway.KeyObject {
	p.t.Helper()
	out, _ := p.does(append([]string{"list", "--json"}, args...)...)
	var v struct {
		Object string
		Data   []gateway.KeyObject
	}
	if err := json.Unmarshal([]byte(out), &v); err != nil || v.Object != "list" {
		p.t.Fatalf("%v: %s", err, out)
	}
	return v.Data
}

func opens(s *keys.Store, secret string) bool { _, ok := s.Find([]byte(secret), time.Now()); return ok }

// The life of keys: in a file, with a server's store beside it, and through the
// admin API. Both ways show the same.
func TestKeysCommands(t *testing.T) {
	t.Run("file", func(t *testing.T) {
		p := newPerson(t)
		path := filepath.Join("aloft-data", keyFileName)
		if out, told := p.does("list"); out != "" || told != "no key in "+path+"\n" {
			t.Errorf("without a file: %q %q", out, told)
		}
		if _, err := os.Stat("aloft-data"); err == nil {
			t.Error("listing has made the data folder")
		}
		server, err := keys.Open(path, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		lifeOfKeys(t, p, func() *keys.Store {
			if err := server.Reload(); err != nil {
				t.Error(err)
			}
			return server
		})
	})
	t.Run("api", func(t *testing.T) {
		server, url := keyOffice(t)
		p := newPerson(t, "ALOFT_URL", url)
		lifeOfKeys(t, p, func() *keys.Store { return server })
		t.Setenv("ALOFT_API_KEY", "sk-aloft-no")
		if _, _, err := p.tries("list"); err == nil || !strings.Contains(err.Error(), "401") {
			t.Errorf("a wrong key: %v", err)
		}
	})
}

func lifeOfKeys(t *testing.T, p person, server func() *keys.Store) {
	boss, told := p.secret("make", "--admin", "--tenant", "ops")
	if !strings.Contains(told, "from now on every request") || strings.Contains(told, "opens no admin route") {
		t.Errorf("the first key: %s", told)
	}
	t.Setenv("ALOFT_API_KEY", boss)
	secret, told := p.secret("make", "--tenant", "red", "--name", "night shift", "--class", "offline", "--model", "a,b", "--model", "c/d:e",
		"--rpm", "60", "--tpm", "5000", "--parallel", "4", "--budget", "5000000000", "--expires", "2100-01-31", "--overflow")
	if strings.Contains(told, "from now on") {
		t.Errorf("the second key: %s", told)
	}
	if !opens(server(), boss) || !opens(server(), secret) {
		t.Error("a server does not know the keys")
	}
	list := p.list()
	if len(list) != 2 || list[0].Tenant != "ops" || !list[0].Admin || list[0].Class != "interactive" || list[0].Expires != nil {
		t.Fatalf("listed %+v", list)
	}
	id := list[1].ID
	got, _ := json.Marshal(list[1])
	want := `{"id":"` + id + `","object":"key","name":"night shift","tenant":"red","class":"offline","models":["a,b","c/d:e"],"admin":false,` +
		`"overflow":true,"requests_per_minute":60,"tokens_per_minute":5000,"parallel":4,"tokens_per_month":5000000000,` +
		`"tokens_used_this_month":0,"hint":"` + secret[len(secret)-4:] + `","created_at":T,"rotated_at":null,"expires_at":4105036800}`
	if age := time.Now().Unix() - *list[1].Created; age < 0 || age > 60 {
		t.Errorf("created %d s ago", age)
	}
	if g := strings.Replace(string(got), ts(list[1].Created), `"created_at":T`, 1); g != want {
		t.Errorf("listed\n%s, want\n%s", g, want)
	}

	second, told := p.secret("rotate", id, "--overlap", "24h")
	if !strings.Contains(told, "stays good for 24h") || !opens(server(), secret) || !opens(server(), second) {
		t.Errorf("rotated: %s old %v, new %v", told, opens(server(), secret), opens(server(), second))
	}
	third, _ := p.secret("rotate", id)
	if opens(server(), second) || !opens(server(), third) {
		t.Error("rotated without overlap: the old one opens, or the new one does not")
	}
	out, _ := p.does("list")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 3 || !strings.Contains(lines[1], "admin") || !strings.Contains(lines[2], "0 of 5000000000") || !strings.Contains(lines[2], "2100-01-31T00:00Z") {
		t.Errorf("table:\n%s", out)
	}
	for _, s := range []string{boss, secret, second, third} {
		if strings.Contains(out, s) {
			t.Errorf("the table shows %s", s)
		}
	}
	if out, told := p.does("revoke", id); out != "" || !strings.Contains(told, id) || opens(server(), third) {
		t.Errorf("revoked: %q %q, opens %v", out, told, opens(server(), third))
	}
	if _, _, err := p.tries("revoke", id); err == nil || !strings.Contains(err.Error(), "not found") {
		t.Errorf("revoked again: %v", err)
	}
}

func ts(t *int64) string { b, _ := json.Marshal(t); return `"created_at":` + string(b) }

// nothing serves no model.
type nothing struct{}

func (nothing) Lookup(string) (gateway.Model, bool) { return gateway.Model{}, false }
func (nothing) Models() []gateway.Model             { return nil }
func (nothing) Submit(context.Context, *backends.Request) (*backends.Reply, error) {
	return nil, errors.New("no engine in this test")
}

// keyOffice serves the admin API over TCP.
func keyOffice(t *testing.T) (*keys.Store, string) {
	t.Helper()
	store, err := keys.Open(filepath.Join(t.TempDir(), "keys.yaml"), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	g, err := gateway.New(gateway.Options{DrainGrace: time.Second}, gateway.Deps{Catalog: nothing{}, Submitter: nothing{}, Keys: store, KeyAdmin: store},
		slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- g.Serve(ctx, ln) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return store, "http://" + ln.Addr().String()
}

func TestKeysCommandsRefuse(t *testing.T) {
	p := newPerson(t)
	for _, tt := range []struct {
		want string
		args []string
	}{
		{"--tenant", []string{"make"}},
		{"--class", []string{"make", "--tenant", "a", "--class", "best"}},
		{"requests_per_minute", []string{"make", "--tenant", "a", "--rpm=-1"}},
		{"models", []string{"make", "--tenant", "a", "--model", ""}},
		{"--expires", []string{"make", "--tenant", "a", "--expires", "soon"}},
		{"expires_at: is in the past", []string{"make", "--tenant", "a", "--expires", "2020-01-01"}},
		{"expires_at: is in the past", []string{"make", "--tenant", "a", "--expires=-1h"}},
		{"two places", []string{"make", "--tenant", "a", "--file", "f", "--url", "http://127.0.0.1:1"}},
		{"not found", []string{"rotate", "key_none"}},
		{"overlap_seconds", []string{"rotate", "key_none", "--overlap", "10000h"}},
		{"whole seconds", []string{"rotate", "key_none", "--overlap", "1500ms"}},
		{"no server at", []string{"list", "--url", "http://127.0.0.1:1"}},
	} {
		if out, _, err := p.tries(tt.args...); err == nil || !strings.Contains(err.Error(), tt.want) || out != "" {
			t.Errorf("keys %q: %v, printed %q; want …%s…", tt.args, err, out, tt.want)
		}
	}
	if files, _ := filepath.Glob("aloft-data/*.yaml"); len(files) > 0 {
		t.Errorf("a refused command has made %v", files)
	}
}

func TestKeysExpiry(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"":                          {},
		"720h":                      now.Add(30 * 24 * time.Hour),
		"2027-01-31":                time.Date(2027, 1, 31, 0, 0, 0, 0, time.UTC),
		"2027-01-31T12:30:00+02:00": time.Date(2027, 1, 31, 10, 30, 0, 0, time.UTC),
	} {
		if got, err := expiry(text, now); err != nil || !got.Equal(want) {
			t.Errorf("%q: %v %v, want %v", text, got, err, want)
		}
	}
}

// A file by its name, without a data folder; and the hint of the first key that
// is none for admins.
func TestKeysFile(t *testing.T) {
	p := newPerson(t, "ALOFT_DATA", "data")
	_, told := p.secret("make", "--tenant", "a", "--file", "my.yaml")
	if !strings.Contains(told, "in my.yaml") || !strings.Contains(told, "keys make --admin") {
		t.Errorf("%s", told)
	}
	if n := len(p.list("--file", "my.yaml")); n != 1 {
		t.Errorf("%d keys in the file, want 1", n)
	}
	p.secret("make", "--tenant", "b")
	if n := len(p.list()); n != 1 {
		t.Errorf("%d keys in the data folder, want 1", n)
	}
	if _, err := os.Stat("data/" + keyFileName); err != nil {
		t.Error(err)
	}
}

// A server that was open wants keys as soon as somebody makes one, and lets a
// key go that somebody revokes.
func TestServeTakesKeys(t *testing.T) {
	s := start(t, t.TempDir(), nil, "--config", write(t, "aloft.yaml", tiny))
	models := func(key string) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/v1/models", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+key)
		req.Close = true
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	if got := models("any"); got != http.StatusOK {
		t.Fatalf("without keys: %d", got)
	}
	boss := strings.TrimSpace(call(t, s.env(), "keys", "make", "--admin", "--tenant", "ops"))
	if !eventually(patience, func() bool { return models("") == http.StatusUnauthorized }) {
		t.Fatal("a key was made and the server wants none")
	}
	api := []string{"ALOFT_URL=" + s.url, "ALOFT_API_KEY=" + boss}
	user := strings.TrimSpace(call(t, api, "keys", "make", "--tenant", "red"))
	if got := models(user); got != http.StatusOK {
		t.Errorf("a key made over HTTP: %d", got)
	}
	if got := models(boss); got != http.StatusForbidden {
		t.Errorf("an admin key on the API: %d", got)
	}
	var list struct{ Data []gateway.KeyObject }
	if err := json.Unmarshal([]byte(call(t, s.env(), "keys", "list", "--json")), &list); err != nil || len(list.Data) != 2 {
		t.Fatalf("%v, %d keys in the file, want 2", err, len(list.Data))
	}
	call(t, s.env(), "keys", "revoke", list.Data[1].ID)
	if !eventually(patience, func() bool { return models(user) == http.StatusUnauthorized }) {
		t.Error("a revoked key opens")
	}
	s.stop(t)
	for _, secret := range []string{boss, user} {
		if strings.Contains(s.err.String()+s.out.String(), secret) {
			t.Error("a secret is in the server's log")
		}
	}
}
