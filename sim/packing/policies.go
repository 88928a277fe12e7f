package packing

import (
	"math"
	"math/rand"
)

// node is a machine as it fills up.
type node struct {
	*Node
	cpu, memory int64 // left
	left        [maxGPUs]int32
	version     uint32  // grows with every change
	frag        float64 // of it as it is
	tags        [maxGPUs + 1]int32
}

func (n *node) gpus() []int32 { return n.left[:n.GPUs] }

func (n *node) total() (sum int64) {
	for _, l := range n.gpus() {
		sum += int64(l)
	}
	return sum
}

// has reports whether as many GPUs have that much left each.
func (n *node) has(gpus int, milli int32) bool {
	for _, l := range n.gpus() {
		if gpus == 0 {
			return true
		}
		if l >= milli {
			gpus--
		}
	}
	return gpus == 0
}

// tag sorts pods as clustering does: shared GPUs are 0, else their number.
func tag(k kind) int {
	if k.GPUs == 1 && k.Milli < milli {
		return 0
	}
	return k.GPUs
}

// Policy is one way to choose a node, and on it a GPU for a pod that shares one.
type Policy struct {
	Name string
	// score of a node that can hold the pod; the highest wins, of equals the first
	// by name. The artifact's scores are whole numbers from 0 to 100, so that equals
	// are common: which of them wins decides as much as the score, and is part of
	// what is repeated here. nil = any node, drawn at random.
	score func(all classes, n *node, k kind) int
	// pick is the GPU for a share of one.
	pick func(all classes, n *node, k kind, rng *rand.Rand) int
}

// maxScore is kube-scheduler's scale.
const maxScore = 100

// the largest node, by which two policies normalise.
const mostCPU, mostGPU = 128000, 8000

// Policies are the six of the experiment.
func Policies() []Policy {
	return []Policy{
		{"Random", nil, pickAny},
		{"DotProd", dotProduct, pickTightest},
		{"Clustering", clustering, pickTightest},
		{"Packing", packing, pickTightest},
		{"BestFit", bestFit, pickTightest},
		{"FGD", fgd, pickLeastGrowth},
	}
}

// dotProduct (Tetris) avoids nodes whose free vector lies along the request's.
func dotProduct(_ classes, n *node, k kind) int {
	dot := float64(n.cpu)/mostCPU*float64(k.CPU)/mostCPU + float64(n.total())/mostGPU*float64(int64(k.GPUs)*k.Milli)/mostGPU
	return int(maxScore * (1 - dot/2))
}

// clustering keeps pods of one size together: on a node with that size alone,
// then one with that size among others, then an empty one, then the rest; inside
// each the fullest.
func clustering(_ classes, n *node, k kind) int {
	if k.GPUs == 0 {
		return 0
	}
	sizes := 0
	for _, c := range n.tags {
		if c > 0 {
			sizes++
		}
	}
	within := int(maxScore / 4 * (mostGPU - n.total()) / mostGPU)
	switch {
	case n.tags[tag(k)] > 0 && sizes == 1:
		return within + maxScore*3/4
	case n.tags[tag(k)] > 0:
		return within + maxScore*2/4
	case sizes == 0:
		return within + maxScore/4
	}
	return within
}

// packing prefers GPUs in use, then free GPUs of a node in use, then an empty node.
func packing(_ classes, n *node, k kind) int {
	if k.Milli == 0 {
		return 0
	}
	free := 0
	for _, l := range n.gpus() {
		if l == milli {
			free++
		}
	}
	if free == n.GPUs {
		return max(maxScore/3-free, free)
	}
	fresh, ratio := 0, 0
	taken := [maxGPUs]bool{}
	for range k.GPUs { // the tightest first
		best := -1
		for i, l := range n.gpus() {
			if !taken[i] && int64(l) >= k.Milli && (best < 0 || l < n.left[best]) {
				best = i
			}
		}
		taken[best] = true
		ratio += int(n.left[best]) * 100 / milli
		if n.left[best] == milli {
			fresh++
		}
	}
	if fresh > 0 {
		return max(maxScore/2-fresh, maxScore/3)
	}
	return max(maxScore-ratio/10, maxScore/2)
}

// bestFit leaves least behind, CPU and GPU weighing the same.
func bestFit(_ classes, n *node, k kind) int {
	behind := float64(n.cpu-k.CPU)/mostCPU/2 + float64(n.total()-int64(k.GPUs)*k.Milli)/mostGPU/2
	return int((1 - behind) * maxScore)
}

// fgd takes the node whose expected fragment grows least (falls most).
func fgd(all classes, n *node, k kind) int {
	if k.GPUs == 1 && k.Milli < milli {
		_, score := shareOf(all, n, k)
		return score
	}
	left := n.left
	take(left[:n.GPUs], k)
	return sigmoid(n.frag - all.frag(n.cpu-k.CPU, left[:n.GPUs]))
}

// take gives the pod whole GPUs, the first ones that are free.
func take(left []int32, k kind) {
	need := k.GPUs
	for i := range left {
		if need > 0 && left[i] == milli {
			left[i] = 0
			need--
		}
	}
}

// shareOf finds the GPU for a share at which the fragment falls most.
func shareOf(all classes, n *node, k kind) (best, score int) {
	best = -1
	left := n.left
	for i, l := range n.gpus() {
		if int64(l) < k.Milli || seen(left[:i], l) {
			continue
		}
		left[i] -= int32(k.Milli)
		s := sigmoid(n.frag - all.frag(n.cpu-k.CPU, left[:n.GPUs]))
		left[i] = l
		if best < 0 || s > score {
			best, score = i, s
		}
	}
	return best, score
}

// seen reports a GPU just as full as one before it.
func seen(before []int32, l int32) bool {
	for _, b := range before {
		if b == l {
			return true
		}
	}
	return false
}

// sigmoid turns a fall in thousandths of a GPU into a score.
func sigmoid(fall float64) int { return int(maxScore / (1 + math.Exp(-fall/milli))) }

func pickAny(_ classes, n *node, k kind, rng *rand.Rand) int {
	best, count := -1, 0
	for i, l := range n.gpus() {
		if int64(l) >= k.Milli {
			if count++; rng.Intn(count) == 0 {
				best = i
			}
		}
	}
	return best
}

func pickTightest(_ classes, n *node, k kind, _ *rand.Rand) int {
	best := -1
	for i, l := range n.gpus() {
		if int64(l) >= k.Milli && (best < 0 || l < n.left[best]) {
			best = i
		}
	}
	return best
}

func pickLeastGrowth(all classes, n *node, k kind, _ *rand.Rand) int {
	best, _ := shareOf(all, n, k)
	return best
}
