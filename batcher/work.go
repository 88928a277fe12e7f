package batcher

import (
	"slices"
	"time"

	"aloft/backends"
)

// Work is one request as the core sees it: whose it is and how large, not what.
type Work struct {
	Class     backends.Class
	Tenant    string
	Key       string // work of different keys never shares a call; of what is Alone Pooled or ""
	Alone     bool   // a call of its own: whatever is not merged
	Unary     bool   // Alone, and no stream: may be hedged
	Place     backends.Placement
	RowTokens []int // tokens of each row; one entry for what is Alone
	Output    int   // upper bound of the tokens it generates; 0 = not given, -1 = none
	Arrival   time.Time
	Deadline  time.Time // the request's own; zero = none
	Load      any       // the caller's; the core never looks inside

	due, expiry time.Time
	todo        []span // rows waiting for a call
	first       [1]span
	running     int // segments at engines
	avoid       avoided
	closed      bool  // answered, failed or cancelled
	own         Batch // the first call that it leads, so that most calls need no memory of their own
	seat
}

// Pooled is the Key of what goes alone but costs what a merged call of its tokens
// does, a rerank: the fit and the latencies of merged calls count it.
const Pooled = "pooled"

// seat is where a work waits.
type seat struct {
	lane              *lane // nil = not queued
	queue             *tenantQueue
	duePos, expiryPos int
	seq               uint64 // order of arrival, which decides between equals
}

// avoided is the replica that failed a work, and for how long it is kept off it.
type avoided struct {
	id    string
	until time.Time
}

// span is a range of rows and how often it has been sent in vain.
type span struct{ from, to, tries int }

// rank is the class that the work is served as: one higher once it is past due.
func (w *Work) rank(now time.Time) backends.Class {
	if w.Class == backends.Standard && now.After(w.due) {
		return backends.Interactive
	}
	return w.Class
}

// waiting counts the rows and tokens that wait for a call.
func (w *Work) waiting() (rows, tokens int) {
	for _, s := range w.todo {
		rows += s.to - s.from
		for _, t := range w.RowTokens[s.from:s.to] {
			tokens += max(t, 1)
		}
	}
	return rows, tokens
}

func (w *Work) tokens() (n int) {
	for _, t := range w.RowTokens {
		n += max(t, 1)
	}
	return n
}

// Seg is the part of a Work that one call carries: rows From..To.
type Seg struct {
	Work             *Work
	From, To, Tokens int

	longest, tries int // tokens of the longest row; times sent in vain
}

// seg is the segment that carries the rows of s.
func (w *Work) seg(s span) Seg {
	seg := Seg{Work: w, From: s.from, To: s.to, tries: s.tries}
	for _, t := range w.RowTokens[s.from:s.to] {
		seg.Tokens, seg.longest = seg.Tokens+max(t, 1), max(seg.longest, t, 1)
	}
	return seg
}

// Batch is one engine call: several segments of one key, or one work that is Alone.
type Batch struct {
	Replica     Replica
	Key         string
	Adapter     string
	Alone       bool
	Segs        []Seg
	Rows        int
	Tokens      int
	OfflineRows int
	Reason      Reason
	At          time.Time     // when it was dispatched
	Held        time.Duration // how long its replica was free while its first member waited

	replica *replica
	load    int           // tokens it keeps its replica busy with
	first   time.Duration // alone: dispatch to first byte
	one     [1]Seg        // what Segs starts on
	begun   bool          // its first byte is noted
	seated
	pos int // among those that fly
	pair
	longest int // tokens of the longest row
}

// pair is a hedged call's other half.
type pair struct {
	twin    *Batch // the other call, while both fly
	lost    bool   // its twin answered first
	watched bool   // its time counts for hedging
}

func (b *Batch) size() Size { return Size{b.Rows, b.Tokens, b.longest} }

// lead returns an empty call that w is the first member of.
func lead(w *Work) *Batch {
	b := &w.own
	if b.replica != nil || len(b.Segs) > 0 { // used: w is tried again, or has more rows
		b = &Batch{}
	}
	b.Key, b.Adapter, b.Alone = w.Key, w.Place.Adapter, w.Alone
	return b
}

// works lists the open members of segs, each once, in order.
func works(segs []Seg) (ws []*Work) {
	for _, s := range segs {
		if !s.Work.closed && !slices.Contains(ws, s.Work) {
			ws = append(ws, s.Work)
		}
	}
	return ws
}

func (b *Batch) add(s Seg) {
	if n := len(b.Segs) - 1; n >= 0 && b.Segs[n].Work == s.Work && b.Segs[n].To == s.From && b.Segs[n].tries == s.tries {
		b.Segs[n].To, b.Segs[n].Tokens, b.Segs[n].longest = s.To, b.Segs[n].Tokens+s.Tokens, max(b.Segs[n].longest, s.longest)
	} else if b.Segs == nil {
		b.one[0] = s
		b.Segs = b.one[:]
	} else {
		b.Segs = append(b.Segs, s)
	}
	b.Rows, b.Tokens, b.longest = b.Rows+s.To-s.From, b.Tokens+s.Tokens, max(b.longest, s.longest)
	if s.Work.Class == backends.Offline {
		b.OfflineRows += s.To - s.From
	}
}
