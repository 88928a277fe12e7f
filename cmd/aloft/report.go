package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"aloft/arbiter"
	"aloft/gateway"
)

// Report says where the powered-on slice time of a while went. Slice times are
// in compute slices × seconds.
type Report struct {
	Since    time.Time   `json:"since"`
	Until    time.Time   `json:"until"`
	Seconds  float64     `json:"observed_s"` // less than the while if the server was down
	Mode     string      `json:"mode"`       // now
	Modelled bool        `json:"modelled"`   // GPUs are simulated
	SliceS   float64     `json:"slice_s"`    // in all
	Aloft    float64     `json:"aloft_ratio"`
	Ledger   []Entry     `json:"ledger"` // every account; the shares sum to 1
	Frag     float64     `json:"fragmentation"`
	Queued   []Queued    `json:"queued"`
	Waiting  Waiting     `json:"waiting"` // now
	Reclaims Reclaims    `json:"reclaims"`
	Lending  Lending     `json:"lending"`
	Moves    []Decisions `json:"decisions"`
	Cost     *Cost       `json:"cost"` // null: no price is configured
	// Variants are those that have taken over, with what that changed.
	Variants []gateway.VariantObject `json:"variants,omitempty"`
}

// Entry is one account.
type Entry struct {
	Account arbiter.Account `json:"account"`
	SliceS  float64         `json:"slice_s"`
	Share   float64         `json:"share"`
	Cost    float64         `json:"cost_usd,omitempty"`
}

// Waiting is how jobs that have no slice stand now.
type Waiting struct {
	Jobs    int     `json:"jobs"`
	Longest float64 `json:"longest_s"` // how long one of them has waited
	Late    int     `json:"late"`      // can no longer meet their deadline
	// Bound is until each of them goes ahead of every job that is submitted later;
	// null: arbiter.age_every is 0, and one may wait for ever.
	Bound *float64 `json:"starvation_bound_s"`
}

// waitingOf sums up who waits.
func waitingOf(waits []arbiter.Wait, ages bool, now time.Time) Waiting {
	w := Waiting{Jobs: len(waits)}
	bound := 0.0
	for i := range waits {
		w.Longest = max(w.Longest, now.Sub(waits[i].Since).Seconds())
		bound = max(bound, waits[i].First.Sub(now).Seconds())
		if waits[i].Late(now) {
			w.Late++
		}
	}
	if ages {
		w.Bound = &bound
	}
	return w
}

// Queued is what jobs waited for.
type Queued struct {
	Cause arbiter.Cause `json:"cause"`
	JobS  float64       `json:"job_s"`
	Share float64       `json:"share"`
}

// Reclaims are times from the decision to a ready replica, against what was promised.
type Reclaims struct {
	Kept   int     `json:"kept"`
	Broken int     `json:"broken"` // an incident each
	P50    float64 `json:"p50_s"`
	P99    float64 `json:"p99_s"`
	Bound  float64 `json:"bound_s"` // largest promised
	Worst  float64 `json:"worst"`   // largest share of its bound that one took
}

// Lending is what was lent, and what that gained against a static split: both
// estimates (see gains).
type Lending struct {
	Loans   int     `json:"loans"`
	Failed  int     `json:"moves_failed"`
	LentS   float64 `json:"lent_slice_s"`
	GainedS float64 `json:"gained_slice_s"`
	MissedS float64 `json:"missed_slice_s"` // modes static and observe
}

// Decisions counts one kind of decision.
type Decisions struct {
	Action   string `json:"action"`
	Reason   string `json:"reason"`
	Observed bool   `json:"observed,omitempty"` // not done: mode observe
	Count    int    `json:"count"`
}

// Cost is in USD.
type Cost struct {
	Price    float64 `json:"usd_per_gpu_hour"`
	GPUHours float64 `json:"gpu_hours"`
	Total    float64 `json:"total_usd"`
	Useful   float64 `json:"useful_usd"`
	PerHour  float64 `json:"usd_per_useful_gpu_hour"`
	Gained   float64 `json:"gained_usd"` // what the time gained by lending would have cost
}

