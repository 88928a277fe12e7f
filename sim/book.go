package sim

import (
	"time"

	"aloft/arbiter"
	"aloft/sim/scenario"
)

// standing is what a slice is booked under. Ready slices are split by what they
// did, idle ones by who waits.
type standing int

const (
	away standing = iota // not there
	ready
	idleFree
	idleAsleep
	held // idle, and moving: kept for somebody
	loading
	draining
	starting
	runs
	saving
	reshaping
	broken
	oversized // the part of a whole GPU that a job of single slices leaves unused
	standings
)

// stands is what a slice is to be booked under.
func (s *slot) stands() standing {
	switch s.phase {
	case arbiter.Ready:
		return ready
	case arbiter.Loading:
		return loading
	case arbiter.Draining:
		return draining
	case arbiter.JobStart:
		return starting
	case arbiter.JobRuns:
		return runs
	case arbiter.Checkpoint:
		return saving
	case arbiter.Reshaping:
		return reshaping
	case arbiter.Unhealthy:
		return broken
	}
	switch {
	case s.move != nil:
		return held
	case s.phase == arbiter.Asleep:
		return idleAsleep
	}
	return idleFree
}

// accountOf books what needs no look at anything else.
var accountOf = [standings]arbiter.Account{held: arbiter.Held, loading: arbiter.LoadWake, draining: arbiter.Drain,
	starting: arbiter.JobStarting, runs: arbiter.JobUseful, saving: arbiter.Checkpointing,
	reshaping: arbiter.ReshapeTime, broken: arbiter.Broken, oversized: arbiter.Stranded}

// book is the ledger in exact time: at every change what stood until then is
// booked. Units are sevenths of a GPU.
type book struct {
	at    time.Duration
	units [standings]int
	idle  [2]int // slices that are idle and not moving: small, whole
	rest  [2]int // the same in units
	want  []wanted
	// endless: the backlog waits always, and takes small slices.
	endless bool

	// stood is unit time by standing; of the idle ones what nobody waited for, what
	// was held from somebody, and what fitted nobody.
	stood                        [standings]time.Duration
	unused, kept, stranded, warm time.Duration
	lost                         time.Duration // of the time that jobs ran
	capacity, shape, policy      time.Duration // queued
}

// wanted is how many foreground jobs wait for so many slices or whole GPUs.
type wanted struct{ slices, gpus, jobs int }

// count adds or takes away a slice.
func (b *book) count(s *slot, as standing, by int) {
	if as == away {
		return
	}
	b.units[as] += by * s.units
	if (as == starting || as == runs || as == saving) && s.used < s.units {
		b.units[as] -= by * (s.units - s.used)
		b.units[oversized] += by * (s.units - s.used)
	}
	if as == idleFree || as == idleAsleep {
		b.idle[s.class] += by
		b.rest[s.class] += by * s.units
	}
}

// waiting notes that a job joins the queue or leaves it.
func (b *book) waiting(j *job, by int) {
	if j.backlog {
		b.endless = true
		return
	}
	for i := range b.want {
		if b.want[i].slices == j.Slices && b.want[i].gpus == j.GPUs {
			b.want[i].jobs += by
			return
		}
	}
	b.want = append(b.want, wanted{j.Slices, j.GPUs, by})
}

// lose moves job time that is taken back.
func (b *book) lose(d time.Duration) { b.lost += d }

// advance books the time up to now.
func (r *engine) advance() {
	b := &r.book
	dt := r.now - b.at
	if dt <= 0 {
		return
	}
	b.at = r.now
	for i, n := range b.units {
		b.stood[i] += time.Duration(n) * dt
	}
	small, whole := b.endless, b.endless // whether a waiting job fits an idle slice of that shape
	some := b.endless
	units := b.rest[0] + b.rest[1] + b.units[reshaping]
	for _, w := range b.want {
		if w.jobs == 0 {
			continue
		}
		some = true
		q := time.Duration(w.jobs) * dt
		if w.gpus > 0 {
			whole = true
			b.cause(q, b.idle[1] >= w.gpus, units >= scenario.SlicesPerGPU*w.gpus)
		} else {
			small, whole = true, true
			b.cause(q, b.idle[0] >= w.slices, units >= w.slices)
		}
	}
	for i, fits := range [2]bool{small, whole} {
		t := time.Duration(b.rest[i]) * dt
		switch {
		case fits:
			b.kept += t
		case some:
			b.stranded += t
		default:
			b.unused += t
		}
	}
	if !some { // nobody waits: sleepers are a reserve, what is empty is free
		t := time.Duration(b.units[idleAsleep]) * dt
		b.unused -= t
		b.warm += t
	}
}

// cause books queued time: enough idle slices that were not given, enough but in
// another shape, or too few.
func (b *book) cause(q time.Duration, given, enough bool) {
	switch {
	case given:
		b.policy += q
	case enough:
		b.shape += q
	default:
		b.capacity += q
	}
}

// credit is what is booked so far of requests and rows: slice time of ready replicas.
type credit struct{ good, late, rows time.Duration }

// accounts is the ledger: unit time by account, which sums to all there was. What
// requests did while their replica drained is taken from the drain.
func (b *book) accounts(c credit) map[arbiter.Account]time.Duration {
	out := map[arbiter.Account]time.Duration{}
	for _, a := range arbiter.Accounts {
		out[a] = 0
	}
	for i, a := range accountOf {
		if a != "" {
			out[a] += b.stood[i]
		}
	}
	out[arbiter.ServingUseful], out[arbiter.ServingLate] = c.good, c.late
	out[arbiter.JobUseful] += c.rows - b.lost
	out[arbiter.LostWork] += b.lost
	out[arbiter.Held] += b.kept
	out[arbiter.Stranded] += b.stranded
	out[arbiter.FreeEmpty] += b.unused
	reserve := b.stood[ready] - c.good - c.late - c.rows
	if reserve < 0 {
		out[arbiter.Drain] += reserve
		reserve = 0
	}
	out[arbiter.WarmReserve] = reserve + b.warm
	return out
}
