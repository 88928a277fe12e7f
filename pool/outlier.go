package pool

import (
	"math/bits"
	"slices"
	"time"
)

// A replica is an outlier when at least half of its last calls failed while
// those of its siblings went well. It gets no calls for a while, longer each
// time, as Envoy's outlier detection has it. The breaker beside it sees only
// failures in a row.
const (
	lastCalls   = 20
	fewestCalls = 5 // that say something, of the replica and of its siblings
	badShare    = 0.5
	goodShare   = 0.2 // siblings that fail more than this have the same trouble

	cooldown    = 10 * time.Second // times how often it was taken out
	maxCooldown = 5 * time.Minute  // and after as long without trouble, counting begins anew
)

// outcomes are the results of a replica's last calls.
type outcomes struct {
	failed uint32 // a bit each, the newest lowest
	calls  int
}

func (o *outcomes) add(failed bool) {
	o.failed = o.failed << 1 & (1<<lastCalls - 1)
	if failed {
		o.failed |= 1
	}
	o.calls = min(o.calls+1, lastCalls)
}

func (o outcomes) failures() int { return bits.OnesCount32(o.failed) }

func (o outcomes) bad() bool {
	return o.calls >= fewestCalls && float64(o.failures()) >= badShare*float64(o.calls)
}

// peer is a ready replica of a model among its siblings.
type peer struct {
	last   outcomes
	until  time.Time // it is taken out until then
	broken bool      // its circuit is open: it gets no calls either
}

// outlier picks the replica to take out; -1 = none. At most half of them, and
// so never the only one, are out at a time.
func outlier(now time.Time, peers []peer) int {
	out := 0
	for _, p := range peers {
		if p.broken || now.Before(p.until) {
			out++
		}
	}
	if 2*(out+1) > len(peers) {
		return -1
	}
	for i, p := range peers {
		if p.broken || now.Before(p.until) || !p.last.bad() {
			continue
		}
		failed, calls := 0, 0
		for j, q := range peers {
			if j != i && !q.broken && !now.Before(q.until) {
				failed, calls = failed+q.last.failures(), calls+q.last.calls
			}
		}
		if calls >= fewestCalls && float64(failed) < goodShare*float64(calls) {
			return i
		}
	}
	return -1
}

// resting says which peers get no calls now. What was half of a model when it
// was taken out is more of it once others have gone: those that would be back
// first are back at once.
func resting(now time.Time, peers []peer) []bool {
	out := make([]bool, len(peers))
	room := len(peers) / 2
	var cooling []int
	for i, p := range peers {
		switch {
		case p.broken:
			out[i] = true
			room--
		case now.Before(p.until):
			cooling = append(cooling, i)
		}
	}
	slices.SortFunc(cooling, func(a, b int) int { return peers[b].until.Compare(peers[a].until) })
	for _, i := range cooling[:max(0, min(room, len(cooling)))] {
		out[i] = true
	}
	return out
}

// pause is how long a replica is out for the nth time.
func pause(n int) time.Duration { return min(time.Duration(n)*cooldown, maxCooldown) }

// siblings lists a model's ready replicas, serving or lent, in a fixed order.
func (l *loop) siblings(model string) (rs []*replica, peers []peer) {
	for _, v := range l.all() {
		if r := l.replicas[v.ID]; r.model.Name == model && v.State == Ready {
			rs = append(rs, r)
			peers = append(peers, peer{last: r.tracked.judged(), until: r.out, broken: r.tracked.open()})
		}
	}
	return rs, peers
}

// judge takes an outlier of a model out, if there is one, until its pause ends.
func (l *loop) judge(model string) {
	now := time.Now()
	rs, peers := l.siblings(model)
	i := outlier(now, peers)
	if i < 0 {
		return
	}
	r := rs[i]
	if now.Sub(r.out) > maxCooldown {
		r.outs = 0
	}
	r.outs++
	wait := pause(r.outs)
	r.out = now.Add(wait)
	r.tracked.forget()
	l.p.log.Warn("replica taken out", "replica", r.info.ID, "failed", peers[i].last.failures(), "calls", peers[i].last.calls, "wait", wait)
	l.publish(model)
	p := l.p
	p.acts.Go(func() {
		select {
		case <-time.After(wait + time.Millisecond):
			_ = p.do(func(l *loop) error { l.publish(model); return nil })
		case <-p.done:
		}
	})
}
