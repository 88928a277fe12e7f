package arbiter

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// LateBudget is the share of the arriving work that lending may make late, as a
// fluid of work sees it in the histories that a law is learned from. A fluid calls
// late what a queue would still have served in time, and the other way round where
// replicas are few and prompts not divisible. Half as much as 1e-4 takes a third to
// a half off what bursty-8gpu-code misses because of loans (seeds 23 to 25: 63, 21
// and 24 in 100,000 became 44, 12 and 15) for 0.01 of aloft ratio.
const LateBudget = 5e-5

// relearn is for how long a law stands until the next is learned, from what has
// come since as well.
const relearn = time.Hour

// studied is what the core keeps of a model's law besides the law.
type studied struct {
	at    time.Time // when it was last due; zero = never
	risk  Risk      // that the trial is of
	trial Trial     // of the law that is followed; no law = none was learned here
}

// Memory is what is kept of a model from one run to the next. The seasons of its
// forecast are not: they begin anew.
type Memory struct {
	Past  Past
	Trial Trial // of the law that it follows; no law = it has none
	Risk  Risk  // that the law was learned for
}

// Lesson is a law that is due to be learned.
type Lesson struct {
	Model   string
	Past    Past // a copy: it may be read while the core goes on
	Options LearnOptions
}

// Lesson is the next that is due: of a model with an hour of history, whose law is
// an hour old or was for another risk. To learn it takes a second and more, so it
// is done beside the looks, without the core, and then given to Take.
func (c *Core) Lesson() (l Lesson, ok bool) {
	for i := range c.snapshot.Models {
		m := &c.snapshot.Models[i]
		mem := c.memory(m.Name)
		if age := c.now.Sub(mem.studied.at); !mem.studied.at.IsZero() && age < relearn || mem.rise.Seconds() < learnLeast {
			continue
		}
		mem.studied.at = c.now
		return Lesson{Model: m.Name, Past: mem.rise.Past(), Options: c.learnOptions(m)}, true
	}
	return Lesson{}, false
}

// learnOptions are what a law of the model is learned for. A loan goes out once
// the replica has drained, loads, and comes back as fast as has been measured; no
// faster than the fast horizon while nothing has.
func (c *Core) learnOptions(m *Model) LearnOptions {
	h := c.horizons()
	return LearnOptions{Share: cmp.Or(m.Static, m.Max), Fast: h.Fast, Slow: h.Slow, Slack: m.Target,
		OutBack: max(m.Out+m.Back+max(m.Cold, m.Back), h.Fast), Budget: LateBudget, Strict: c.opt.Policy.Risk == Strict}
}

// Take follows what came of a lesson from the next look on.
func (c *Core) Take(l Lesson, t Trial, took time.Duration) {
	if !t.Learned() || l.Options.Strict != (c.opt.Policy.Risk == Strict) {
		return // the risk has changed meanwhile: the law is due again
	}
	mem := c.memory(l.Model)
	mem.studied.risk, mem.studied.trial = c.risk(), t
	mem.rise.Follow(t.Law)
	c.record(Record{Time: c.now, Outcome: "learned", Took: took, Learned: &t, Move: Move{Action: Follow, Model: l.Model, Reason: FromPast,
		Why: Numbers{Have: l.Options.Share, Quantile: t.Quantile, Hold: t.Hold, Within: l.Options.Fast, For: time.Duration(len(l.Past.Level)) * time.Second}}})
}

// risk is the policy's, by its name.
func (c *Core) risk() Risk { return cmp.Or(c.opt.Policy.Risk, Normal) }

// horizons are how far ahead rises are covered now. Where nothing may be late
// because of a loan, and no law says how much that takes, it is the worst rise.
func (c *Core) horizons() Horizons {
	fast, slow := c.stats.horizons(c.opt.FastHorizon, c.opt.SlowHorizon)
	h := Horizons{Fast: fast, Slow: slow, Quantile: c.opt.RiseQuantile}
	if c.opt.Policy.Risk == Strict {
		h.Quantile = 1
	}
	return h
}

// unlearn gives up all laws: they are of another risk.
func (c *Core) unlearn() {
	for _, name := range slices.Sorted(maps.Keys(c.models)) {
		mem := c.models[name]
		mem.studied = studied{}
		mem.rise.Forget(c.horizons())
	}
}

// Remember takes over what an earlier core has kept of a model. It is called
// before the first look. The law is due again at once, since what was measured,
// and the shares, may have changed; until then the old one stands.
func (c *Core) Remember(model string, m Memory) {
	mem := c.memory(model)
	mem.rise.Recall(m.Past, c.horizons())
	if m.Trial.Learned() && cmp.Or(m.Risk, Normal) == c.risk() {
		mem.studied.risk, mem.studied.trial = c.risk(), m.Trial
		mem.rise.Follow(m.Trial.Law)
	}
}

// Memories are what is to be kept of each model: copies.
func (c *Core) Memories() map[string]Memory {
	out := make(map[string]Memory, len(c.models))
	for name, mem := range c.models {
		out[name] = Memory{Past: mem.rise.Past(), Trial: mem.studied.trial, Risk: mem.studied.risk}
	}
	return out
}
