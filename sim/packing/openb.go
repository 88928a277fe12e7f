package packing

import (
	"math"
	"math/rand"
	"slices"
)

// overload is the requested share of the GPUs at which a run ends.
const overload = 1.3

// Run is what one policy made of one seed's arrivals, in per cent of all GPUs.
type Run struct {
	At100 float64 `json:"at_100"` // allocated when 100 % were asked for
	At130 float64 `json:"at_130"`
	Frag  float64 `json:"fragment"` // expected fragment at the end
}

// experiment is one run under way.
type experiment struct {
	Policy
	nodes []node
	mix   classes
	specs map[kind]*spec
	rng   *rand.Rand
	used  int64
	frag  float64
}

// spec remembers, for each kind of pod, the score of every node with the
// version that was scored: a placement changes one node, all others keep theirs.
type spec struct {
	score []int16
	seen  []uint32
}

// Draw is the arrivals of a seed: all pods of the trace in random order, then
// more of them, drawn with replacement, until the overload is reached. It draws
// with the generator and in the order of the artifact, so that a seed means the
// same arrivals there and here. It also gives the nodes' order, by which equal
// scores are told apart.
func (t Trace) Draw(seed int64) (pods []Pod, nodes []int) {
	rng := rand.New(rand.NewSource(seed))
	rng.Int() // its log line draws one
	pods = slices.Clone(t.Pods)
	rng.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
	asked, limit := int64(0), overload*float64(t.capacity())
	for _, p := range pods {
		asked += p.total()
	}
	p := t.Pods[rng.Intn(len(t.Pods))]
	for ; float64(asked+p.Milli) <= limit; p = t.Pods[rng.Intn(len(t.Pods))] { // one GPU of it, as there
		asked += p.total()
		pods = append(pods, p)
	}
	nodes = make([]int, len(t.Nodes))
	for i, rank := range rng.Perm(len(nodes)) {
		nodes[rank] = i
	}
	return pods, nodes
}

func (t Trace) capacity() (sum int64) {
	for _, n := range t.Nodes {
		sum += int64(n.GPUs) * milli
	}
	return sum
}

// Run lets a policy place a seed's arrivals, none of which leaves again.
func (t Trace) Run(p Policy, seed int64) Run {
	e := &experiment{Policy: p, mix: typicalOf(t.Pods).classes(), specs: map[kind]*spec{}, rng: rand.New(rand.NewSource(seed))}
	pods, order := t.Draw(seed)
	e.nodes = make([]node, len(t.Nodes))
	for i, from := range order {
		n, of := &e.nodes[i], &t.Nodes[from]
		*n = node{Node: of, cpu: of.CPU, memory: of.Memory, version: 1}
		for g := range n.gpus() {
			n.left[g] = milli
		}
		n.frag = e.mix.frag(n.cpu, n.gpus())
		e.frag += n.frag
	}
	capacity := float64(t.capacity())
	var at [131]struct{ used, frag, events float64 } // by per cent asked for, as the artifact bins them
	asked := int64(0)
	for _, pod := range pods {
		asked += pod.total()
		if n := e.choose(pod); n >= 0 {
			e.place(&e.nodes[n], pod)
		}
		if bin := int(math.RoundToEven(float64(asked) / capacity * 100)); bin < len(at) {
			at[bin].used += 100 * float64(e.used) / capacity
			at[bin].frag += 100 * e.frag / capacity
			at[bin].events++
		}
	}
	mean := func(bin int) (used, frag float64) {
		return at[bin].used / at[bin].events, at[bin].frag / at[bin].events
	}
	var r Run
	r.At100, _ = mean(100)
	r.At130, r.Frag = mean(130)
	return r
}

// choose finds the node for the pod among those that can hold it, −1 if none can.
func (e *experiment) choose(p Pod) int {
	k := kind{p.CPU, p.GPUs, p.Milli}
	s := e.specs[k]
	if s == nil {
		s = &spec{make([]int16, len(e.nodes)), make([]uint32, len(e.nodes))}
		e.specs[k] = s
	}
	best, chosen, count := -1, -1, 0
	for i := range e.nodes {
		n := &e.nodes[i]
		if n.cpu < p.CPU || n.memory < p.Memory || !n.has(p.GPUs, int32(p.Milli)) || !suits(n.Model, p.Models) {
			continue
		}
		if e.score == nil {
			if count++; e.rng.Intn(count) == 0 {
				chosen = i
			}
			continue
		}
		if s.seen[i] != n.version {
			s.score[i], s.seen[i] = int16(e.score(e.mix, n, k)), n.version
		}
		if score := int(s.score[i]); score > best {
			best, chosen = score, i
		}
	}
	return chosen
}

func suits(model string, models []string) bool {
	for _, m := range models {
		if m == model {
			return true
		}
	}
	return len(models) == 0
}

func (e *experiment) place(n *node, p Pod) {
	k := kind{p.CPU, p.GPUs, p.Milli}
	switch {
	case p.GPUs == 1 && p.Milli < milli:
		n.left[e.pick(e.mix, n, k, e.rng)] -= int32(p.Milli)
	case p.GPUs > 0:
		take(n.left[:n.GPUs], k)
	}
	n.cpu -= p.CPU
	n.memory -= p.Memory
	if p.GPUs > 0 {
		n.tags[tag(k)]++
	}
	n.version++
	e.used += p.total()
	e.frag -= n.frag
	n.frag = e.mix.frag(n.cpu, n.gpus())
	e.frag += n.frag
}
