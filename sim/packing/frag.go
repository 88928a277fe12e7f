package packing

import (
	"cmp"
	"slices"
)

// kind is what makes two pods alike to a scheduler.
type kind struct {
	CPU   int64
	GPUs  int
	Milli int64
}

// popular is the share of the pods that the typical ones make up.
const popular = 0.95

// typical is the expected mix of requests: the most frequent kinds that together
// make up 95 % of the trace, and how frequent each is among them.
type typical []share

type share struct {
	kind
	share float64
}

func typicalOf(pods []Pod) typical {
	count := map[kind]int{}
	for _, p := range pods {
		count[kind{p.CPU, p.GPUs, p.Milli}]++
	}
	var all typical
	for k, n := range count {
		all = append(all, share{k, float64(n)})
	}
	slices.SortFunc(all, func(a, b share) int {
		return cmp.Or(cmp.Compare(b.share, a.share), cmp.Compare(b.CPU, a.CPU), cmp.Compare(b.Milli, a.Milli), b.GPUs-a.GPUs)
	})
	sum, n := 0.0, 0
	for sum < popular*float64(len(pods)) {
		sum += all[n].share
		n++
	}
	all = all[:n]
	for i := range all {
		all[i].share /= sum
	}
	return all
}

// class is the typical requests that ask for the same of the GPUs: they differ
// in CPU alone.
type class struct {
	gpus  int
	milli int32
	cpu   []int64   // ascending
	upTo  []float64 // share of those that ask for at most that much CPU
}

// classes arranges a mix so that F is cheap to work out.
type classes []class

func (t typical) classes() classes {
	mix := slices.Clone(t)
	slices.SortFunc(mix, func(a, b share) int {
		return cmp.Or(a.GPUs-b.GPUs, cmp.Compare(a.Milli, b.Milli), cmp.Compare(a.CPU, b.CPU))
	})
	var all classes
	for _, s := range mix {
		if s.GPUs == 0 {
			continue // never content with GPUs: all that is free is a fragment to it
		}
		last := len(all) - 1
		if last < 0 || all[last].gpus != s.GPUs || int64(all[last].milli) != s.Milli {
			all = append(all, class{gpus: s.GPUs, milli: int32(s.Milli)})
			last++
		}
		c := &all[last]
		sum := s.share
		if len(c.upTo) > 0 {
			sum += c.upTo[len(c.upTo)-1]
		}
		c.cpu, c.upTo = append(c.cpu, s.CPU), append(c.upTo, sum)
	}
	return all
}

// frag is the expected fragment of a node in thousandths of a GPU: what is free
// and of no use to the next request. To a request that cannot run here all that
// is free is a fragment; to one that can, the GPUs that have less left than it
// asks of each.
//
// Over classes: F = Σ left − Σ_c p_c(CPU left) · fits_c · Σ of those left ≥ milli_c.
func (all classes) frag(cpu int64, left []int32) float64 {
	var sorted [maxGPUs]int32 // largest first
	n := copy(sorted[:], left)
	for i := 1; i < n; i++ {
		for j := i; j > 0 && sorted[j] > sorted[j-1]; j-- {
			sorted[j], sorted[j-1] = sorted[j-1], sorted[j]
		}
	}
	total := int32(0)
	for _, l := range sorted[:n] {
		total += l
	}
	f := float64(total)
	if total == 0 {
		return 0
	}
	for i := range all {
		c := &all[i]
		if c.gpus > n || sorted[c.gpus-1] < c.milli {
			continue
		}
		p := 0.0
		for j := len(c.cpu) - 1; j >= 0; j-- {
			if c.cpu[j] <= cpu {
				p = c.upTo[j]
				break
			}
		}
		if p == 0 {
			continue
		}
		use := int32(0)
		for _, l := range sorted[:n] {
			if l < c.milli {
				break
			}
			use += l
		}
		f -= p * float64(use)
	}
	return f
}
