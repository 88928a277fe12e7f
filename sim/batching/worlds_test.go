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

// knee of the paper's world with these lengths, requests a second.
const knee = 1735

// attains fails unless o attains at least want and nobody was forgotten.
func attains(t *testing.T, name string, o *Outcome, want float64) {
	t.Helper()
	t.Logf("%s: attained %.4f of %d, late %d, shed %d, p50 %v, p99 %v, %v of a replica per good, %.1f rows a call, longest tenth %.3f", name, o.Attainment(), o.Offered,
		o.Late, o.Shed, o.Quantile(.5).Round(time.Millisecond), o.Quantile(.99).Round(time.Millisecond), o.PerGood(), float64(o.Rows)/float64(o.Calls), o.Deciles[9].Attainment())
	if o.Attainment() < want {
		t.Errorf("%s: attained %.4f, want %.4f", name, o.Attainment(), want)
	}
	if n := o.Unanswered(); n > 0 {
		t.Errorf("%s: %d requests neither answered nor refused", name, n)
	}
}

func TestBelowTheKnee(t *testing.T) {
	w := paper()
	for _, load := range []float64{0.2, 0.35, 0.5} {
		reqs := poisson(load*knee, 12*time.Second, 1, "")
		eager, patient := Simulate(w, ours(w, 0), reqs), Simulate(w, ours(w, 1), reqs)
		attains(t, "eager", eager, 1)
		attains(t, "patient", patient, 0.999)
		if ratio := float64(patient.PerGood()) / float64(eager.PerGood()); ratio > 0.52 {
			t.Errorf("load %.2f: patience needs %.2f of the eager replica time per good request, want 0.5", load, ratio)
		}
	}
}

// Beyond the knee it serves far more than a fixed batcher, nine tenths of what
// nobody can exceed, and the longest requests do not pay for all of it.
func TestBeyondTheKnee(t *testing.T) {
	w := paper()
	for load, want := range map[float64][2]float64{1.12: {0.94, 0.8}, 1.3: {0.86, 0.73}} {
		reqs := poisson(load*knee, 12*time.Second, 1, "")
		o := Simulate(w, ours(w, 0), reqs)
		attains(t, "ours", o, want[0])
		if got := o.Deciles[9].Attainment(); got < want[1] {
			t.Errorf("load %.2f: the longest tenth attains %.3f, want %.2f", load, got, want[1])
		}
		fixed := Simulate(w, Fixed{Size: 32, Delay: 5 * time.Millisecond, Timeout: 50 * time.Millisecond}.Policy(w.Fleet()), reqs)
		if ratio := float64(o.Good) / float64(fixed.Good); ratio < 1.3 {
			t.Errorf("load %.2f: %.2f times the goodput of a fixed batcher, want 1.3", load, ratio)
		}
		if bound := Bound(w, reqs); o.Good > bound {
			t.Errorf("load %.2f: %d good, above the bound of %d", load, o.Good, bound)
		}
	}
}

func TestAQuietTenantBesideAFlood(t *testing.T) {
	w := paper()
	both := merge(poisson(200, 10*time.Second, 1, "quiet"), poisson(3000, 10*time.Second, 2, "flood"))
	o := Simulate(w, ours(w, 0), both)
	attains(t, "flood", o, 0.7)
	if got := o.Tenants["quiet"].Attainment(); got < 0.99 {
		t.Errorf("the quiet tenant attains %.4f, want 0.99", got)
	}
	for i := range both {
		both[i].Tenant = ""
	}
	if all := Simulate(w, ours(w, 0), both); float64(o.Good) < 0.98*float64(all.Good) {
		t.Errorf("%d good beside %d without tenants, want 98 in 100", o.Good, all.Good)
	}
}

func TestASlowdown(t *testing.T) {
	w := paper()
	w.SlowAt, w.Slow, w.Warm = 5*time.Second, 1.6, 5*time.Second
	attains(t, "slower", Simulate(w, ours(w, 0), poisson(0.6*knee, 15*time.Second, 1, "")), 0.98)
	w.Slow = 1 / 1.6
	attains(t, "faster", Simulate(w, ours(w, 0), poisson(1.2*knee, 15*time.Second, 1, "")), 0.999)
}

// Engines that pad are found out; where even a call of two costs more than two
// calls, calls have one row.
func TestPaddedEngines(t *testing.T) {
	w := paper()
	w.Law.Padded = true
	reqs := poisson(0.3*knee, 10*time.Second, 1, "")
	attains(t, "padded", Simulate(w, ours(w, 0), reqs), 0.999)
	w.Law.AlphaMs, w.Law.BetaMsPerToken = 0.2, 0.03
	o := Simulate(w, ours(w, 0), reqs)
	attains(t, "best alone", o, 0.995)
	if one := Simulate(w, Fixed{Size: 1}.Policy(w.Fleet()), reqs); float64(o.Busy) > 1.1*float64(one.Busy) {
		t.Errorf("calls took %v, single ones %v", o.Busy, one.Busy)
	}
}

// What leaves is no failure of the policy, and frees its place.
func TestClientsThatLeave(t *testing.T) {
	w := paper()
	reqs := poisson(knee, 8*time.Second, 1, "")
	for i := range reqs {
		if i%10 == 0 {
			reqs[i].Leaves = 10 * time.Millisecond
		}
	}
	o := Simulate(w, ours(w, 0), reqs)
	attains(t, "leaving", o, 0.97)
	if o.Left == 0 {
		t.Error("nobody left")
	}
}

// A law that is three times the prior in one figure and a third in the other, from
// the first request on, where a call of the knee's size hardly keeps the target.
func TestAWrongPriorNearTheEdge(t *testing.T) {
	w := paper()
	w.Law.AlphaMs, w.Law.BetaMsPerToken, w.Target, w.Warm = 15, 0.0067, 115*time.Millisecond, 0
	o := options()
	o.Target = w.Target
	c := batcher.NewCore(o)
	c.SetReplicas(epoch, w.Fleet())
	attains(t, "wrong prior", Simulate(w, c, poisson(2100, 12*time.Second, 1, "")), 0.999)
}
