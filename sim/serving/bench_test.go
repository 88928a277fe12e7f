package serving

import (
	"math/rand/v2"
	"testing"
	"time"
)

// BenchmarkRequest is a request of the day scenario: 112 replicas, 25 requests a
// second, conversation's mean lengths, and looks of the arbiter twice a second.
func BenchmarkRequest(b *testing.B) {
	done := func(Outcome) {}
	s, err := New(Options{Model: "chat", Law: chat, SLO: SLO{TTFT: time.Second, PerInput: 200 * time.Microsecond, TPOT: 50 * ms}, Done: done})
	if err != nil {
		b.Fatal(err)
	}
	for r := range 112 {
		s.Add(0, r)
	}
	rnd := rand.New(rand.NewPCG(1, 1))
	at, look := time.Duration(0), time.Duration(0)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		at += time.Duration(rnd.ExpFloat64() * float64(time.Second) / 25)
		for ; look < at; look += 500 * ms {
			s.Load(look)
		}
		s.Arrive(at, i, 1+int(rnd.ExpFloat64()*1150), 1+int(rnd.ExpFloat64()*210))
		i++
	}
}
