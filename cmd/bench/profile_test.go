package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"testing"
	"time"

	"aloft/backends"
	"aloft/backends/openaihttp"
	"aloft/batcher"
	"aloft/gateway"
)

// oneModel is a Catalog with the stub's model.
type oneModel struct{ gateway.Model }

func (m oneModel) Lookup(string) (gateway.Model, bool) { return m.Model, true }
func (m oneModel) Models() []gateway.Model             { return []gateway.Model{m.Model} }

// BenchmarkGateway runs gateway, batcher and engine client in this process, for
// a profile: go test ./cmd/bench -run '^$' -bench Gateway/requests/64 -cpuprofile FILE.
// The load generator is in it, too.
func BenchmarkGateway(b *testing.B) {
	stub := role(b, "stub", "127.0.0.1:0")
	log := slog.New(slog.DiscardHandler)
	queue, err := batcher.New(batcher.Options{Model: stubModel, MaxQueue: 1 << 14}, log)
	if err != nil {
		b.Fatal(err)
	}
	backend := openaihttp.New(openaihttp.Options{BaseURL: "http://" + stub})
	queue.SetReplicas([]batcher.Replica{{ID: "stub-1", Backend: backend, Slots: 1 << 14, Shape: "7g.80gb"}})
	model := oneModel{gateway.Model{Name: stubModel, Endpoints: []backends.Endpoint{backends.Chat}, Usable: true, Counter: &backends.Ratio{}}}
	srv, err := gateway.New(gateway.Options{}, gateway.Deps{Catalog: model, Submitter: queue}, log)
	if err != nil {
		b.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(ctx, l) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			b.Error(err)
		}
	}()
	t := &target{name: through, addr: l.Addr().String()}
	for _, k := range []kind{unaries, streams} {
		for _, n := range connections {
			b.Run(fmt.Sprintf("%s/%d", k.name, n), func(b *testing.B) {
				for b.Loop() {
					rate, err := t.throughput(b.Context(), k, n, 3*time.Second)
					if err != nil {
						b.Fatal(err)
					}
					b.ReportMetric(rate, k.name+"/s")
				}
			})
		}
	}
}
