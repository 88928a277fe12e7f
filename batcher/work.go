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
	Key       string // work of different keys never shares a call; "" for generation
	RowTokens []int  // tokens of each row; one entry for generation
	Arrival   time.Time
	Deadline  time.Time // the request's own; zero = none
	Load      any       // the caller's; the core never looks inside

	due, expiry time.Time
	todo        []span // rows waiting for a call
	first       [1]span
	running     int    // segments at engines
	avoid       string // replica that failed it, until avoidUntil
	avoidUntil  time.Time
	closed      bool // answered, failed or cancelled

	lane              *lane // nil = not queued
	queue             *tenantQueue
	duePos, expiryPos int
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

	tries int
}

// Batch is one engine call: several segments of one key, or one generation.
type Batch struct {
	Replica     Replica
	Key         string
	Segs        []Seg
	Rows        int
	Tokens      int
	OfflineRows int
	Reason      Reason
	At          time.Time     // when it was dispatched
	Held        time.Duration // how long its replica was free while its first member waited

	replica *replica
	shared  bool          // its offline rows count against the offline limit
	load    int           // tokens it keeps its replica busy with
	first   time.Duration // generation: dispatch to first byte
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
		b.Segs[n].To, b.Segs[n].Tokens = s.To, b.Segs[n].Tokens+s.Tokens
	} else {
		b.Segs = append(b.Segs, s)
	}
	b.Rows, b.Tokens = b.Rows+s.To-s.From, b.Tokens+s.Tokens
	if s.Work.Class == backends.Offline {
		b.OfflineRows += s.To - s.From
	}
}
