package arbiter

import (
	"math"
	"slices"
	"time"

	"aloft/gpu"
)

// Account is where a powered-on slice-second went; each goes to exactly one.
type Account string

// The accounts.
const (
	ServingUseful Account = "serving_useful" // knee work of requests that met their target
	ServingLate   Account = "serving_late"   // and of those that did not
	JobUseful     Account = "job_useful"
	LostWork      Account = "lost_work" // job progress taken back
	Checkpointing Account = "checkpoint"
	JobStarting   Account = "job_start"
	LoadWake      Account = "load_wake"
	ReshapeTime   Account = "reshape"
	Drain         Account = "drain"
	WarmReserve   Account = "warm_reserve"
	Held          Account = "held"     // kept from waiting jobs by a claim or the policy
	Stranded      Account = "stranded" // free, but no waiting job fits its shape
	FreeEmpty     Account = "free"     // free, and nothing waits
	Broken        Account = "unhealthy"
)

// Accounts lists all of them in the order of reports.
var Accounts = []Account{ServingUseful, ServingLate, JobUseful, LostWork, Checkpointing, JobStarting,
	LoadWake, ReshapeTime, Drain, WarmReserve, Held, Stranded, FreeEmpty, Broken}

// account is an index into Accounts.
type account int

var accountOf = func() map[Account]account {
	m := map[Account]account{}
	for i, a := range Accounts {
		m[a] = account(i)
	}
	return m
}()

// Those that are booked on every look.
var (
	usefulAt, lateAt, jobAt        = accountOf[ServingUseful], accountOf[ServingLate], accountOf[JobUseful]
	lostAt, reserveAt, reshapingAt = accountOf[LostWork], accountOf[WarmReserve], accountOf[ReshapeTime]
	heldAt, strandedAt, freeAt     = accountOf[Held], accountOf[Stranded], accountOf[FreeEmpty]
	loadAt, drainAt, startAt       = accountOf[LoadWake], accountOf[Drain], accountOf[JobStarting]
	saveAt, brokenAt               = accountOf[Checkpointing], accountOf[Broken]
)

// byPhase books the phases that need no look at anything else.
func byPhase(p Phase) (account, bool) {
	switch p {
	case JobRuns:
		return jobAt, true
	case Loading:
		return loadAt, true
	case Draining:
		return drainAt, true
	case JobStart:
		return startAt, true
	case Checkpoint:
		return saveAt, true
	case Reshaping:
		return reshapingAt, true
	case Unhealthy:
		return brokenAt, true
	}
	return 0, false
}

// Cause is why a job is queued.
type Cause string

// The causes.
const (
	ByCapacity Cause = "capacity" // less is idle than it needs
	ByShape    Cause = "shape"    // enough is idle, but not in its shape
	ByPolicy   Cause = "policy"   // what it needs is idle, and is kept for serving, a claim or a hold
)

// Causes lists all of them.
var Causes = []Cause{ByCapacity, ByShape, ByPolicy}

// Ledger accounts for every slice-second, by compute slices: one of 2g counts
// twice, so that cutting a GPU otherwise makes no time (KAI #987). The zero value
// is ready.
type Ledger struct {
	at      time.Time
	elapsed time.Duration // slice time in all, summed apart from the accounts
	booked  [14]time.Duration
	queued  [3]time.Duration // job time by cause
	models  []served
	kinds   []kind // of this look
}

// served is a model's replica time that is not booked yet: requests are credited
// when they end, so one tick may bring more than its ready slices had.
type served struct {
	model        string
	seen, due    [3]time.Duration // useful, late, rows
	units, ready int              // of this look
}

// kind is the idle slices of one shape and phase.
type kind struct {
	shape gpu.Shape
	phase Phase // Free, Asleep; Ready: what serving has too many of
	n     int
	fits  bool // a waiting job
}

// gaps is what a snapshot does not list: compute slices of no instance, those of
// them whose GPU is being reshaped, and ready replicas over the need of their model.
type gaps struct{ uncut, shaping, surplus int }

// Advance books the time since the last call. The phases of a snapshot stand
// for the whole interval before it, which the guard period keeps short.
func (l *Ledger) Advance(s Snapshot, g gaps) {
	dt := s.Now.Sub(l.at)
	if l.at.IsZero() || dt < 0 {
		dt = 0
	}
	l.at = s.Now
	var units [14]int
	l.gather(s, &units)
	waiting := l.wait(s.Jobs, g, dt)
	for _, k := range l.kinds {
		n := k.n * units1(k.shape)
		switch {
		case k.phase == Ready:
		case k.phase == Asleep && !waiting:
			units[reserveAt] += n
		case k.fits:
			units[heldAt] += n
		case waiting:
			units[strandedAt] += n
		default:
			units[freeAt] += n
		}
	}
	units[reshapingAt] += g.shaping
	if waiting {
		units[strandedAt] += g.uncut - g.shaping
	} else {
		units[freeAt] += g.uncut - g.shaping
	}
	for a, n := range units {
		l.book(account(a), time.Duration(n)*dt)
		l.elapsed += time.Duration(n) * dt
	}
	for i := range s.Models {
		l.serve(&s.Models[i], dt)
	}
	for i := range l.models { // the rest: replicas of a model that is no longer configured
		m := &l.models[i]
		t := time.Duration(m.units) * dt
		l.book(reserveAt, t)
		l.elapsed += t
		m.units, m.ready = 0, 0
	}
}

