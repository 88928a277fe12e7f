package arbiter

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// Record is one decision, or the outcome of one.
type Record struct {
	Time    time.Time     `json:"time"`
	Move    Move          `json:"move"`
	Gen     uint64        `json:"gen,omitempty"`
	Outcome string        `json:"outcome,omitempty"` // "" = decided; done, failed, bound_broken, observed, expired, learned
	Took    time.Duration `json:"took,omitempty"`    // ns
	Error   string        `json:"error,omitempty"`
	Fast    bool          `json:"fast,omitempty"`    // the job that left had nothing to save
	Fault   bool          `json:"fault,omitempty"`   // bound_broken: by a device's fault
	Cap     int           `json:"cap,omitempty"`     // bound_broken: slices that may be lent from now on
	Learned *Trial        `json:"learned,omitempty"` // follow: the law, and what it would have done in the past
	Note    string        `json:"note,omitempty"`    // variant: what happened
	Seq     uint64        `json:"-"`                 // of this run: the n-th that was kept
}

// String says it in one line, with the numbers.
func (r Record) String() string {
	if r.Note != "" {
		return r.Note
	}
	m, w := r.Move, r.Move.Why
	var b strings.Builder
	switch {
	case r.Outcome == "done" && m.Action == Lend:
		fmt.Fprintf(&b, "%s now runs %s; the move took %v", m.Slice, m.Job, round(r.Took))
	case r.Outcome == "done" && m.Action == Vacate:
		fmt.Fprintf(&b, "%s left %s after %v", m.party(), m.Slice, round(r.Took))
	case r.Outcome == "done" && m.Action == Reshape:
		fmt.Fprintf(&b, "GPU %d has its new instances for %s after %v", m.GPU, m.party(), round(r.Took))
	case r.Outcome == "done":
		fmt.Fprintf(&b, "%s ready for %s after %v", m.Slice, m.Model, round(r.Took))
		if m.Action == Reclaim {
			fmt.Fprintf(&b, " of the promised %v", round(m.Bound))
		}
	case r.Outcome == "expired":
		fmt.Fprintf(&b, "loan of %s to %s ended: nobody renewed it for %v", m.Slice, m.Job, round(r.Took))
	case r.Learned != nil:
		r.Learned.say(&b, m)
	case r.Outcome == "failed" || r.Outcome == "bound_broken":
		fmt.Fprintf(&b, "%s of %s %s after %v", m.Action, m.Slice, strings.ReplaceAll(r.Outcome, "_", " "), round(r.Took))
		if r.Error != "" {
			fmt.Fprintf(&b, ": %s", r.Error)
		}
		if r.Cap > 0 {
			fmt.Fprintf(&b, "; from now on at most %d slices are lent", r.Cap)
		}
	default:
		m.say(&b, w)
	}
	if r.Outcome == "observed" {
		b.WriteString(" (observe mode: not done)")
	}
	return b.String()
}

// say writes a decision as a sentence.
func (m Move) say(b *strings.Builder, w Numbers) {
	needs := fmt.Sprintf("%s needs %d now (level %.2f), %d %s, has %d", m.Model, w.Need, w.Level, w.Fast, w.within(), w.Have)
	lent := fmt.Sprintf("%d of %d lendable slices lent", w.Lent, w.Lendable)
	switch m.Action {
	case Start, Wake:
		fmt.Fprintf(b, "%s %s for %s (%s): %s", m.Action, m.Slice, m.Model, m.Reason, needs)
	case Reclaim:
		fmt.Fprintf(b, "reclaim %s from %s for %s (%s): %s; lent for %v, stopping costs %v, bound %v",
			m.Slice, m.Job, m.Model, m.Reason, needs, round(w.For), round(w.Cost), round(m.Bound))
	case Lend:
		fmt.Fprintf(b, "lend %s to %s (%s): ", m.Slice, m.Job, m.Reason)
		if m.Model != "" {
			fmt.Fprintf(b, "%s; surplus for %v, out and back costs %v; ", needs, round(w.For), round(w.Cost))
		}
		fmt.Fprintf(b, "%s, bound %v", lent, round(m.Bound))
	case Vacate:
		fmt.Fprintf(b, "empty %s of %s (%s): stopping it costs %v", m.Slice, m.party(), m.Reason, round(w.Cost))
	case Reshape:
		fmt.Fprintf(b, "reshape GPU %d for %s (%s) to", m.GPU, m.party(), m.Reason)
		for _, p := range m.Layout {
			fmt.Fprintf(b, " %s@%d", p.Profile, p.Start)
		}
		fmt.Fprintf(b, ": gain %.0f slice-s, cost %.0f", w.Gain.Seconds(), w.Cost.Seconds())
	case Hold:
		if m.Model == "" {
			fmt.Fprintf(b, "held %s, wanted by %s (%s): %s", m.Slice, m.Job, m.Reason, lent)
			break
		}
		fmt.Fprintf(b, "held %s for %s, wanted by %s (%s): %s; lending would gain %.0f slice-s, cost %.0f; %s",
			m.Slice, m.Model, m.Job, m.Reason, needs, w.Gain.Seconds(), w.Cost.Seconds(), lent)
	}
	if w.Room != nil {
		fmt.Fprintf(b, "; headroom %.0f%% (p99 %v)", 100**w.Room, round(w.Latency))
	}
}

