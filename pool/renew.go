package pool

import (
	"fmt"
	"reflect"

	"aloft/backends"
	"aloft/gpu"
)

// SetModels states what is served from now on. Replicas of a model that did not
// change are not touched. Those of a changed one are replaced one after the
// other: the new engine starts beside the old one on its slice, which goes when
// the new one is ready; where both do not fit, the old one goes first. What
// serves nobody (asleep, starting, failed, lent) is stopped, and started again
// when it is wanted. Those of a model that is left out serve on until Retire.
func (p *Pool) SetModels(models []Model) error {
	named, err := byName(models)
	if err != nil {
		return err
	}
	return p.do(func(l *loop) error {
		if l.closing {
			return fmt.Errorf("change models: %w", backends.ErrDraining)
		}
		l.models = named
		l.retired = map[string]bool{}
		had := map[string]bool{}
		for _, r := range l.replicas {
			had[r.model.Name] = true
		}
		for name := range had {
			l.renew(name)
			l.publish(name) // which of them are old now
		}
		return nil
	})
}

// Retire drains and stops the replicas of a model that SetModels left out: what
// waited for them is answered.
func (p *Pool) Retire(model string) error {
	return p.do(func(l *loop) error {
		l.retired[model] = true
		l.renew(model)
		return nil
	})
}

// Republish calls Publish again for a model, whoever listens having changed.
func (p *Pool) Republish(model string) error {
	return p.do(func(l *loop) error { l.publish(model); return nil })
}

func byName(models []Model) (map[string]Model, error) {
	out := map[string]Model{}
	for _, m := range models {
		if m.Slots < 1 {
			return nil, fmt.Errorf("pool: model %s: slots is %d, want at least 1", m.Name, m.Slots)
		}
		out[m.Name] = m
	}
	return out, nil
}

// stale reports whether a replica runs something else than its model now is.
func (l *loop) stale(r *replica) bool {
	m, known := l.models[r.model.Name]
	return !known || !reflect.DeepEqual(m, r.model)
}

// renew takes the next step towards a model whose replicas are all up to date.
// One renewal at a time: when the new configuration does not come up, the rest
// of the old replicas serve on.
func (l *loop) renew(model string) {
	if l.closing {
		return
	}
	var old *replica
	m, known := l.models[model]
	busy := false
	for _, v := range l.all() {
		r := l.replicas[v.ID]
		switch {
		case r.model.Name != model:
		case v.State == Draining:
			busy = busy || r.heir
		case !l.stale(r):
			busy = busy || r.renews
		case v.State == Ready && !known && !l.retired[model]:
			busy = true
		case v.State != Ready || v.Job != "" || !known:
			l.stop(r)
		case old == nil:
			old = r
		}
	}
	if old == nil || busy {
		return
	}
	if !holds(old.info.Slice.Shape, m.Needs) { // it has to come back on a larger slice
		l.stop(old)
		return
	}
	l.launch(m, old.info.Slice, "", old)
}

func holds(have, need gpu.Shape) bool {
	return have.ComputeSlices >= need.ComputeSlices && have.Bytes >= need.Bytes
}

// settled ends a renewal whose new replica is ready.
func (l *loop) settled(r *replica) {
	if !r.renews {
		return
	}
	old := r.replaces
	r.renews, r.replaces = false, nil
	if old != nil && l.replicas[old.info.ID] == old && old.info.State == Ready {
		l.stop(old) // its end calls for the next
		return
	}
	l.renew(r.model.Name)
}

// giveWay lets the new replica that could not start beside the old one take its
// place instead: most engines want a slice for themselves.
func (l *loop) giveWay(r *replica) {
	old := r.replaces
	r.replaces = nil
	if old != nil && l.replicas[old.info.ID] == old && old.info.State == Ready {
		old.heir = true
		l.stop(old)
	}
}

// successor is the replica that is starting in the place of r; nil = none.
func (l *loop) successor(r *replica) *replica {
	for _, n := range l.replicas {
		if n.replaces == r && n.info.State != Draining {
			return n
		}
	}
	return nil
}
