package keys

import (
	"path/filepath"
	"testing"
	"time"

	"aloft/gateway"
)

func BenchmarkLimits(b *testing.B) {
	dir := b.TempDir()
	s, err := Open(filepath.Join(dir, "keys.yaml"), "", nil)
	if err != nil {
		b.Fatal(err)
	}
	_, secret, err := s.Make(gateway.KeySpec{Tenant: "t", RPM: 1 << 30, TPM: 1 << 38, Parallel: 1000, Budget: 1 << 39})
	if err != nil {
		b.Fatal(err)
	}
	given := []byte(secret)
	g, _ := s.Find(given, time.Now())
	b.Run("find", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			s.Find(given, time.Now())
		}
	})
	b.Run("reserve+settle", func(b *testing.B) {
		now := time.Now()
		r := gateway.Reserving{Tokens: 1}
		b.ReportAllocs()
		for b.Loop() {
			if _, err := s.Reserve(g, now, r); err != nil {
				b.Fatal(err)
			}
			s.Settle(g, now, r, 1)
		}
	})
}
