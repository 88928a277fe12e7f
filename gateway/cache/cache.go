// Package cache remembers the embeddings of exact inputs, in front of the queue.
//
// It is off by default: it pays where the same texts come again (documents that
// are indexed anew, popular queries). A row is remembered for the tenant that
// asked: else the time of an answer would tell what others have asked. Rows, not
// requests, are remembered, so a request may be answered in part: only the rows
// that are missing go on, and `index` is the caller's own all the same
// (docs/failures.md F8; LiteLLM 41002 answered such requests with double ones).
package cache

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"aloft/backends"
	"aloft/backends/openai"
	"aloft/gateway"
)

// entryOverhead is what an entry costs besides its vector: key, list element,
// map slot, measured at about this.
const entryOverhead = 200

// maxReply bounds an answer that is taken apart.
const maxReply = 256 << 20

type key [sha256.Size]byte

// entry is a row's answer as the engine wrote it: a JSON array of numbers or a
// base64 string.
type entry struct {
	vector []byte
	tokens int
}

// Cache is a gateway.Submitter that knows some answers. All its methods may be
// called by many goroutines.
type Cache struct {
	next gateway.Submitter
	most int64
	sure func(model string) bool

	mu           sync.Mutex
	rows         *simplelru.LRU[key, entry]
	bytes        int64
	hits, misses uint64 // rows
	purges       uint64
}

// New remembers at most so many bytes of answers of next. sure reports whether a
// model's engines all are what it is configured to be: while some are not, its
// requests pass by. It must not block.
func New(next gateway.Submitter, most int64, sure func(model string) bool) (*Cache, error) {
	if most < 1 {
		return nil, fmt.Errorf("embedding cache of %d bytes, want at least 1", most)
	}
	c := &Cache{next: next, most: most, sure: sure}
	var err error
	// The bytes bound it; the number only must be large enough never to.
	c.rows, err = simplelru.NewLRU(int(most/entryOverhead)+1, func(_ key, e entry) { c.bytes -= size(e) })
	return c, err
}

func size(e entry) int64 { return int64(len(e.vector)) + entryOverhead }

// Stats counts rows found and not found, and the bytes held.
func (c *Cache) Stats() (hits, misses uint64, bytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hits, c.misses, c.bytes
}

// Purge forgets everything: a model's engine has changed.
func (c *Cache) Purge() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rows.Purge()
	c.purges++ // what is under way is not learned either
}

// Submit implements gateway.Submitter.
func (c *Cache) Submit(ctx context.Context, r *backends.Request) (*backends.Reply, error) {
	if r.Endpoint != backends.Embeddings || len(r.Inputs) == 0 || !c.sure(r.Model) {
		return c.next.Submit(ctx, r)
	}
	a := c.look(r)
	if len(a.missing) == 0 {
		return a.reply(&backends.Reply{Timing: backends.Timing{Route: backends.RouteCache}})
	}
	ask := r
	if len(a.missing) < len(r.Inputs) {
		ask = a.rest()
	}
	reply, err := c.next.Submit(ctx, ask)
	if err != nil || reply.Status != 200 {
		return reply, err
	}
	text, err := io.ReadAll(io.LimitReader(reply.Body, maxReply))
	reply.Body.Close()
	if err != nil {
		return nil, fmt.Errorf("read embeddings: %w", err)
	}
	items, err := openai.Split(ask.Endpoint, text, len(ask.Inputs))
	if err == nil {
		err = openai.CheckDimensions(items.Rows, r.Dimensions)
	}
	if err != nil {
		return nil, err
	}
	shares := openai.RowTokens(ask)
	openai.Apportion(shares, items.Prompt)
	c.learn(a, items.Rows, shares)
	if ask == r { // nothing of ours is in it: the answer as it came
		reply.Body, reply.Dimensions = io.NopCloser(bytes.NewReader(text)), r.Dimensions
		return reply, nil
	}
	return a.reply(reply)
}

// answer is a request's rows as far as they are known.
type answer struct {
	r       *backends.Request
	keys    []key
	rows    []entry
	missing []int // indices
	purges  uint64
}

func (c *Cache) look(r *backends.Request) *answer {
	a := &answer{r: r, keys: make([]key, len(r.Inputs)), rows: make([]entry, len(r.Inputs))}
	h := sha256.New()
	for i, row := range r.Inputs {
		h.Reset()
		for _, part := range []string{r.Tenant, r.Model, r.Place.Adapter, r.MergeKey} {
			fmt.Fprintf(h, "%d:%s", len(part), part)
		}
		h.Write(row)
		h.Sum(a.keys[i][:0])
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	a.purges = c.purges
	for i, k := range a.keys {
		e, ok := c.rows.Get(k)
		if !ok {
			a.missing = append(a.missing, i)
		}
		a.rows[i] = e
	}
	c.misses += uint64(len(a.missing))
	c.hits += uint64(len(a.keys) - len(a.missing))
	return a
}

// rest is the request for the missing rows alone.
func (a *answer) rest() *backends.Request {
	part := *a.r
	part.Inputs, part.InputTokens, part.Tokens = nil, nil, 0
	tokens := openai.RowTokens(a.r)
	for _, i := range a.missing {
		part.Inputs = append(part.Inputs, a.r.Inputs[i])
		part.InputTokens = append(part.InputTokens, tokens[i])
		part.Tokens += tokens[i]
	}
	part.Body = openai.AppendMerged(nil, []*backends.Request{&part})
	return &part
}

// learn fills in the missing rows and remembers them.
func (c *Cache) learn(a *answer, vectors [][]byte, tokens []int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for n, i := range a.missing {
		// A copy: the answer's buffer is as large as all its rows.
		e := entry{bytes.Clone(vectors[n]), tokens[n]}
		a.rows[i] = e
		if size(e) > c.most || a.purges != c.purges {
			continue
		}
		c.rows.Remove(a.keys[i]) // the same text twice in one request
		c.rows.Add(a.keys[i], e)
		for c.bytes += size(e); c.bytes > c.most; {
			c.rows.RemoveOldest()
		}
	}
}

// reply builds the caller's answer from its rows; r brings status and timing.
func (a *answer) reply(r *backends.Reply) (*backends.Reply, error) {
	vectors, tokens := make([][]byte, len(a.rows)), 0
	for i, e := range a.rows {
		vectors[i] = e.vector
		tokens += e.tokens
	}
	text, err := openai.AppendEmbeddings(nil, vectors, openai.EmbeddingsReply{Model: a.r.Model, PromptTokens: tokens, Base64: a.r.Base64})
	if err != nil {
		return nil, err
	}
	r.Status, r.ContentType, r.Body = 200, "application/json", io.NopCloser(bytes.NewReader(text))
	r.Dimensions = a.r.Dimensions
	r.Timing.PromptTokens = tokens
	return r, nil
}
