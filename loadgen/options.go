// Package loadgen puts load on any OpenAI-compatible server and reports numbers
// that can be believed. It is open loop: every request has an intended start
// that was planned before the run, and latency is measured from there, so that
// a server that stalls cannot hide it by slowing the generator down.
//
// It shares no wire code with the gateway: a fault in one must not be
// cancelled out by the same fault in the other.
package loadgen

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"aloft/loadgen/arrivals"
)

// Options is one run. A profile file unmarshals straight into it.
type Options struct {
	Name string `yaml:"name"`
	// Seed decides every arrival and every choice of text.
	Seed uint64 `yaml:"seed"`
	// Drain is how long after the last phase requests may still finish; what is
	// unfinished then counts as late or as timed out. 0 means 10 s.
	Drain time.Duration `yaml:"drain,omitempty"`
	// WarmUp is how long the load runs before the measured window, at the rate of
	// the first phase and with arrivals of its own. Its requests are sent, and
	// counted nowhere but in the report's warm_up.
	WarmUp time.Duration `yaml:"warm_up,omitempty"`
	// Plan is a file: of a saved plan that is sent as it stands.
	// It says when and how much; phases may then be left out, and are the plan's.
	Plan string `yaml:"plan,omitempty"`
	// Workloads run side by side from one common start.
	Workloads []Workload `yaml:"workloads"`

	// OnSample is called with the figures so far every SampleEvery (0 means 1 s)
	// and once at the end. Results wait while it runs, so it should be quick.
	OnSample    func(Snapshot) `yaml:"-"`
	SampleEvery time.Duration  `yaml:"sample_every,omitempty"`
	// Lines gets one line of JSON (Line) for each request while the run goes on.
	// A writer that is too slow loses lines, which the report counts, and never
	// holds up the run.
	Lines io.Writer `yaml:"-"`
	// Open opens the files that the profile names; whoever read the profile
	// knows what their names are relative to.
	Open func(name string) (io.ReadCloser, error) `yaml:"-"`

	// dial replaces TCP in tests that run in a bubble of fake time, in which the
	// kernel's timer is of no use either.
	dial dialer
}

// Workload is a stream of requests of one kind to one model.
type Workload struct {
	Name string `yaml:"name"`
	Kind Kind   `yaml:"kind"`
	// URL is the server without the route, for example http://127.0.0.1:8080.
	URL     string            `yaml:"url"`
	Model   string            `yaml:"model"`
	Key     string            `yaml:"key,omitempty"`     // bearer token
	Headers map[string]string `yaml:"headers,omitempty"` // sent with every request
	// CA is a PEM file of the certificates that an https server's is checked
	// against, instead of the system's. Insecure checks nothing, which the report says.
	CA       string `yaml:"ca,omitempty"`
	Insecure bool   `yaml:"insecure,omitempty"`

	Content `yaml:",inline"`
	// Stream asks for server-sent events (chat, completions, responses).
	Stream bool `yaml:"stream,omitempty"`
	// MaxTokens bounds a generated answer; 0 leaves it to the server.
	MaxTokens int `yaml:"max_tokens,omitempty"`

	Goal `yaml:",inline"`
	// Timeout is when the generator gives a request up, from its intended
	// start. 0 means 60 s.
	Timeout time.Duration `yaml:"timeout,omitempty"`
	// MaxInFlight bounds the requests open at once (0 means 256). With none
	// free the next request waits in the generator, and its latency shows it.
	MaxInFlight int `yaml:"max_in_flight,omitempty"`

	Tenants  []Tenant  `yaml:"tenants,omitempty"`  // who sends; none means one, with Key
	Sessions *Sessions `yaml:"sessions,omitempty"` // each arrival begins a conversation
	Abandon  *Abandon  `yaml:"abandon,omitempty"`
	Retry    *Retry    `yaml:"retry,omitempty"`
	// Clients, if above 0, makes the workload a closed loop for comparison: so
	// many clients each send their next request when the last is answered, for
	// as long as the phases last; the phases' processes are not drawn. Such
	// results are marked: their latencies hide what a stalled server costs.
	Clients int `yaml:"clients,omitempty"`

	Phases []arrivals.Phase `yaml:"phases"`
}

