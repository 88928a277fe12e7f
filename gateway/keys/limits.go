package keys

import (
	"time"

	"aloft/gateway"
)

// window is what the limits per minute count over. A bucket holds one window's
// worth and refills evenly, so that Remaining and Reset mean something at any time.
const window = time.Minute

// soon is when to try again where only requests under way stand in the way:
// nobody knows when they end.
const soon = time.Second

// bucket is a token bucket. Its level may be negative: what a request used
// beyond its estimate is a debt that the refill pays first.
type bucket struct {
	level float64
	at    time.Time // of level; zero = never used, which is full
}

// fill brings the level to now. Without a limit the bucket is forgotten, so that
// one set later starts full.
func (b *bucket) fill(limit int, now time.Time) {
	if limit == 0 {
		*b = bucket{}
		return
	}
	full := float64(limit)
	switch d := now.Sub(b.at); {
	case b.at.IsZero():
		b.level, b.at = full, now
	case d > 0:
		b.level, b.at = b.level+full*d.Seconds()/window.Seconds(), now
	}
	b.level = min(b.level, full) // the limit may have been lowered
}

// take changes the level; put back, it ends at full.
func (b *bucket) take(limit int, n float64) {
	if limit > 0 {
		b.level = min(b.level-n, float64(limit))
	}
}

// wait is how long the level takes to reach n.
func (b *bucket) wait(limit int, n float64) time.Duration {
	if b.level >= n {
		return 0
	}
	return time.Duration((n - b.level) / float64(limit) * float64(window))
}

func (b *bucket) gauge(limit int) gateway.Gauge {
	if limit == 0 {
		return gateway.Gauge{}
	}
	return gateway.Gauge{Limit: limit, Remaining: max(0, int(b.level)), Reset: b.wait(limit, float64(limit))}
}

// limits are what an entry allows; 0 = no limit.
type limits struct {
	requests, tokens, parallel int
	budget                     int64
}

// account is where a key stands. It outlives reloads of the key file.
type account struct {
	requests, tokens bucket
	running          int       // requests between reserve and settle, rows not counted
	month            month     // that used belongs to
	ends             time.Time // of the month that turn saw last: until then it has nothing to do
	used             int64     // tokens settled in the month
	held             int64     // tokens of reservations under way
}

// month counts calendar months in UTC since year 0.
type month int

func monthOf(now time.Time) month {
	y, m, _ := now.UTC().Date()
	return month(y*12 + int(m) - 1)
}

// end is the first moment of the next one.
func (m month) end() time.Time {
	return time.Date(int(m+1)/12, time.Month(int(m+1)%12+1), 1, 0, 0, 0, 0, time.UTC)
}

// turn begins a new month when it is time. A clock that steps back over the
// month's edge changes nothing: the budget must not start anew.
func (a *account) turn(now time.Time) {
	if now.Before(a.ends) {
		return
	}
	if m := monthOf(now); m > a.month {
		a.month, a.used = m, 0
	}
	a.ends = a.month.end()
}

// reserve takes what r needs, or takes nothing and says which limit forbids it:
// every limit is looked at before the first is charged.
func (a *account) reserve(l limits, now time.Time, r gateway.Reserving) (gateway.Quota, *gateway.LimitError) {
	a.turn(now)
	need := max(0, r.Tokens)
	if !r.Row {
		a.requests.fill(l.requests, now)
		a.tokens.fill(l.tokens, now)
	}
	if e := a.forbids(l, now, need, r.Row); e != nil {
		e.Quota = a.quota(l)
		return e.Quota, e
	}
	a.held += int64(need)
	if r.Row {
		return gateway.Quota{}, nil
	}
	a.running++
	a.requests.take(l.requests, 1)
	a.tokens.take(l.tokens, float64(need))
	return a.quota(l), nil
}

// forbids returns the limit that a request of need tokens would break. What no
// wait can mend comes first, then the longest wait: a client that obeys one
// answer should not meet the next.
func (a *account) forbids(l limits, now time.Time, need int, row bool) *gateway.LimitError {
	n := int64(need)
	switch {
	case l.budget > 0 && n > l.budget:
		return &gateway.LimitError{Kind: "budget", Limit: int(l.budget), After: -1}
	case !row && l.tokens > 0 && need > l.tokens:
		return &gateway.LimitError{Kind: "tokens", Limit: l.tokens, After: -1}
	case l.budget > 0 && a.used+n > l.budget:
		return &gateway.LimitError{Kind: "budget", Limit: int(l.budget), After: a.ends.Sub(now)}
	case l.budget > 0 && a.used+a.held+n > l.budget:
		return &gateway.LimitError{Kind: "budget", Limit: int(l.budget), After: soon}
	case row:
		return nil
	}
	var requests, tokens time.Duration
	if l.requests > 0 {
		requests = a.requests.wait(l.requests, 1)
	}
	if l.tokens > 0 {
		tokens = a.tokens.wait(l.tokens, float64(need))
	}
	switch {
	case tokens > requests:
		return &gateway.LimitError{Kind: "tokens", Limit: l.tokens, After: tokens}
	case requests > 0:
		return &gateway.LimitError{Kind: "requests", Limit: l.requests, After: requests}
	case l.parallel > 0 && a.running >= l.parallel:
		return &gateway.LimitError{Kind: "parallel", Limit: l.parallel, After: soon}
	}
	return nil
}

// settle ends a reservation: tokens were used in truth. The request itself
// stays counted, whatever became of it.
func (a *account) settle(l limits, now time.Time, r gateway.Reserving, tokens int) {
	a.turn(now)
	need := max(0, r.Tokens)
	a.held = max(0, a.held-int64(need))            // less only if the key was away meanwhile
	a.used += int64(min(max(0, tokens), maxLimit)) // an engine's word, which may be anything
	a.used = min(a.used, maxLimit)
	if r.Row {
		return
	}
	a.running = max(0, a.running-1)
	a.tokens.fill(l.tokens, now)
	a.tokens.take(l.tokens, float64(max(0, tokens))-float64(need))
}

func (a *account) quota(l limits) gateway.Quota {
	return gateway.Quota{Requests: a.requests.gauge(l.requests), Tokens: a.tokens.gauge(l.tokens)}
}