// report sums up hours. price is USD per GPU-hour; 0 = none.
func report(hours []hour, price float64) Report {
	var r Report
	var sum hour
	accounts, causes, moves, classes := map[arbiter.Account]float64{}, map[arbiter.Cause]float64{}, map[string]int{}, map[int]int{}
	for _, x := range hours {
		sum.Seconds += x.Seconds
		sum.GPUS += x.GPUS
		sum.FragS += x.FragS
		r.Lending.Loans += x.Loans
		r.Lending.Failed += x.Failed
		r.Lending.LentS += x.LentS
		r.Lending.GainedS += x.GainedS
		r.Lending.MissedS += x.MissedS
		r.Reclaims.Kept += x.Kept
		r.Reclaims.Broken += x.Broken
		r.Reclaims.Bound = max(r.Reclaims.Bound, x.Bound)
		r.Reclaims.Worst = max(r.Reclaims.Worst, x.Worst)
		add(accounts, x.SliceS)
		add(causes, x.QueuedS)
		add(moves, x.Moves)
		add(classes, x.Reclaims)
	}
	r.Seconds = sum.Seconds
	if sum.Seconds > 0 {
		r.Frag = sum.FragS / sum.Seconds
	}
	for _, a := range arbiter.Accounts {
		accounts[a] = max(0, accounts[a]) // a loss may be charged in a later hour than the work
		r.SliceS += accounts[a]
	}
	queued := 0.0
	for _, s := range causes {
		queued += s
	}
	for _, a := range arbiter.Accounts {
		e := Entry{Account: a, SliceS: accounts[a], Share: ratio(accounts[a], r.SliceS)}
		e.Cost = e.Share * price * sum.GPUS / 3600
		r.Ledger = append(r.Ledger, e)
		if a == arbiter.ServingUseful || a == arbiter.JobUseful {
			r.Aloft += e.Share
		}
	}
	for _, c := range arbiter.Causes {
		r.Queued = append(r.Queued, Queued{c, causes[c], ratio(causes[c], queued)})
	}
	r.Reclaims.P50, r.Reclaims.P99 = quantile(classes, 0.50), quantile(classes, 0.99)
	for _, key := range slices.Sorted(maps.Keys(moves)) {
		kind, observed := strings.CutPrefix(key, "observed/")
		action, reason, _ := strings.Cut(kind, "/")
		r.Moves = append(r.Moves, Decisions{action, reason, observed, moves[key]})
	}
	if price > 0 {
		c := Cost{Price: price, GPUHours: sum.GPUS / 3600}
		c.Total = price * c.GPUHours
		c.Useful = c.Total * r.Aloft
		c.PerHour = ratio(price, r.Aloft)
		c.Gained = c.Total * ratio(r.Lending.GainedS, r.SliceS)
		r.Cost = &c
	}
	return r
}

func ratio(a, b float64) float64 {
	if b <= 0 {
		return 0
	}
	return a / b
}

// add adds the values of one map to another.
func add[K comparable, V int | float64](into, from map[K]V) {
	for k, v := range from {
		into[k] += v
	}
}

// quantile of the times in classes, in seconds; 0 with none.
func quantile(classes map[int]int, q float64) float64 {
	n := 0
	for _, c := range classes {
		n += c
	}
	if n == 0 {
		return 0
	}
	rank, seen := int(math.Ceil(q*float64(n))), 0
	for _, class := range slices.Sorted(maps.Keys(classes)) {
		if seen += classes[class]; seen >= rank {
			return timeOf(class)
		}
	}
	return 0
}

// Report implements gateway.Reporter.
func (s statusSource) Report(since time.Time) any {
	now := time.Now()
	c := s.current.Load()
	hours := s.history.since(since)
	r := report(hours, c.Node.Price)
	r.Since, r.Until, r.Mode = since, now, c.Arbiter.Mode
	if len(hours) > 0 {
		r.Since = hours[0].Start // whole hours are summed up
	}
	for _, v := range variantDesk(s).Variants() {
		if v.Gain.After != nil {
			r.Variants = append(r.Variants, v)
		}
	}
	v := s.arbiter.View()
	r.Waiting = waitingOf(v.Policy.Waits(v.Snapshot), v.Policy.AgeEvery > 0, v.Snapshot.Now)
	for _, d := range s.devices {
		r.Modelled = r.Modelled || d.Modeled
	}
	return r
}

type reportCmd struct {
	remote
	Since time.Duration `help:"Only the last so long, by whole hours; up to 90 days are kept." default:"24h" placeholder:"DURATION"`
}

