package batcher

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"aloft/backends"
)

const (
	// kvShare of a replica's KV cache is promised to requests: how long answers
	// get is an estimate, and an engine that runs out throws work away.
	kvShare = 0.9
	// kvBlock is the tokens of a block where the engine does not say: vLLM's default.
	kvBlock = 16
	// Of answers' lengths the p80 over so many recent ones of a tenant is what the
	// next is expected to need, once there are enough; of the model's, until then;
	// priorOutput before that. All are less than what the caller allows.
	outputWindow  = 64
	outputSamples = 8
	priorOutput   = 256
	outputTenants = 1024 // remembered; the ones unused for longest are forgotten
	// outputWeight: an output token costs about two prompt tokens (VTC's weights).
	outputWeight = 2
	// streamStep is after how many tokens of a stream the core hears of it, to
	// charge its tenant and to raise what it was expected to need.
	streamStep = 64
	// engineQueue is how many requests may wait inside an engine: a queue there
	// can be neither ordered nor moved.
	engineQueue = 2
	// trustStep is how fast trust in predicted waits follows what came of them, from
	// 1 down to trustLeast.
	trustStep, trustLeast = 0.1, 0.2
	// readingAge is when an engine's figures, read every second, are stale.
	readingAge = 3 * time.Second
)

// lengths follow the p80 of recent answers, in tokens.
type lengths struct {
	ring, sorted [outputWindow]int32
	n            int
}

func (l *lengths) add(tokens int) {
	v, have := int32(min(tokens, 1<<30)), l.sorted[:min(l.n, outputWindow)]
	if l.n >= outputWindow {
		at, _ := slices.BinarySearch(have, l.ring[l.n%outputWindow])
		copy(have[at:], have[at+1:])
		have = have[:outputWindow-1]
	}
	at, _ := slices.BinarySearch(have, v)
	have = have[:len(have)+1]
	copy(have[at+1:], have[at:])
	have[at] = v
	l.ring[l.n%outputWindow] = v
	l.n++
}

// p80 is 0 while there are too few.
func (l *lengths) p80() int {
	if l == nil || l.n < outputSamples {
		return 0
	}
	n := min(l.n, outputWindow)
	return max(1, int(l.sorted[(4*n+4)/5-1]))
}

// outputs remember how long answers are, of the model and of each tenant.
type outputs struct {
	all     lengths
	tenants *simplelru.LRU[string, *lengths]
}

func newOutputs(tenants int) *outputs {
	t, err := simplelru.NewLRU[string, *lengths](tenants, nil)
	if err != nil {
		panic(fmt.Sprintf("BUG: outputs of %d tenants: %v", tenants, err))
	}
	return &outputs{tenants: t}
}

func (o *outputs) add(tenant string, tokens int) {
	o.all.add(tokens)
	l, ok := o.tenants.Get(tenant)
	if !ok {
		l = &lengths{}
		o.tenants.Add(tenant, l)
	}
	l.add(tokens)
}

// expect is how many tokens w's answer probably has, 0 for what generates none.
func (o *outputs) expect(w *Work) int {
	if w.Output < 0 {
		return 0
	}
	l, _ := o.tenants.Get(w.Tenant)
	guess := cmp.Or(l.p80(), o.all.p80(), priorOutput)
	if w.Output > 0 {
		guess = min(guess, w.Output)
	}
	return guess
}

// seated is what a generation takes of its replica beside a slot.
type seated struct {
	sat     bool
	expect  int       // tokens of its answer
	ahead   int       // prompt tokens before its own when it was sent
	read    time.Time // when its prompt is read, by the fit
	written int       // tokens of its answer so far
}

// engineState is a replica as its engine and its generations make it.
type engineState struct {
	reading  backends.Reading
	readAt   time.Time // zero = it has never said anything
	most     int       // sequences that it ran when more waited inside it; 0 = not known
	seats    []*Batch  // what runs
	kv       int       // tokens of cache that they would need if none ended before the others
	prefills []*Batch  // without a first byte, in order of dispatch
}

