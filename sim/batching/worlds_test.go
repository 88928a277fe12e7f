package batching

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"aloft/backends/synthetic/law"
	"aloft/batcher"
)

const target = 100 * time.Millisecond

// paper is the world of research section 4: four replicas of T = 6 ms + 10 µs a token.
func paper() World {
	l := law.Default()
	l.AlphaMs, l.BetaMsPerToken = 6, 0.010
	return World{Law: l, Replicas: 4, Target: target, Noise: 0.05, Warm: 2 * time.Second, Seed: 1}
}

func options() batcher.Options {
	return batcher.Options{Model: "m", Merge: true, Target: target, MaxBatchRows: 1 << 10, MaxBatchTokens: 1 << 20, MaxQueue: 1 << 20}
}

func ours(w World, eta float64) *batcher.Core {
	c := batcher.NewCore(options())
	c.SetReplicas(epoch, w.Fleet())
	c.SetEta(epoch, eta)
	return c
}

// lognormal lengths of median 120, at most 2,048.
func lognormal(r *rand.Rand) int { return min(1+int(120*math.Exp(r.NormFloat64())), 2048) }

func poisson(rate float64, d time.Duration, seed uint64, tenant string) (reqs []Request) {
	r := rand.New(rand.NewPCG(seed, 7))
	for at := 0.0; ; {
		at += r.ExpFloat64() / rate
		if at > d.Seconds() {
			return reqs
		}
		reqs = append(reqs, Request{At: time.Duration(at * 1e9), Tokens: lognormal(r), Tenant: tenant})
	}
}

func merge(a, b []Request) []Request {
	out := make([]Request, 0, len(a)+len(b))
	for len(a) > 0 || len(b) > 0 {
		if len(b) == 0 || len(a) > 0 && a[0].At <= b[0].At {
			out, a = append(out, a[0]), a[1:]
		} else {
			out, b = append(out, b[0]), b[1:]
		}
	}
	return out
}
func TestX(t *testing.T) {
	w := paper()
	show := func(name string, o *Outcome) {
		t.Logf("%-20s att %.4f late %d shed %d p50 %v p99 %v per good %v rows %.1f top %.3f lost %d", name, o.Attainment(), o.Late, o.Shed, o.Quantile(.5), o.Quantile(.99), o.PerGood(), float64(o.Rows)/float64(o.Calls), o.Deciles[9].Attainment(), o.Unanswered())
		for n, s := range o.Tenants {
			if n != "" {
				t.Logf("    %s %.4f", n, s.Attainment())
			}
		}
	}
	knee := 1700.
	for _, load := range []float64{.2, .3, .5} {
		e, p := Simulate(w, ours(w, 0), poisson(load*knee, 12*time.Second, 1, "")), Simulate(w, ours(w, 1), poisson(load*knee, 12*time.Second, 1, ""))
		show("eager", e)
		show("patient", p)
		t.Logf("%.2f ratio %.3f", load, float64(p.PerGood())/float64(e.PerGood()))
	}
	both := merge(poisson(200, 10*time.Second, 1, "quiet"), poisson(3000, 10*time.Second, 2, "flood"))
	show("flood", Simulate(w, ours(w, 0), both))
	one := make([]Request, len(both))
	copy(one, both)
	for i := range one {
		one[i].Tenant = ""
	}
	show("flood, one tenant", Simulate(w, ours(w, 0), one))
	s := w
	s.SlowAt, s.Slow, s.Warm = 5*time.Second, 1.6, 5*time.Second
	for _, x := range []float64{.65, .76} {
		show("slowdown", Simulate(s, ours(s, 0), poisson(x*knee, 15*time.Second, 1, "")))
		f := Fixed{24, 2 * time.Millisecond, 40 * time.Millisecond}
		show("slowdown fixed", Simulate(s, f.Policy(s.Fleet()), poisson(x*knee, 15*time.Second, 1, "")))
	}
	s.Slow = 1 / 1.6
	show("speedup", Simulate(s, ours(s, 0), poisson(1.3*knee, 15*time.Second, 1, "")))
	for _, a := range []float64{3, 1, 1. / 3} {
		for _, load := range []float64{.1, .4, .8} {
			for _, eta := range []float64{0, 1} {
				v := w
				v.Law.AlphaMs, v.Law.BetaMsPerToken = 5*a, 0.02/a/2
				v.Warm = 0
				kn := v.Knee(194)
				show("prior", Simulate(v, ours(v, eta), poisson(load*kn, 6*time.Second, 1, "")))
			}
		}
	}
	p := w
	p.Law.Padded = true
	for _, load := range []float64{.3, .6, 1} {
		show("padded", Simulate(p, ours(p, 0), poisson(load*knee, 10*time.Second, 1, "")))
		show("padded fixed", Simulate(p, Fixed{16, 2 * time.Millisecond, 40 * time.Millisecond}.Policy(p.Fleet()), poisson(load*knee, 10*time.Second, 1, "")))
	}
	p.Law.AlphaMs, p.Law.BetaMsPerToken = .2, .03
	for _, load := range []float64{.1, .2, .3, .35} {
		show("best is one", Simulate(p, ours(p, 0), poisson(load*knee, 10*time.Second, 1, "")))
		show("one", Simulate(p, Fixed{Size: 1}.Policy(p.Fleet()), poisson(load*knee, 10*time.Second, 1, "")))
		show("32", Simulate(p, Fixed{Size: 32, Timeout: 50 * time.Millisecond}.Policy(p.Fleet()), poisson(load*knee, 10*time.Second, 1, "")))
	}
}