// The defaults and bounds of the options above.
const (
	defaultDrain       = 10 * time.Second
	defaultSampleEvery = time.Second
	defaultTimeout     = time.Minute
	defaultMaxInFlight = 256

	maxDrain     = time.Hour
	maxWarmUp    = time.Hour
	maxTimeout   = time.Hour // also the histograms' upper end
	maxWorkloads = 64
	maxInFlight  = 16384
	maxSeries    = 128 // workloads × phases; each has histograms of up to 1 MB
)

// withDefaults fills in what was left at zero. It copies: the caller's options
// stay as they are.
func (o Options) withDefaults() Options {
	o.Drain = cmp.Or(o.Drain, defaultDrain)
	o.SampleEvery = cmp.Or(o.SampleEvery, defaultSampleEvery)
	o.Workloads = slices.Clone(o.Workloads)
	for i := range o.Workloads {
		w := &o.Workloads[i]
		w.Timeout = cmp.Or(w.Timeout, defaultTimeout)
		w.MaxInFlight = cmp.Or(w.MaxInFlight, defaultMaxInFlight)
		w.URL = strings.TrimSuffix(strings.TrimRight(w.URL, "/"), "/v1")
		if w.hasInputs() {
			w.Inputs = cmp.Or(w.Inputs, 1)
		}
	}
	return o
}

// Validate reports the first thing that is wrong, by workload and key. Zero
// values that have a default are right.
func (o Options) Validate() error {
	if o.Drain < 0 || o.Drain > maxDrain {
		return fmt.Errorf("loadgen: drain is %v, want 0 to %v", o.Drain, maxDrain)
	}
	if o.SampleEvery != 0 && o.SampleEvery < 10*time.Millisecond {
		return fmt.Errorf("loadgen: sample_every is %v, want at least 10ms", o.SampleEvery)
	}
	if o.WarmUp < 0 || o.WarmUp > maxWarmUp {
		return fmt.Errorf("loadgen: warm_up is %v, want 0 to %v", o.WarmUp, maxWarmUp)
	}
	if n := len(o.Workloads); n == 0 || n > maxWorkloads {
		return fmt.Errorf("loadgen: %d workloads, want 1 to %d", n, maxWorkloads)
	}
	seen, series := map[string]bool{}, 0
	for i, w := range o.Workloads {
		if w.Name == "" {
			return fmt.Errorf("loadgen: workload %d has no name", i+1)
		}
		if seen[w.Name] {
			return fmt.Errorf("loadgen: two workloads are called %q", w.Name)
		}
		seen[w.Name] = true
		err := w.validate()
		if err == nil && len(w.Phases) == 0 && o.Plan == "" {
			err = errors.New("phases: it has no phases")
		}
		if err != nil {
			return arrivals.Keyed(fmt.Sprintf("workloads[%d]", i), fmt.Errorf("loadgen: workload %q: %w", w.Name, err))
		}
		series += len(w.Phases)
	}
	if series > maxSeries {
		return fmt.Errorf("loadgen: %d phases over all workloads, want at most %d", series, maxSeries)
	}
	return nil
}

func (w Workload) validate() error {
	if err := w.validateRequest(); err != nil {
		return err
	}
	if err := w.validateContent(); err != nil {
		return err
	}
	if w.Timeout < 0 || w.Timeout > maxTimeout {
		return fmt.Errorf("timeout is %v, want 0 to %v", w.Timeout, maxTimeout)
	}
	if err := w.validateGoal(); err != nil {
		return err
	}
	if err := w.validateClients(); err != nil {
		return err
	}
	if w.Clients < 0 || w.Clients > maxInFlight {
		return fmt.Errorf("clients is %d, want 0 to %d", w.Clients, maxInFlight)
	}
	if w.MaxInFlight < 0 || w.MaxInFlight > maxInFlight {
		return fmt.Errorf("max_in_flight is %d, want 0 to %d", w.MaxInFlight, maxInFlight)
	}
	seen := map[string]bool{}
	for i, p := range w.Phases {
		if w.Clients > 0 && p.Process.Kind == "" {
			p.Process = arrivals.Process{Kind: arrivals.Constant, Rate: 1} // it is not drawn: none need be given
		}
		if err := p.Validate(); err != nil {
			return arrivals.Keyed(fmt.Sprintf("phases[%d]", i), err)
		}
		if seen[p.Name] {
			return fmt.Errorf("two phases are called %q", p.Name)
		}
		seen[p.Name] = true
	}
	return nil
}
