package arbiter

import (
	"bytes"
	"encoding/json"
	"time"
)

// The journal is one record a line, written before what it says is done. A server
// that is killed at any byte of it, at any step of any move, starts again from
// three things: what replicas and jobs really hold, which the first look sees;
// what was promised and learned, which the journal's tail says; and nothing else.
// Moves that were under way are over, claims are forgotten.

// ParseJournal reads the tail of a journal. Lines that are torn, at the front by
// the cut, at the end by a kill, or anywhere by a disk, are passed over.
func ParseJournal(tail []byte) []Record {
	var out []Record
	for line := range bytes.Lines(tail) {
		var r Record
		if json.Unmarshal(line, &r) != nil || r.Time.IsZero() || r.Move.Action == "" {
			continue
		}
		out = append(out, r)
	}
	return out[max(0, len(out)-historySize):]
}

// Restore takes over what an earlier core recorded, oldest first. It is called
// before the first look.
func (c *Core) Restore(past []Record) {
	c.promised = map[string]Lease{}
	for _, r := range past {
		c.history.add(r)
		c.gen = max(c.gen, r.Gen)
		m := r.Move
		switch {
		case m.Action == Reshape && r.Outcome != "":
			c.shaped[m.GPU] = r.Time
		case m.Action == Lend && r.Outcome == "":
			for _, id := range append([]string{m.Slice}, m.Gang...) {
				c.promised[id] = Lease{Job: m.Job, Bound: m.Bound, Since: r.Time}
			}
		case m.Action == Reclaim && r.Outcome == "":
			c.memory(m.Model).reclaimed = r.Time
		case m.Action == Reclaim:
			c.restoreReclaim(r)
		}
	}
}

func (c *Core) restoreReclaim(r Record) {
	delete(c.promised, r.Move.Slice)
	if r.Cap > 0 {
		c.cap, c.calm = r.Cap, r.Time
	}
	if r.Error == "" && r.Outcome != "expired" {
		c.stats.took(r.Took, r.Fast)
	}
}

// adopt gives a lease to a job that holds a slice without one, with the bound that
// was promised to it if an earlier core did.
func (c *Core) adopt(slice string, j *Job, now time.Time) Lease {
	l := Lease{Gen: c.nextGen(), Job: j.ID, Since: now, Until: now.Add(c.opt.Lease), Bound: c.opt.Policy.Bound(*j, Model{})}
	if p := c.promised[slice]; p.Job == j.ID && p.Bound > 0 {
		l.Bound, l.Since = p.Bound, p.Since
	}
	return l
}
