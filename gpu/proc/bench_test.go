//go:build linux

package proc

import "testing"

// BenchmarkStartToDone is the whole life of a process that does nothing, with
// the look through /proc at its end.
func BenchmarkStartToDone(b *testing.B) {
	s := Spec{Name: "bench", Path: "/bin/true", RunDir: b.TempDir()}
	for b.Loop() {
		p, err := Start(b.Context(), s)
		if err != nil {
			b.Fatal(err)
		}
		if e := p.Wait(); !e.OK() {
			b.Fatal(e)
		}
	}
}
