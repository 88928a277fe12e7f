package pool

import (
	"context"
	"testing"

	"aloft/backends"
)

// BenchmarkTracked is what a call costs on its way through the pool.
func BenchmarkTracked(b *testing.B) {
	tr := track(&tying{abort: func() {}}, func() {}, func() {})
	var caller context.Context = afterFunc{context.Background(), func() bool { return true }}
	var request backends.Call
	b.ReportAllocs()
	for b.Loop() {
		reply, err := tr.Do(caller, &request)
		if err != nil {
			b.Fatal(err)
		}
		reply.Body.Close()
	}
}