// room is how many tokens of r's cache may be promised; 0 = no limit is known.
func (c *Core) room(r *replica) int {
	return int(kvShare * float64(cmp.Or(c.opt.KVTokens, r.reading.KVTokens)))
}

// stale reports whether the engine gave figures once, and gives none now.
func (r *replica) stale(now time.Time) bool {
	return !r.readAt.IsZero() && now.Sub(r.readAt) > readingAge
}

// prefilling is the prompt tokens that the engine has still to read. When an
// answer that is no stream gets its first token is not known: the fit says it.
func (r *replica) prefilling(now time.Time) (tokens int) {
	for _, b := range r.prefills {
		if !b.Segs[0].Work.Unary || now.Before(b.read) {
			tokens += b.Tokens
		}
	}
	return tokens
}

// peak is the most cache that r will need at once if w starts now (nil: nothing
// does) and each answer gets as long as expected: what is nearly done gives its
// share back before the others have grown (Past-Future scheduler, ASPLOS '25). Each
// may leave most of a block empty.
func (c *Core) peak(r *replica, w *Work) int {
	c.growing = c.growing[:0]
	if w != nil {
		c.growing = append(c.growing, growth{w.tokens(), c.outputs.expect(w)})
	}
	for _, b := range r.seats {
		c.growing = append(c.growing, growth{b.Tokens + b.written, b.expect - b.written})
	}
	slices.SortFunc(c.growing, func(a, b growth) int { return b.left - a.left })
	most, held, waste := 0, 0, cmp.Or(r.reading.KVBlock, kvBlock)-1
	for i, g := range c.growing {
		held += g.now + waste
		most = max(most, held+(i+1)*g.left)
	}
	return most
}

// growth is the cache that a sequence holds, and how much more it will.
type growth struct{ now, left int }

// holds reports whether r's cache has room for w too.
func (c *Core) holds(r *replica, w *Work) bool {
	room := c.room(r)
	return room == 0 || r.kv+w.tokens()+c.outputs.expect(w)+kvBlock <= room || c.peak(r, w) <= room
}

// sit reserves what b takes of r, beside its slot.
func (c *Core) sit(now time.Time, r *replica, b *Batch) {
	if c.opt.Merge {
		return
	}
	ahead := r.prefilling(now)
	b.seated = seated{sat: true, ahead: ahead, read: now.Add(r.fit.Promise(ahead + b.Tokens)),
		expect: c.outputs.expect(b.Segs[0].Work)}
	r.kv += b.cache()
	r.seats = append(r.seats, b)
	r.prefills = append(r.prefills, b)
	c.kvTokens.add(float64(b.cache()))
}

// prefilled notes that the engine has read b's prompt.
func (r *replica) prefilled(b *Batch) {
	if i := slices.Index(r.prefills, b); i >= 0 {
		r.prefills = slices.Delete(r.prefills, i, i+1)
	}
}

// stand gives back what b took.
func (r *replica) stand(b *Batch) {
	if b.sat {
		b.sat = false
		r.kv -= b.cache()
		if i := slices.Index(r.seats, b); i >= 0 {
			r.seats[i] = r.seats[len(r.seats)-1]
			r.seats = slices.Delete(r.seats, len(r.seats)-1, len(r.seats))
		}
		r.prefilled(b)
	}
}

// Streamed notes that so many tokens of b's answer are there. Its tenant is
// charged as they come, and what has grown past its estimate is estimated anew.
func (c *Core) Streamed(now time.Time, b *Batch, tokens int) []Action {
	c.acts = c.acts[:0]
	if !b.sat {
		return nil
	}
	c.wrote(b, tokens)
	w, r := b.Segs[0].Work, b.replica
	next := tokens + streamStep
	if w.Output > 0 {
		next = min(next, max(w.Output, tokens))
	}
	if more := next - b.expect; more > 0 {
		b.expect += more
		r.kv += more
	}
	if len(c.order.expiries) == 0 {
		return nil
	}
	return c.settle(now) // it is nearer to its end, so that there may be room
}

