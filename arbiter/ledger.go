package arbiter

import (
	"math"
	"time"
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

// byPhase books the phases that need no look at anything else.
var byPhase = map[Phase]Account{
	Loading: LoadWake, Draining: Drain, JobStart: JobStarting, JobRuns: JobUseful,
	Checkpoint: Checkpointing, Reshaping: ReshapeTime, Unhealthy: Broken,
}

// Ledger accounts for every slice-second. The zero value is ready.
type Ledger struct {
	at      time.Time
	elapsed time.Duration // slice time in all, summed apart from the accounts
	booked  map[Account]time.Duration
	models  map[string]*work
}

// work is a model's served time that is not booked yet: requests are credited
// when they end, so one tick may bring more than its ready slices had.
type work struct {
	seen, due [3]time.Duration // useful, late, rows
}

var served = [3]Account{ServingUseful, ServingLate, JobUseful}

// Advance books the time since the last call. The phases of a snapshot stand
// for the whole interval before it, which the guard period keeps short.
func (l *Ledger) Advance(s Snapshot) {
	if l.booked == nil {
		l.booked, l.models = map[Account]time.Duration{}, map[string]*work{}
	}
	dt := s.Now.Sub(l.at)
	first := l.at.IsZero()
	l.at = s.Now
	if first || dt <= 0 {
		dt = 0
	}
	ready := map[string]int{}
	for _, sl := range s.Slices {
		l.elapsed += dt
		if sl.Phase == Ready {
			ready[sl.Model]++
			continue
		}
		l.booked[l.account(sl, s.Jobs)] += dt
	}
	for _, m := range s.Models {
		l.serve(m, time.Duration(ready[m.Name])*dt)
		delete(ready, m.Name)
	}
	for _, n := range ready { // replicas of a model that is no longer configured
		l.booked[WarmReserve] += time.Duration(n) * dt
	}
}

func (l *Ledger) account(s Slice, jobs []Job) Account {
	if a, ok := byPhase[s.Phase]; ok {
		return a
	}
	waiting, fit := false, false
	for _, j := range jobs {
		if j.Waits() {
			waiting, fit = true, fit || fits(s.Shape, j.Needs)
		}
	}
	switch {
	case s.Phase == Asleep && !waiting:
		return WarmReserve
	case fit:
		return Held
	case waiting:
		return Stranded
	}
	return FreeEmpty
}

// serve splits the time of a model's ready slices by what they did.
func (l *Ledger) serve(m Model, left time.Duration) {
	w := l.models[m.Name]
	if w == nil {
		w = &work{}
		l.models[m.Name] = w
	}
	for i, total := range [3]time.Duration{m.Useful, m.Late, m.Rows} {
		w.due[i] += max(0, total-w.seen[i])
		w.seen[i] = total
		credit := min(w.due[i], left)
		w.due[i] -= credit
		left -= credit
		l.booked[served[i]] += credit
	}
	l.booked[WarmReserve] += left
}

// Lose charges job progress that a stop took back.
func (l *Ledger) Lose(lost time.Duration) {
	lost = min(max(lost, 0), l.booked[JobUseful])
	if lost > 0 {
		l.booked[JobUseful] -= lost
		l.booked[LostWork] += lost
	}
}

// Balance is the ledger at one moment.
type Balance struct {
	Total float64             `json:"total_slice_s"`
	Share map[Account]float64 `json:"share"` // of Total; they sum to 1
	Aloft float64             `json:"aloft_ratio"`
}

// Balance sums up: the aloft ratio is useful slice time over all of it.
func (l *Ledger) Balance() Balance {
	b := Balance{Total: l.elapsed.Seconds(), Share: map[Account]float64{}}
	for _, a := range Accounts {
		b.Share[a] = 0
		if l.elapsed > 0 {
			b.Share[a] = l.booked[a].Seconds() / l.elapsed.Seconds()
		}
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
