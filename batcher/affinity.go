package batcher

import (
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"aloft/backends"
)

const (
	// maxHolders is how many replicas are remembered for one prefix block: those
	// that saw it last.
	maxHolders = 4
	// affinityEntries is how many sessions, and how many prefix blocks, a model
	// remembers at most.
	affinityEntries = 32768
	// maxBlocks bounds the prefix blocks of one request that are looked at.
	maxBlocks = 256
)

// affinity remembers which replicas saw a session or a prefix, within a bound:
// what was not used for longest is forgotten first.
type affinity struct {
	sessions *simplelru.LRU[uint64, string]
	blocks   *simplelru.LRU[uint64, holders]
}

// holders are replica ids, the newest first; "" = none.
type holders [maxHolders]string

func newAffinity(entries int) *affinity {
	sessions, err1 := simplelru.NewLRU[uint64, string](entries, nil)
	blocks, err2 := simplelru.NewLRU[uint64, holders](entries, nil)
	if err1 != nil || err2 != nil {
		panic(fmt.Sprintf("BUG: affinity of %d entries: %v %v", entries, err1, err2))
	}
	return &affinity{sessions, blocks}
}

// saw remembers that replica id got a request with p.
func (a *affinity) saw(p backends.Placement, id string) {
	if p.Session != 0 {
		a.sessions.Add(p.Session, id)
	}
	for _, block := range p.Prefix[:min(len(p.Prefix), maxBlocks)] {
		h, _ := a.blocks.Get(block)
		at := slices.Index(h[:], id)
		if at < 0 {
			at = maxHolders - 1
		}
		copy(h[1:at+1], h[:at])
		h[0] = id
		a.blocks.Add(block, h)
	}
}

// affine is the replica that knows w's session, or else the longest of its
// prefixes (of several the least loaded), if w may start there and it has little
// more to do than the least loaded of all. With patience an idle replica is left
// idle, free to be lent.
func (c *Core) affine(now time.Time, w *Work, least *replica) *replica {
	own := c.expected(w)
	good := func(id string) *replica {
		r := c.byID[id]
		if r == nil || r.gone || c.eta > 0 && r.busy == 0 {
			return nil
		}
		if c.takes(now, w, r) < Holds {
			return nil
		}
		// Affinity without a bound ends in timeouts (AIBrix 842): an average request
		// for each free slot, so that load evens out as they get rare.
		slack := max(1, c.batchTokens.mean+c.output.mean) * float64(r.Slots-r.busy)
		if (float64(r.tokens+own)-slack)/float64(r.Slots) > float64(least.tokens+own)/float64(least.Slots) {
			return nil
		}
		return r
	}
	if w.Place.Session != 0 {
		if id, ok := c.affinity.sessions.Get(w.Place.Session); ok {
			if r := good(id); r != nil {
				return r
			}
		}
	}
	for i := min(len(w.Place.Prefix), maxBlocks) - 1; i >= 0; i-- {
		h, _ := c.affinity.blocks.Get(w.Place.Prefix[i])
		var best *replica
		for _, id := range h {
			if id == "" {
				break
			}
			if r := good(id); r != nil && (best == nil || r.tokens*best.Slots < best.tokens*r.Slots) {
				best = r
			}
		}
		if best != nil {
			return best
		}
	}
	return nil
}