// cache is the tokens that b is expected to need at its end, in blocks at worst.
func (b *Batch) cache() int { return b.Tokens + b.expect + kvBlock }

// wrote charges what b has generated since it was charged last.
func (c *Core) wrote(b *Batch, tokens int) {
	if more := tokens - b.written; more > 0 {
		b.written = tokens
		c.order.charge(b.Segs[0].Work, outputWeight*float64(more))
	}
}

// SetReading takes what the engine of a replica says of itself now.
func (c *Core) SetReading(now time.Time, id string, said backends.Reading) []Action {
	c.acts = c.acts[:0]
	r := c.byID[id]
	if r == nil {
		return nil
	}
	r.reading, r.readAt = said, now
	switch {
	case said.Waiting > engineQueue:
		r.most = max(said.Running, 1)
	case r.most > 0 && said.Running > r.most:
		r.most = said.Running
	}
	return c.settle(now)
}

// full is why w, for which r has a slot, is held back from it all the same; Holds:
// it is not. An engine on which nothing of ours runs is never full, so that no
// figure, read or learned, can lock it.
func (c *Core) full(now time.Time, w *Work, r *replica) Hold {
	if r.busy == 0 {
		return Holds
	}
	switch {
	case r.stale(now): // as good as full: what it runs and whether it runs is not known
		return HoldStale
	case r.most > 0 && r.busy >= r.most+engineQueue:
		return HoldEngine
	case r.reading.KVUsage >= kvShare || !c.holds(r, w):
		return HoldKV
	case c.crowded(now, w, r):
		return HoldPrefill
	}
	return Holds
}

// crowded reports whether the prompts that r has still to read would make w miss
// its first token's time; without any, it is not. What reads no prompt of w's is no
// use to it, so the wait ends with the next first byte, or when the fit expects one.
func (c *Core) crowded(now time.Time, w *Work, r *replica) bool {
	if c.opt.Target == 0 || r.fit.cold() {
		return false
	}
	ahead := r.prefilling(now)
	if ahead == 0 {
		return false
	}
	own := w.tokens()
	behind := r.fit.Promise(ahead+own) - r.fit.Promise(own)
	if behind <= c.spare(now, w, r.fit) {
		return false
	}
	for _, b := range r.prefills {
		if b.Segs[0].Work.Unary && now.Before(b.read) {
			c.wakeAt(b.read)
		}
	}
	return true
}

// spare is how long w's prompt may wait for its turn. Never longer than a target,
// or those that come next would have no time left; offline work must not hold them
// up by more than its share of one. Where the first token cannot be in time
// anyway it is only kept from growing late without end.
func (c *Core) spare(now time.Time, w *Work, f *Fit) time.Duration {
	if w.Class == backends.Offline {
		return c.opt.Target / offlineShare
	}
	left := w.due.Sub(now) - f.Promise(w.tokens())
	if left < 0 {
		return c.opt.Target
	}
	return min(left, c.opt.Target)
}