func units1(s gpu.Shape) int { return max(1, s.ComputeSlices) }

func (l *Ledger) book(a account, d time.Duration) { l.booked[a] += d }

// gather counts the slices by what they do: the idle ones by shape, the ready
// ones by model.
func (l *Ledger) gather(s Snapshot, units *[14]int) {
	l.kinds = l.kinds[:0]
	var m *served
	for i := range s.Slices {
		sl := &s.Slices[i]
		n := units1(sl.Shape)
		if a, ok := byPhase(sl.Phase); ok {
			units[a] += n
			continue
		}
		if sl.Phase == Ready {
			if m == nil || m.model != sl.Model {
				m = l.of(sl.Model)
			}
			m.units, m.ready = m.units+n, m.ready+1
		}
		at := slices.IndexFunc(l.kinds, func(k kind) bool { return k.phase == sl.Phase && k.shape == sl.Shape })
		if at < 0 {
			at, l.kinds = len(l.kinds), append(l.kinds, kind{shape: sl.Shape, phase: sl.Phase})
		}
		l.kinds[at].n++
	}
}

func (l *Ledger) of(model string) *served {
	for i := range l.models {
		if l.models[i].model == model {
			return &l.models[i]
		}
	}
	l.models = append(l.models, served{model: model})
	return &l.models[len(l.models)-1]
}

// wait books the queued jobs by what they wait for, and reports whether any job
// could use another slice.
func (l *Ledger) wait(jobs []Job, g gaps, dt time.Duration) (any bool) {
	idle := g.uncut
	for _, k := range l.kinds {
		if k.phase != Ready {
			idle += k.n * units1(k.shape)
		}
	}
	for i := range jobs {
		j := &jobs[i]
		if !j.Waits() {
			continue
		}
		any = true
		want, fit := max(1, j.MinWidth), 0
		for i := range l.kinds {
			switch k := &l.kinds[i]; {
			case !fits(k.shape, j.Needs):
			case k.phase == Ready:
				fit += min(k.n, g.surplus)
			default:
				k.fits = true
				fit += k.n
			}
		}
		cause := 0
		switch {
		case j.Have >= want:
			continue // it has begun; more would only speed it up
		case fit >= want:
			cause = 2
		case idle >= want*units1(j.Needs):
			cause = 1
		}
		l.queued[cause] += dt
	}
	return any
}

// serve splits the time of a model's ready slices by what they did.
func (l *Ledger) serve(m *Model, dt time.Duration) {
	w := l.of(m.Name)
	left, weight := time.Duration(w.units)*dt, 1.0 // of one replica's time
	if w.ready > 0 {
		weight = float64(w.units) / float64(w.ready)
	}
	l.elapsed += left
	w.units, w.ready = 0, 0
	for i, total := range [3]time.Duration{m.Useful, m.Late, m.Rows} {
		w.due[i] += max(0, total-w.seen[i])
		w.seen[i] = total
		credit := min(time.Duration(float64(w.due[i])*weight), left)
		if credit > 0 {
			w.due[i] = max(0, w.due[i]-time.Duration(float64(credit)/weight))
			left -= credit
			l.book([3]account{usefulAt, lateAt, jobAt}[i], credit)
		}
	}
	l.book(reserveAt, left)
}

// Lose charges job progress that a stop took back, on slices of so many units.
func (l *Ledger) Lose(lost time.Duration, units int) {
	lost = min(max(lost, 0)*time.Duration(units), l.booked[jobAt])
	if lost > 0 {
		l.booked[jobAt] -= lost
		l.booked[lostAt] += lost
	}
}

// Balance is the ledger at one moment.
type Balance struct {
	Total float64             `json:"total_slice_s"`
	Share map[Account]float64 `json:"share"` // of Total; they sum to 1
	Aloft float64             `json:"aloft_ratio"`
	Queue map[Cause]float64   `json:"queue_job_s"` // time of queued jobs, by cause
}

// Balance sums up: the aloft ratio is useful slice time over all of it.
func (l *Ledger) Balance() Balance {
	b := Balance{Total: l.elapsed.Seconds(), Share: map[Account]float64{}, Queue: map[Cause]float64{}}
	for _, a := range Accounts {
		b.Share[a] = 0
		if l.elapsed > 0 {
			b.Share[a] = l.booked[accountOf[a]].Seconds() / l.elapsed.Seconds()
		}
	}
	for i, c := range Causes {
		b.Queue[c] = l.queued[i].Seconds()
	}
	b.Aloft = b.Share[ServingUseful] + b.Share[JobUseful]
	return b
}

// Sums reports whether the shares sum to 1 within 0.1 %.
func (b Balance) Sums() bool {
	sum := 0.0
	for _, s := range b.Share {
		sum += s
	}
	return b.Total == 0 || math.Abs(sum-1) <= 0.001
}
