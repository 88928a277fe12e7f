package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/alecthomas/kong"

	"aloft/gateway"
	"aloft/gateway/keys"
)

// Files of the data folder: the keys, unless the configuration names another
// file, and what each used this month.
const (
	keyFileName  = "keys.yaml"
	keyUsageName = "usage.json"
)

// keyring are the flags that say where keys are: in a key file, which a running
// server reads again when it changes, or behind the admin API.
type keyring struct {
	URL  string `help:"Use the admin API of this server instead of a file." env:"ALOFT_URL" placeholder:"URL"`
	Key  string `help:"Admin key for --url." env:"ALOFT_API_KEY" placeholder:"KEY"`
	CA   string `name:"ca" help:"PEM file with the certificate that the server's is signed by, or is." env:"ALOFT_CA" placeholder:"FILE"`
	Data string `help:"Data folder; default: aloft-data." env:"ALOFT_DATA" placeholder:"DIR"`
	File string `help:"Key file; default: keys.yaml in the data folder." placeholder:"FILE"`
}

// keyStore is a file's or a server's keys, in the admin API's form. What make
// and rotate return has the secret.
type keyStore interface {
	list(ctx context.Context) ([]gateway.KeyObject, error)
	make(ctx context.Context, spec gateway.KeySpec) (gateway.KeyObject, error)
	rotate(ctx context.Context, id string, overlap time.Duration) (gateway.KeyObject, error)
	revoke(ctx context.Context, id string) error
	// wanted reports whether requests need a key already.
	wanted() bool
}

// open finds the store and says where it is.
func (k keyring) open() (s keyStore, where string, err error) {
	if k.URL != "" && k.File != "" {
		return nil, "", fmt.Errorf("--file and --url (ALOFT_URL) are two places: name one")
	}
	if k.URL != "" {
		return keyServer{remote{URL: k.URL, Key: k.Key, CA: k.CA}.client()}, k.URL, nil
	}
	data := cmp.Or(k.Data, "aloft-data")
	where = cmp.Or(k.File, filepath.Join(data, keyFileName))
	store, err := keys.Open(where, filepath.Join(data, keyUsageName), nil)
	if err != nil {
		return nil, "", err
	}
	return keyFile{store}, where, nil
}

// keyFile is a keyStore in a file.
type keyFile struct{ *keys.Store }

func (f keyFile) wanted() bool { return f.Enabled() }

func (f keyFile) list(context.Context) ([]gateway.KeyObject, error) {
	out := []gateway.KeyObject{}
	for _, k := range f.List() {
		out = append(out, k.Object())
	}
	return out, nil
}

func (f keyFile) make(_ context.Context, spec gateway.KeySpec) (gateway.KeyObject, error) {
	return withSecret(f.Make(spec))
}

func (f keyFile) rotate(_ context.Context, id string, overlap time.Duration) (gateway.KeyObject, error) {
	return withSecret(f.Rotate(id, overlap))
}

func (f keyFile) revoke(_ context.Context, id string) error { return f.Revoke(id) }

func withSecret(k gateway.KeyInfo, secret string, err error) (gateway.KeyObject, error) {
	o := k.Object()
	o.Secret = secret
	return o, err
}

// keyServer is a keyStore behind the admin API.
type keyServer struct{ *client }

const keysPath = "/aloft/v1/keys"

// wanted is a guess: a server that answers without a key wants none.
func (s keyServer) wanted() bool { return s.key != "" }

func (s keyServer) list(ctx context.Context) ([]gateway.KeyObject, error) {
	var v struct{ Data []gateway.KeyObject }
	return v.Data, s.call(ctx, http.MethodGet, keysPath, nil, &v)
}

func (s keyServer) make(ctx context.Context, spec gateway.KeySpec) (o gateway.KeyObject, err error) {
	in := struct {
		gateway.KeySpec
		Expires *int64 `json:"expires_at"` // in the API's form, and instead of KeySpec's
	}{KeySpec: spec}
	if !spec.Expires.IsZero() {
		in.Expires = new(spec.Expires.Unix())
	}
	return o, s.call(ctx, http.MethodPost, keysPath, in, &o)
}

func (s keyServer) rotate(ctx context.Context, id string, overlap time.Duration) (o gateway.KeyObject, err error) {
	in := map[string]int64{"overlap_seconds": int64(overlap / time.Second)}
	return o, s.call(ctx, http.MethodPost, keysPath+"/"+url.PathEscape(id)+"/rotate", in, &o)
}

func (s keyServer) revoke(ctx context.Context, id string) error {
	var deleted json.RawMessage
	return s.call(ctx, http.MethodDelete, keysPath+"/"+url.PathEscape(id), nil, &deleted)
}

type keysMakeCmd struct {
	keyring
	Tenant   string   `required:"" help:"Who pays: files, batches and jobs belong to a tenant." placeholder:"TENANT"`
	Name     string   `help:"For people." placeholder:"NAME"`
	Class    string   `help:"The best priority its requests may have: interactive, standard or offline." enum:"interactive,standard,offline" default:"interactive"`
	Models   []string `name:"model" sep:"none" help:"A model it may use (repeatable); default: all." placeholder:"MODEL"`
	RPM      int      `name:"rpm" help:"Requests per minute; 0 = no limit." placeholder:"N"`
	TPM      int      `name:"tpm" help:"Tokens per minute; 0 = no limit." placeholder:"N"`
	Parallel int      `help:"Requests at once; 0 = no limit." placeholder:"N"`
	Budget   int64    `help:"Tokens per calendar month (UTC); 0 = no limit." placeholder:"N"`
	Expires  string   `help:"When it ends: in so long (720h), or a date or time (2027-01-31, 2027-01-31T12:00:00Z; UTC)." placeholder:"WHEN"`
	Admin    bool     `help:"For the admin API, and nothing else."`
	Overflow bool     `help:"Its requests may be sent to the models' external providers."`
}