// within says how far ahead Fast looks, and how surely.
func (w Numbers) within() string {
	if w.Within == 0 {
		return "within the fast horizon"
	}
	how := fmt.Sprintf("the %g %% rise", math.Round(1e6*w.Quantile)/1e4)
	switch {
	case w.Quantile < 1e-6: // the law covers no rise: its floor is above all that it has seen, or bursts are rare enough
		how = "the law's floor"
	case w.Quantile > 1:
		how = fmt.Sprintf("%.3g times the worst rise", w.Quantile)
	}
	if w.Hold > 0 {
		how += fmt.Sprintf(" held %v", w.Hold)
	}
	return fmt.Sprintf("within %v at %s", round(w.Within), how)
}

// say writes a law that was learned, and what it would have done.
func (t *Trial) say(b *strings.Builder, m Move) {
	w := m.Why
	fmt.Fprintf(b, "learned from %v of %s: keep level + %.2f × level^%g ready, never below %.2f (what it may need %s); it would have lent %.2f of %d replicas on average in %.1f loans an hour and made %.4f %% of the work late, beside %.4f %% without lending",
		w.For.Round(time.Minute), m.Model, t.Fast, t.Power, t.Floor, w.within(), max(0, t.Lent), w.Have, t.Moves, 100*t.Late, 100*t.Static)
}

// party is for whom a GPU is made ready, or who has to leave a slice: a job, or a model.
func (m Move) party() string {
	if m.Job != "" {
		return m.Job
	}
	return m.Model
}

func round(d time.Duration) time.Duration {
	if d >= 10*time.Second {
		return d.Round(100 * time.Millisecond) // a bound of 13.5 s is no 14 s
	}
	return d.Round(time.Millisecond)
}

// history keeps the newest records.
type history struct {
	records []Record
	seq     uint64
	holds   map[string]Record // the last note of each slice
}

const historySize = 10_000

func (h *history) add(r Record) {
	if len(h.records) == historySize {
		h.records = append(h.records[:0], h.records[historySize/10:]...)
	}
	h.seq++
	r.Seq = h.seq
	h.records = append(h.records, r)
}

// news reports whether what is only noted, not done, says something new of its
// slice: another reason, or ten seconds later.
func (h *history) news(m Move, now time.Time) bool {
	if h.holds == nil {
		h.holds = map[string]Record{}
	}
	old, ok := h.holds[m.Slice]
	if ok && old.Move.Action == m.Action && old.Move.Reason == m.Reason && old.Move.Job == m.Job && now.Sub(old.Time) < 10*time.Second {
		return false
	}
	h.holds[m.Slice] = Record{Time: now, Move: m}
	return true
}

// Query selects decisions: About matches a slice, job or model, each slice of a
// gang, a GPU (g0) and what reshapes the GPU of a slice. Of a job's id the first
// eight characters or more will do. Zero fields select all.
type Query struct {
	About        string
	Action       Action
	Since, Until time.Time // Until itself is not in it
	Before       uint64    // only records of a lower Seq
	Limit        int
}

func (q *Query) selects(r *Record) bool {
	m := &r.Move
	return (q.About == "" || m.touches(q.About)) &&
		(q.Action == "" || q.Action == m.Action) && (q.Until.IsZero() || r.Time.Before(q.Until)) && (q.Before == 0 || r.Seq < q.Before)
}

// touches reports whether a move is about a slice, GPU, job or model.
func (m *Move) touches(about string) bool {
	if about == m.Slice || about == m.Job || about == m.Model || slices.Contains(m.Gang, about) {
		return true
	}
	if kind, id, ok := strings.Cut(about, "_"); ok && kind != "" && len(about) >= shortID && id != "" && strings.HasPrefix(m.Job, about) {
		return true
	}
	g, _, _ := strings.Cut(about, "/")
	return m.Action == Reshape && g == fmt.Sprintf("g%d", m.GPU) || g == about && strings.HasPrefix(m.Slice, about+"/")
}

// shortID is the least of a job's id that stands for it.
const shortID = 8

// Why returns the newest decisions that a query selects, oldest first.
func (a *Arbiter) Why(q Query) []Record {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.core.Why(q)
}

// Why returns the newest decisions that a query selects, oldest first.
func (c *Core) Why(q Query) []Record {
	var out []Record
	all := c.history.records
	for i := len(all) - 1; i >= 0 && (q.Limit <= 0 || len(out) < q.Limit); i-- {
		r := all[i]
		if r.Time.Before(q.Since) {
			break
		}
		if q.selects(&r) {
			out = append(out, r)
		}
	}
	for i, j := 0, len(out)-1; i < j; i, j = i+1, j-1 {
		out[i], out[j] = out[j], out[i]
	}
	return out
}

// Note keeps what others decided about a model beside what was decided here.
func (a *Arbiter) Note(r Record) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.core.record(r)
}

// View is what the arbiter last saw and did.
type View struct {
	Snapshot Snapshot
	Plan     Plan
	Balance  Balance
	Stats    Stats
	Policy   Policy
	Cap      int // on slices lent at once, after a broken bound; 0 = none
}

// View returns a copy for screens, metrics and reports.
func (a *Arbiter) View() View {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.core
	v := View{Snapshot: c.snapshot, Plan: c.plan, Balance: c.Balance(), Stats: c.stats, Policy: c.opt.Policy, Cap: c.Cap()}
	s := &v.Snapshot
	s.GPUs, s.Slices, s.Models = slices.Clone(s.GPUs), slices.Clone(s.Slices), slices.Clone(s.Models)
	s.Jobs, s.Claims = slices.Clone(s.Jobs), slices.Clone(s.Claims)
	v.Plan.Needs = maps.Clone(c.plan.Needs)
	v.Stats.Fast, v.Stats.Slow = slices.Clone(c.stats.Fast), slices.Clone(c.stats.Slow)
	return v
}
