// Package overflow sends requests to an external OpenAI-compatible provider
// when no replica of ours can serve them in time: the queue's predicted wait
// breaks the target, or there is no replica. It is configured per model, opted
// into per key, and bounded by a budget of money per calendar month.
package overflow

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"time"

	"aloft/backends"
	"aloft/backends/openai"
	"aloft/gateway"
)

// maxAnswer is what an answer without a limit of its own is taken to cost at
// most, in tokens, while it runs.
const maxAnswer = 4096

// again is after what time in the queue a provider that did not help is asked
// once more.
const again = time.Second

// Options describe a model's provider.
type Options struct {
	Backend backends.Backend
	Model   string // what the provider calls it; "" = as the request's body does
	// Input and Output are US dollars per million tokens, Budget per calendar
	// month (UTC).
	Input, Output, Budget float64
	Target                time.Duration // the latency promised; 0 = only without a replica
}

// Validate reports the first setting that cannot work.
func (o Options) Validate() error {
	for name, v := range map[string]float64{"input_price": o.Input, "output_price": o.Output, "budget": o.Budget} {
		if v < 0 || math.IsNaN(v) || math.IsInf(v, 0) {
			return fmt.Errorf("overflow: %s is %v, want 0 or more", name, v)
		}
	}
	if o.Budget == 0 {
		return errors.New("overflow: budget is 0, want the US dollars that a month may cost")
	}
	if o.Input+o.Output == 0 {
		return errors.New("overflow: input_price and output_price are 0: the budget would bound nothing")
	}
	return nil
}

// Route is one model's provider with what this month has cost.
type Route struct {
	opt Options

	mu       sync.Mutex
	month    string  // "2026-11"
	spent    float64 // US dollars
	reserved float64 // for calls under way
}

// NewRoute starts with what the month had cost before.
func NewRoute(o Options, was Spent) (*Route, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	return &Route{opt: o, month: was.Month, spent: was.Dollars}, nil
}

// Spent is what a month has cost, for whoever keeps it.
type Spent struct {
	Month   string  `json:"month"`
	Dollars float64 `json:"usd"`
}

// Spent returns what the present month has cost so far.
func (r *Route) Spent(now time.Time) Spent {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.turn(now)
	return Spent{r.month, r.spent}
}

// turn begins a new month; calls under way are paid from the new one. A clock
// that steps back over the month's edge changes nothing: the budget must not
// start anew.
func (r *Route) turn(now time.Time) {
	if m := now.UTC().Format("2006-01"); m > r.month {
		r.month, r.spent = m, 0
	}
}

func (r *Route) price(prompt, completion int) float64 {
	return (float64(prompt)*r.opt.Input + float64(completion)*r.opt.Output) / 1e6
}

// reserve takes the most that a call is taken to cost out of the budget, or refuses.
func (r *Route) reserve(now time.Time, dollars float64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.turn(now)
	if r.spent+r.reserved+dollars > r.opt.Budget {
		return false
	}
	r.reserved += dollars
	return true
}

func (r *Route) release(dollars float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reserved -= dollars
}

// Charge books what a request that went this way has used.
func (r *Route) Charge(now time.Time, prompt, completion int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.turn(now)
	r.spent += r.price(prompt, completion)
}

// Overflow is a gateway.Submitter in front of the queues.
type Overflow struct {
	Next gateway.Submitter
	// Route finds a model's provider; nil = it has none.
	Route func(model string) *Route
	// Wait predicts how long a new request of a model waits for its first byte;
	// below 0 = there is no replica.
	Wait func(model string, tokens int) time.Duration
	// Missed hears of requests that went elsewhere: they are demand all the same,
	// and replicas are to be started for it. It must not block.
	Missed func(r *backends.Request)
}

// Submit implements gateway.Submitter.
func (o *Overflow) Submit(ctx context.Context, r *backends.Request) (*backends.Reply, error) {
	route := o.Route(r.Model)
	if route == nil || !r.Place.Overflow || r.Class == backends.Offline || r.Place.Adapter != "" {
		return o.Next.Submit(ctx, r)
	}
	var asked time.Time // the provider, in vain
	if wait := o.Wait(r.Model, r.Tokens); wait < 0 || route.opt.Target > 0 && wait > route.opt.Target {
		if reply, ok := o.away(ctx, route, r); ok {
			return reply, nil
		}
		asked = time.Now()
	}
	reply, err := o.Next.Submit(ctx, r)
	var retry *backends.RetryError
	if err != nil && ctx.Err() == nil && time.Since(asked) > again && (errors.As(err, &retry) || errors.Is(err, backends.ErrUnavailable)) {
		if reply, ok := o.away(ctx, route, r); ok {
			return reply, nil
		}
	}
	return reply, err
}

// away asks the provider. false: the budget forbids it, or it did not help.
func (o *Overflow) away(ctx context.Context, route *Route, r *backends.Request) (*backends.Reply, bool) {
	call, err := route.call(r)
	if err != nil {
		return nil, false
	}
	dollars := route.price(r.Tokens, cost(r))
	if !route.reserve(time.Now(), dollars) {
		return nil, false
	}
	start := time.Now()
	reply, err := route.opt.Backend.Do(ctx, call)
	if err == nil && (reply.Status == 401 || reply.Status == 403 || reply.Status == 404 || reply.Status == 429 || reply.Status >= 500) {
		// Not the request's fault, so the queue may do better.
		reply.Body.Close()
		err = backends.ErrUnavailable
	}
	if err != nil {
		route.release(dollars)
		return nil, false
	}
	o.Missed(r)
	reply.Timing.Route = backends.RouteOverflow
	reply.Timing.Queue = start.Sub(r.Arrival)
	b := &body{ReadCloser: reply.Body, end: sync.OnceFunc(func() { route.release(dollars) })}
	reply.Body = b
	if events, ok := b.ReadCloser.(backends.EventReader); ok {
		reply.Body = struct {
			*body
			backends.EventReader
		}{b, events}
	}
	return reply, true
}

// cost is how many tokens an answer is taken to have until it has ended.
func cost(r *backends.Request) int {
	if !r.Endpoint.Generates() {
		return 0
	}
	return cmp.Or(r.MaxTokens, maxAnswer)
}

// call is r with the provider's name of the model.
func (r *Route) call(req *backends.Request) (*backends.Call, error) {
	call := &backends.Call{Path: cmp.Or(req.Path, req.Endpoint.Path()), ContentType: req.ContentType, Body: req.Body,
		Header: req.Header, Stream: req.Stream, ID: req.ID}
	var err error
	switch {
	case r.opt.Model == "":
	case req.Endpoint.Form():
		call.Body, err = openai.SetFormModel(nil, req.Body, req.ContentType, r.opt.Model)
	default:
		call.Body, err = openai.SetModel(req.Body, r.opt.Model)
	}
	return call, err
}

// body gives the reservation back when the answer has ended; what it truly cost
// is charged by whoever metered it.
type body struct {
	io.ReadCloser
	end func()
}

// Len implements backends.Sized.
func (b *body) Len() int {
	if sized, ok := b.ReadCloser.(backends.Sized); ok {
		return sized.Len()
	}
	return -1
}

// Close implements io.Closer.
func (b *body) Close() error {
	b.end()
	return b.ReadCloser.Close()
}