// Run implements kong's command. The secret alone goes to standard output.
func (c *keysMakeCmd) Run(ctx context.Context, k *kong.Context) error {
	expires, err := expiry(c.Expires, time.Now())
	if err != nil {
		return err
	}
	s, where, err := c.open()
	if err != nil {
		return err
	}
	wanted := s.wanted()
	o, err := s.make(ctx, gateway.KeySpec{Name: c.Name, Tenant: c.Tenant, Class: c.Class, Models: c.Models, Admin: c.Admin,
		Overflow: c.Overflow, RPM: c.RPM, TPM: c.TPM, Parallel: c.Parallel, Budget: c.Budget, Expires: expires})
	if err != nil {
		return err
	}
	fmt.Fprintf(k.Stderr, "made key %s in %s; its secret is shown this once:\n", o.ID, where)
	fmt.Fprintln(k.Stdout, o.Secret)
	if !wanted {
		fmt.Fprintln(k.Stderr, "It is the first: from now on every request to a server with these keys needs one.")
		if !o.Admin {
			fmt.Fprintln(k.Stderr, "It opens no admin route (status, decisions, keys). For these: aloft keys make --admin --tenant ops")
		}
	}
	return nil
}

// expiry reads --expires; "" is never.
func expiry(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(text); err == nil {
		return now.Add(d), nil
	}
	for _, form := range []string{time.DateOnly, time.RFC3339} {
		if t, err := time.Parse(form, text); err == nil {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("--expires is %q, want a duration as 720h, a date as 2027-01-31 or a time as 2027-01-31T12:00:00Z", text)
}

type keysListCmd struct {
	keyring
	JSON bool `help:"Print JSON, as the admin API does."`
}

// Run implements kong's command.
func (c *keysListCmd) Run(ctx context.Context, k *kong.Context) error {
	s, where, err := c.open()
	if err != nil {
		return err
	}
	list, err := s.list(ctx)
	if err != nil {
		return err
	}
	if c.JSON {
		return json.NewEncoder(k.Stdout).Encode(struct {
			Object string              `json:"object"`
			Data   []gateway.KeyObject `json:"data"`
		}{"list", list})
	}
	if len(list) == 0 {
		fmt.Fprintln(k.Stderr, "no key in", where)
		return nil
	}
	return table(k.Stdout, list)
}

// table prints keys for people.
func table(w io.Writer, list []gateway.KeyObject) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "ID\tTENANT\tNAME\tFOR\tREQ/MIN\tTOK/MIN\tPARALLEL\tTOKENS OF MONTH\tCREATED\tROTATED\tEXPIRES\tSECRET")
	for _, o := range list {
		use := o.Class + ": " + cmp.Or(strings.Join(o.Models, " "), "all models")
		if o.Overflow {
			use += ", overflow"
		}
		if o.Admin {
			use = "admin"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d of %s\t%s\t%s\t%s\t…%s\n", o.ID, o.Tenant, cmp.Or(o.Name, "-"), use,
			limit(int64(o.RPM)), limit(int64(o.TPM)), limit(int64(o.Parallel)), o.Used, limit(o.Budget),
			day(o.Created), day(o.Rotated), day(o.Expires), cmp.Or(o.Hint, "?"))
	}
	return t.Flush()
}

func limit(n int64) string {
	if n == 0 {
		return "any"
	}
	return strconv.FormatInt(n, 10)
}

func day(t *int64) string {
	if t == nil {
		return "-"
	}
	return time.Unix(*t, 0).UTC().Format("2006-01-02T15:04Z")
}

type keysRotateCmd struct {
	keyring
	ID      string        `arg:"" help:"Key, as aloft keys list shows it."`
	Overlap time.Duration `help:"How long the old secret stays good; 0 ends it at once." placeholder:"24h"`
}

// Run implements kong's command. The secret alone goes to standard output.
func (c *keysRotateCmd) Run(ctx context.Context, k *kong.Context) error {
	if c.Overlap%time.Second != 0 {
		return fmt.Errorf("--overlap is %v, want whole seconds", c.Overlap)
	}
	s, _, err := c.open()
	if err != nil {
		return err
	}
	o, err := s.rotate(ctx, c.ID, c.Overlap)
	if err != nil {
		return err
	}
	old := "its old secret is no longer good"
	if c.Overlap > 0 {
		old = fmt.Sprintf("its old secret stays good for %v", c.Overlap)
	}
	fmt.Fprintf(k.Stderr, "rotated key %s; %s; the new one is shown this once:\n", o.ID, old)
	fmt.Fprintln(k.Stdout, o.Secret)
	return nil
}

type keysRevokeCmd struct {
	keyring
	ID string `arg:"" help:"Key, as aloft keys list shows it."`
}

// Run implements kong's command.
func (c *keysRevokeCmd) Run(ctx context.Context, k *kong.Context) error {
	s, where, err := c.open()
	if err != nil {
		return err
	}
	if err := s.revoke(ctx, c.ID); err != nil {
		return err
	}
	fmt.Fprintf(k.Stderr, "revoked key %s of %s\n", c.ID, where)
	return nil
}
