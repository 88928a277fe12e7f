package gateway_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

type none struct{}

func (none) Lookup(string) (gateway.Model, bool) { return gateway.Model{}, false }
func (none) Models() []gateway.Model             { return nil }
func (none) Submit(context.Context, *backends.Request) (*backends.Reply, error) {
	return nil, errors.New("no engine in this test")
}

// office is a gateway with a real key store, on a real port.
type office struct {
	url  string
	file string // of the keys
	log  *strings.Builder
}

func startOffice(t *testing.T) *office {
	t.Helper()
	o := &office{file: filepath.Join(t.TempDir(), "keys.yaml"), log: &strings.Builder{}}
	store, err := keys.Open(o.file, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := gateway.New(gateway.Options{DrainGrace: time.Second, CORS: []string{"*"}},
		gateway.Deps{Catalog: none{}, Submitter: none{}, Keys: store, KeyAdmin: store}, slog.New(slog.NewTextHandler(o.log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o.url = "http://" + ln.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, ln) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	return o
}

type reply struct {
	status int
	header http.Header
	text   string
	body   map[string]any
}

// ask sends a request; a body is JSON unless headers say otherwise.
func (o *office) ask(t *testing.T, secret, method, path, body string, headers ...string) reply {
	t.Helper()
	req, err := http.NewRequest(method, o.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if secret != "" {
		req.Header.Set("Authorization", "Bearer "+secret)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
		if headers[i+1] == "" {
			req.Header.Del(headers[i])
		}
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	r := reply{status: resp.StatusCode, header: resp.Header, text: string(text)}
	if err := json.Unmarshal(text, &r.body); err != nil {
		t.Fatalf("%s %s: %d %s", method, path, r.status, text)
	}
	return r
}

// fault is the answer's error, as "status param code".
func (r reply) fault() string {
	e, _ := r.body["error"].(map[string]any)
	return fmt.Sprint(r.status, " ", e["param"], " ", e["code"])
}

// make makes a key and returns its id and secret.
func (o *office) make(t *testing.T, secret, body string) (string, string) {
	t.Helper()
	r := o.ask(t, secret, "POST", "/aloft/v1/keys", body)
	if r.status != 200 {
		t.Fatalf("make %s: %d %s", body, r.status, r.text)
	}
	return r.body["id"].(string), r.body["secret"].(string)
}

// A key file that was edited badly while the server runs: keys stay valid, and who
// would change one is told what to mend. No secret or hash is told.
func TestAdminDamagedFile(t *testing.T) {
	o := startOffice(t)
	id, boss := o.make(t, "", `{"tenant":"ops","admin":true}`)
	text, err := os.ReadFile(o.file)
	if err != nil {
		t.Fatal(err)
	}
	_, hash, _ := strings.Cut(string(text), `sha256: "`)
	damaged := append(text, "  "+boss+": "+hash[:64]+"\n"...)
	if err := os.WriteFile(o.file, damaged, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, call := range [][3]string{{"POST", "/aloft/v1/keys", `{"tenant":"a"}`}, {"POST", "/aloft/v1/keys/" + id + "/rotate", "{}"}, {"DELETE", "/aloft/v1/keys/" + id, ""}} {
		r := o.ask(t, boss, call[0], call[1], call[2])
		e, _ := r.body["error"].(map[string]any)
		words, _ := e["message"].(string)
		if r.fault() != "409 <nil> conflict" || !strings.HasPrefix(words, fmt.Sprintf("nothing was changed: key file %s: line ", o.file)) || !strings.Contains(words, "a list of entries with id, sha256") {
			t.Errorf("%s %s: %s", call[0], call[1], r.text)
		}
		if strings.Contains(r.text, boss) || strings.Contains(r.text, hash[:64]) {
			t.Errorf("%s %s tells a secret: %s", call[0], call[1], r.text)
		}
	}
	if after, _ := os.ReadFile(o.file); string(after) != string(damaged) {
		t.Error("the damaged file was written to")
	}
	if r := o.ask(t, boss, "GET", "/aloft/v1/keys", ""); r.status != 200 {
		t.Errorf("list: %d %s", r.status, r.text)
	}
}

// A key's whole life, from a server without keys on.
func TestAdminKeys(t *testing.T) {
	o := startOffice(t)
	if r := o.ask(t, "", "GET", "/aloft/v1/keys", ""); r.status != 200 || len(r.body["data"].([]any)) != 0 {
		t.Fatalf("before the first key: %d %s", r.status, r.text)
	}
	_, boss := o.make(t, "", `{"tenant":"ops","admin":true}`)
	expires := time.Now().Add(time.Hour).Unix()
	r := o.ask(t, boss, "POST", "/aloft/v1/keys", fmt.Sprintf(`{"name":"ci","tenant":"red","class":"standard","models":["a","b/c:d"],
		"requests_per_minute":60,"tokens_per_minute":5000,"parallel":4,"tokens_per_month":1000000,"overflow":true,"expires_at":%d}`, expires))
	id, secret := r.body["id"].(string), r.body["secret"].(string)
	if r.status != 200 || !strings.HasPrefix(secret, "sk-aloft-") || r.header.Get("Cache-Control") != "no-store" {
		t.Errorf("made: %d %v %s", r.status, r.header, r.text)
	}

	got := o.ask(t, boss, "GET", "/aloft/v1/keys/"+id, "").body
	if age := time.Now().Unix() - int64(got["created_at"].(float64)); age < 0 || age > 60 {
		t.Errorf("created %v", got["created_at"])
	}
	delete(got, "created_at")
	want := map[string]any{"id": id, "object": "key", "name": "ci", "tenant": "red", "class": "standard", "models": []any{"a", "b/c:d"},
		"admin": false, "overflow": true, "requests_per_minute": 60., "tokens_per_minute": 5000., "parallel": 4., "tokens_per_month": 1e6,
		"tokens_used_this_month": 0., "hint": secret[len(secret)-4:], "rotated_at": nil, "expires_at": float64(expires)}
	if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w {
		t.Errorf("shown\n%s, want\n%s", g, w)
	}

	r = o.ask(t, boss, "POST", "/aloft/v1/keys/"+id+"/rotate", `{"overlap_seconds":3600}`)
	second, _ := r.body["secret"].(string)
	if r.status != 200 || second == "" || second == secret || r.body["rotated_at"] == nil || r.header.Get("Cache-Control") != "no-store" {
		t.Errorf("rotated: %d %s", r.status, r.text)
	}
	opens := func(s string) bool { return o.ask(t, s, "GET", "/v1/models", "").status == 200 }
	if !opens(secret) || !opens(second) {
		t.Errorf("within the overlap: old %v, new %v", opens(secret), opens(second))
	}
	r = o.ask(t, boss, "POST", "/aloft/v1/keys/"+id+"/rotate", `{}`)
	third, _ := r.body["secret"].(string)
	if opens(second) || !opens(third) {
		t.Errorf("rotated without overlap: old %v, new %v", opens(second), opens(third))
	}

	text := o.ask(t, boss, "GET", "/aloft/v1/keys", "").text
	file, err := os.ReadFile(o.file)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{boss, secret, second, third, "secret", "sha256"} {
		if strings.Contains(text, s) {
			t.Errorf("the listing shows %q: %s", s, text)
		}
		if strings.HasPrefix(s, "sk-") && strings.Contains(string(file)+o.log.String(), s) {
			t.Errorf("%s is in the key file or the log", s)
		}
	}

	if r := o.ask(t, boss, "DELETE", "/aloft/v1/keys/"+id, ""); r.status != 200 || r.body["deleted"] != true || opens(third) {
		t.Errorf("revoked: %d %s, opens %v", r.status, r.text, opens(third))
	}
	for _, gone := range [][2]string{{"GET", ""}, {"DELETE", ""}, {"POST", "/rotate"}} {
		body := map[string]string{"POST": "{}"}[gone[0]]
		if r := o.ask(t, boss, gone[0], "/aloft/v1/keys/"+id+gone[1], body); r.fault() != "404 <nil> not_found" {
			t.Errorf("%s of a revoked key: %s", gone[0], r.fault())
		}
	}
}

// What anybody but an admin, and what admins, are refused.
func TestAdminRefuses(t *testing.T) {
	o := startOffice(t)
	// Without a key: what a page in a browser on this machine could send.
	const first = `{"tenant":"evil","admin":true}`
	for _, headers := range [][]string{{"Content-Type", ""}, {"Content-Type", "text/plain"},
		{"Content-Type", "text/plain; charset=application/json"}, {"Origin", "http://evil.example"}, {"Origin", o.url}, {"Origin", "null"}} {
		if r := o.ask(t, "", "POST", "/aloft/v1/keys", first, headers...); r.status != 415 && r.status != 403 {
			t.Errorf("%v: %d %s", headers, r.status, r.text)
		}
	}
	if _, err := os.Stat(o.file); err == nil {
		t.Fatal("a page has made the first key")
	}
	if r := o.ask(t, "anything", "GET", "/v1/models", ""); r.status != 200 {
		t.Errorf("a key where none are wanted: %d", r.status)
	}

	_, boss := o.make(t, "", `{"tenant":"ops","admin":true}`)
	id, user := o.make(t, boss, `{"tenant":"red"}`)
	for _, tt := range []struct {
		secret, method, path, body, want string
	}{
		{"", "GET", "", "", "401 <nil> invalid_api_key"},
		{"", "POST", "", first, "401 <nil> invalid_api_key"},
		{"sk-aloft-no", "GET", "", "", "401 <nil> invalid_api_key"},
		{user, "GET", "", "", "403 <nil> admin_key_required"},
		{user, "POST", "", first, "403 <nil> admin_key_required"},
		{user, "GET", "/" + id, "", "403 <nil> admin_key_required"},
		{user, "DELETE", "/" + id, "", "403 <nil> admin_key_required"},
		{user, "POST", "/" + id + "/rotate", "{}", "403 <nil> admin_key_required"},

		{boss, "POST", "", "{}", "400 tenant invalid_value"},
		{boss, "POST", "", "null", "400 tenant invalid_value"},
		{boss, "POST", "", "[]", "400 <nil> invalid_type"},
		{boss, "POST", "", "{", "400 <nil> <nil>"},
		{boss, "POST", "", `{"tenant":5}`, "400 tenant invalid_type"},
		{boss, "POST", "", `{"tenant":"a","modles":["x"]}`, "400 modles unknown_parameter"},
		{boss, "POST", "", `{"tenant":"a","class":"best"}`, "400 class invalid_value"},
		{boss, "POST", "", `{"tenant":"a","models":["x",1]}`, "400 models invalid_type"},
		{boss, "POST", "", `{"tenant":"a","models":[""]}`, "400 models invalid_value"},
		{boss, "POST", "", `{"tenant":"a","parallel":-1}`, "400 parallel invalid_value"},
		{boss, "POST", "", `{"tenant":"a","parallel":1.5}`, "400 parallel invalid_type"},
		{boss, "POST", "", `{"tenant":"a","requests_per_minute":"many"}`, "400 requests_per_minute invalid_type"},
		{boss, "POST", "", `{"tenant":"a","expires_at":1}`, "400 expires_at invalid_value"},
		{boss, "POST", "", `{"tenant":"a","expires_at":9223372036854775807}`, "400 expires_at invalid_value"},
		{boss, "POST", "", `{"tenant":"a","expires_at":"2030-01-01"}`, "400 expires_at invalid_type"},
		{boss, "POST", "/" + id + "/rotate", `{"overlap":5}`, "400 overlap unknown_parameter"},
		{boss, "POST", "/" + id + "/rotate", `{"overlap_seconds":-1}`, "400 overlap_seconds invalid_value"},
		{boss, "POST", "/" + id + "/rotate", `{"overlap_seconds":9223372036854775807}`, "400 overlap_seconds invalid_value"},
		{boss, "POST", "/" + id + "/rotate", `{"overlap_seconds":10000000}`, "400 overlap_seconds invalid_value"},
		{boss, "GET", "/key_none", "", "404 <nil> not_found"},
		{boss, "PUT", "", "{}", "405 <nil> unknown_url"},
		{boss, "GET", "/" + id + "/rotate", "", "405 <nil> unknown_url"},
	} {
		if r := o.ask(t, tt.secret, tt.method, "/aloft/v1/keys"+tt.path, tt.body); r.fault() != tt.want {
			t.Errorf("%s %s %s: %s, want %s: %s", tt.method, tt.path, tt.body, r.fault(), tt.want, r.text)
		}
	}
	if r := o.ask(t, boss, "GET", "/v1/models", ""); r.fault() != "403 <nil> user_key_required" {
		t.Errorf("an admin key on the API: %s", r.text)
	}
	// With keys a page may: it has to know one.
	if r := o.ask(t, boss, "POST", "/aloft/v1/keys", `{"tenant":"a"}`, "Origin", "http://board.example"); r.status != 200 {
		t.Errorf("a page with an admin key: %d %s", r.status, r.text)
	}
}

// A store that cannot write is the server's fault, told to the log alone.
func TestAdminStore(t *testing.T) {
	o := startOffice(t)
	_, boss := o.make(t, "", `{"tenant":"ops","admin":true}`)
	lock := o.file + ".lock"
	if err := errors.Join(os.Remove(lock), os.Mkdir(lock, 0o700)); err != nil {
		t.Fatal(err)
	}
	if r := o.ask(t, boss, "POST", "/aloft/v1/keys", `{"tenant":"a"}`); r.fault() != "500 <nil> internal_error" || !strings.Contains(o.log.String(), lock) {
		t.Errorf("no lock: %s, log %s", r.text, o.log)
	}
}
