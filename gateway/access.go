package gateway

import (
	"fmt"
	"slices"
	"time"

	"aloft/backends"
)

// Grant is what a key allows. It is shared and never changed.
type Grant struct {
	ID       string // stable over rotations; in logs and listings
	Tenant   string // who pays; never ""
	Class    backends.Class
	Models   []string // names that may be used; nil = all
	Admin    bool     // may use the admin API, and nothing else
	Overflow bool     // its requests may be sent to an external provider
}

// May reports whether the key may use a model. A nil Grant (no keys are
// configured) allows everything.
func (g *Grant) May(model string) bool {
	return g == nil || len(g.Models) == 0 || slices.Contains(g.Models, model)
}

// Keys knows the API keys and holds their limits. Without one everybody may
// come in, and nobody is limited. Its methods are called for every request and
// must not block.
type Keys interface {
	// Find returns the grant of a secret: of a key that exists and has not
	// expired by now. The time it takes tells nothing about any secret. A nil grant and
	// true: no keys are wanted (yet), whatever the secret.
	Find(secret []byte, now time.Time) (*Grant, bool)
	// ByID returns the grant of a key that may still be used, nil as Find does.
	// Rows of a batch run on the key that made it.
	ByID(id string, now time.Time) (*Grant, bool)
	// Reserve takes a place for one request of about so many tokens, or says
	// which limit forbids it (*LimitError). Rows are held to the budget alone.
	Reserve(g *Grant, now time.Time, r Reserving) (Quota, error)
	// Settle ends what Reserve began, exactly once: tokens is what was used in
	// truth, 0 after a failure that used nothing.
	Settle(g *Grant, now time.Time, r Reserving, tokens int)
}

// Reserving is a request as limits see it.
type Reserving struct {
	Tokens int  // estimate of prompt and answer
	Row    bool // of a batch
}

// Quota is where a key stands after a reservation, for the x-ratelimit headers.
type Quota struct{ Requests, Tokens Gauge }

// Gauge is one limit; Limit 0 = there is none.
type Gauge struct {
	Limit, Remaining int
	Reset            time.Duration // until it is whole again
}

// LimitError says which limit a request would break.
type LimitError struct {
	Kind  string // requests, tokens, parallel, budget
	Limit int
	// After says when to try again: for the budget when the month ends, or soon if
	// only requests under way stand in the way. Below 0: never, the request alone
	// is larger than the limit.
	After time.Duration
	Quota Quota
}

// Error implements error.
func (e *LimitError) Error() string {
	if e.After < 0 {
		return fmt.Sprintf("the request may take more tokens than the key's whole limit of %d: shorten it, or lower max_tokens", e.Limit)
	}
	return limitText[e.Kind]
}

var limitText = map[string]string{
	"requests": "the key's limit of requests per minute is reached",
	"tokens":   "the key's limit of tokens per minute is reached",
	"parallel": "the key's limit of parallel requests is reached",
	"budget":   "the key's token budget of this month is used up",
}

// KeyAdmin is what the admin API needs to manage keys. Errors: jobs.ErrNotFound,
// jobs.ErrConflict, *jobs.InvalidError, or of the store.
type KeyAdmin interface {
	List() []KeyInfo
	// Make stores a new key and returns its secret, which is kept nowhere.
	Make(spec KeySpec) (KeyInfo, string, error)
	// Rotate gives a key a new secret; the old one stays valid for overlap.
	Rotate(id string, overlap time.Duration) (KeyInfo, string, error)
	Revoke(id string) error
}

// KeySpec is what a new key may do. Zero limits: none.
type KeySpec struct {
	Name     string    `json:"name" yaml:"name,omitempty"` // for people
	Tenant   string    `json:"tenant" yaml:"tenant"`
	Class    string    `json:"class" yaml:"class,omitempty"` // interactive, standard, offline; "" = interactive
	Models   []string  `json:"models" yaml:"models,omitempty"`
	Admin    bool      `json:"admin" yaml:"admin,omitempty"`
	Overflow bool      `json:"overflow" yaml:"overflow,omitempty"`
	RPM      int       `json:"requests_per_minute" yaml:"requests_per_minute,omitempty"`
	TPM      int       `json:"tokens_per_minute" yaml:"tokens_per_minute,omitempty"`
	Parallel int       `json:"parallel" yaml:"parallel,omitempty"`
	Budget   int64     `json:"tokens_per_month" yaml:"tokens_per_month,omitempty"`
	Expires  time.Time `json:"expires_at" yaml:"expires_at,omitempty"`
}

// KeyInfo is a stored key, without its secret.
type KeyInfo struct {
	ID string
	KeySpec
	Created time.Time
	Rotated time.Time // zero = never
	Hint    string    // the secret's last four characters
	Used    int64     // tokens of this month
}