// lateFirst is late for generation: by how much w would miss the time of its first
// token. It would not while a replica takes it at once.
func (c *Core) lateFirst(now time.Time, w *Work) (excess time.Duration, ok bool) {
	var running, free, cache, spare, rate float64
	var fit *Fit
	limited, reading := true, 0
	for _, r := range c.replicas {
		switch {
		case r.Offline || !r.has(w.Place.Adapter):
			continue
		case c.takes(now, w, r) == Holds:
			return 0, false
		}
		if fit == nil || fit.cold() || !r.fit.cold() && r.fit.beta < fit.beta {
			fit = r.fit
		}
		running += float64(r.busy)
		reading += r.prefilling(now)
		rate += 1 / r.fit.beta
		free += float64(r.Slots - r.busy)
		cache += float64(r.kv)
		spare += max(0, float64(c.room(r)-c.peak(r, nil)))
		limited = limited && c.room(r) > 0
	}
	if fit == nil || c.slotSeconds.n < coldSamples || running == 0 {
		return 0, false
	}
	works, tokens := c.before(w)
	wait, own := max(0, float64(works)+1-free)*c.slotSeconds.mean/running, time.Duration(0) // for a slot
	if limited && cache > 0 {                                                               // for cache
		need := float64(tokens+w.tokens()) + float64(works)*float64(c.outputs.all.p80()) + float64(c.outputs.expect(w))
		wait = max(wait, (need-spare)*c.slotSeconds.mean/cache)
	}
	if !fit.cold() { // where no answer is a stream it stays so
		wait, own = max(wait, float64(tokens+reading)/rate), fit.Promise(w.tokens()) // for its prompt's turn
	}
	excess = time.Duration(wait * float64(time.Second))
	left := w.due.Sub(now) - own
	if left <= 0 { // too late with no wait at all: it is only kept from growing late without end
		left = c.opt.Target
	}
	excess -= time.Duration(c.trust * float64(left))
	return excess, excess > 0
}

// tooLate reports whether w cannot be in time any more while others that wait can:
// under overload its slot is theirs.
func (c *Core) tooLate(now time.Time, w *Work) bool {
	return c.opt.Target > 0 && w.Class != backends.Offline && c.refused.mean > 0 && c.order.classes[w.Class].queue > 1 && now.After(w.due)
}

// trusted learns from a first token that was waited for: how much of the time that
// is left a predicted wait may take. Under overload the queue is as long as what is
// let in makes it, so that a mean predicted exactly would be missed by every second
// request.
func (c *Core) trusted(b *Batch, late bool) {
	w := b.Segs[0].Work
	if w.Class == backends.Offline || c.opt.Target == 0 || !b.At.After(w.Arrival) || w.due.Sub(w.Arrival) < b.replica.fit.Promise(b.Tokens) {
		return
	}
	if late {
		c.trust -= trustStep * marginShare
	} else {
		c.trust += trustStep * (1 - marginShare)
	}
	c.trust = min(max(c.trust, trustLeast), 1)
}

// before is what is served before w would be: what the classes above have waiting,
// and what its own has, or what its tenant has in its share, if that is less.
func (c *Core) before(w *Work) (works, tokens int) {
	class := &c.order.classes[w.Class]
	own, ownTokens, active := 0, 0, class.active
	if a := class.accounts[w.Tenant]; a != nil && a.queued > 0 {
		own, ownTokens = a.queued, a.tokens
	} else {
		active++
	}
	works, tokens = min(class.queue, own*active), min(class.tokens, ownTokens*active)
	for above := backends.Interactive; above < w.Class; above++ {
		works += c.order.classes[above].queue
		tokens += c.order.classes[above].tokens
	}
	return works, tokens
}

// EngineSignals are what is known of the engines of generation, over the
// replicas that are not Offline.
type EngineSignals struct {
	Read, Stale      int     // replicas whose engine says something, and of those the silent ones
	Running, Waiting int     // as they said last
	KVTokens, KVKept int     // tokens that may be promised, and those that are; 0 = not known
	KVUsage          float64 // of the fullest, as it said last
	Prefilling       int     // prompt tokens that are still to be read
	Output           int     // tokens expected of an answer: the p80
}

// engines describes them.
func (c *Core) engines(now time.Time) (s EngineSignals) {
	s.Output = c.outputs.all.p80()
	for _, r := range c.replicas {
		if r.Offline {
			continue
		}
		if !r.readAt.IsZero() {
			s.Read++
		}
		if r.stale(now) {
			s.Stale++
		}
		s.Running += r.reading.Running
		s.Waiting += r.reading.Waiting
		s.KVTokens += c.room(r)
		s.KVKept += c.peak(r, nil)
		s.KVUsage = max(s.KVUsage, r.reading.KVUsage)
		s.Prefilling += r.prefilling(now)
	}
	return s
}