// Run implements kong's command.
func (c *reportCmd) Run(ctx context.Context) error {
	if c.Since <= 0 {
		return fmt.Errorf("--since %v: want how long ago, more than 0, for example 24h", c.Since)
	}
	q := url.Values{"since": {time.Now().Add(-c.Since).Format(time.RFC3339Nano)}}
	return c.show(ctx, http.MethodGet, "/aloft/v1/report?"+q.Encode(), func(b []byte) error {
		var r Report
		if err := json.Unmarshal(b, &r); err != nil {
			return err
		}
		var text strings.Builder
		r.draw(&text)
		fmt.Print(text.String())
		return nil
	})
}

// draw writes the report for people, at most 100 columns wide.
func (r *Report) draw(w io.Writer) {
	fmt.Fprintf(w, "%s to %s, mode %s", r.Since.Local().Format("2006-01-02 15:04"), r.Until.Local().Format("2006-01-02 15:04"), r.Mode)
	if r.Modelled {
		fmt.Fprint(w, "; GPUs are simulated")
	}
	if r.SliceS == 0 {
		fmt.Fprintln(w, "\nnothing is recorded of that time")
		return
	}
	fmt.Fprintf(w, "\nobserved %v; aloft ratio %.1f %%; fragmentation %.1f %%\n\n", seconds(r.Seconds), 100*r.Aloft, 100*r.Frag)
	for _, e := range r.Ledger {
		fmt.Fprintf(w, "%-15s %5.1f %%  %9.2f slice-h  %-30s", e.Account, 100*e.Share, e.SliceS/3600, strings.Repeat("#", int(30*e.Share+0.5)))
		if r.Cost != nil {
			fmt.Fprintf(w, " %9.2f USD", e.Cost)
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintf(w, "%-15s %5.1f %%  %9.2f slice-h\n\n", "sum", 100*ratio(r.SliceS, r.SliceS), r.SliceS/3600)
	fmt.Fprint(w, "jobs queued by cause: ")
	for i, q := range r.Queued {
		fmt.Fprintf(w, "%s%s %.2f job-h (%.0f %%)", strings.Repeat(", ", min(i, 1)), q.Cause, q.JobS/3600, 100*q.Share)
	}
	if x := r.Waiting; x.Jobs > 0 {
		fmt.Fprintf(w, "\njobs waiting now: %d, the longest for %v", x.Jobs, seconds(x.Longest))
		if x.Late > 0 {
			fmt.Fprintf(w, ", %d too late for their deadline", x.Late)
		}
		if x.Bound != nil {
			fmt.Fprintf(w, "; each goes ahead of all later jobs within %v", seconds(*x.Bound))
		}
	}
	c := r.Reclaims
	fmt.Fprintf(w, "\nreclaims: %d kept, %d broken (incidents)", c.Kept, c.Broken)
	if c.Kept+c.Broken > 0 {
		fmt.Fprintf(w, "; p50 %.2f s, p99 %.2f s, largest bound %.1f s, the slowest took %.0f %% of its own", c.P50, c.P99, c.Bound, 100*c.Worst)
	}
	l := r.Lending
	fmt.Fprintf(w, "\nlending: %d loans, %.2f slice-h lent; against a static split about %.2f slice-h more for jobs (%.1f %%)\n",
		l.Loans, l.LentS/3600, l.GainedS/3600, 100*ratio(l.GainedS, r.SliceS))
	if l.MissedS > 0 {
		fmt.Fprintf(w, "mode lend could have lent about %.2f slice-h more (%.1f %%), less what going out and back costs\n", l.MissedS/3600, 100*ratio(l.MissedS, r.SliceS))
	}
	if l.Failed > 0 {
		fmt.Fprintf(w, "moves that failed: %d (aloft why says which)\n", l.Failed)
	}
	if x := r.Cost; x != nil {
		fmt.Fprintf(w, "cost: %.2f USD for %.1f GPU-h at %.2f USD; useful %.2f USD, so %.2f USD a useful GPU-hour; lending gained %.2f USD worth\n",
			x.Total, x.GPUHours, x.Price, x.Useful, x.PerHour, x.Gained)
	}
	r.drawVariants(w)
}

// drawVariants says what each promotion changed.
func (r *Report) drawVariants(w io.Writer) {
	for _, v := range r.Variants {
		fmt.Fprintf(w, "\n%s is in the place of %s\n", v.ID, v.Model)
		drawGain(w, v.Gain)
	}
}

func seconds(s float64) time.Duration {
	return time.Duration(s * float64(time.Second)).Round(time.Second)
}
