package llama

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"aloft/backends/serve"
)

// BenchmarkDecode measures generated tokens a second at n streams.
func BenchmarkDecode(b *testing.B) {
	for _, n := range []int{1, 4, 16} {
		b.Run(fmt.Sprint(n), func(b *testing.B) { decode(b, n, languageModel(b)) })
	}
}

func decode(b *testing.B, streams int, model string) {
	e := open(b, Options{Model: model, Slots: streams})
	tokens, cpu := 0, cpuTime()
	for b.Loop() {
		var wg sync.WaitGroup
		made := make([]int, streams)
		for i := range streams {
			wg.Go(func() {
				req := story(100)
				req.Temperature = 1
				f, err := e.Generate(context.Background(), req, func(serve.Piece) error { return nil })
				if err != nil {
					b.Error(err)
				}
				made[i] = f.CompletionTokens
			})
		}
		wg.Wait()
		for _, m := range made {
			tokens += m
		}
	}
	report(b, cpu, tokens, "token")
}

// BenchmarkEmbed measures rows a second at n rows a call.
func BenchmarkEmbed(b *testing.B) {
	for _, n := range []int{1, 8, 32} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			e := open(b, Options{Model: encoder(b)})
			req := &serve.EmbedRequest{}
			for i := range n {
				req.Inputs = append(req.Inputs, serve.Input{Text: fmt.Sprintf("the cat sat on mat %d", i)})
			}
			cpu := cpuTime()
			for b.Loop() {
				if _, err := e.Embed(context.Background(), req); err != nil {
					b.Fatal(err)
				}
			}
			report(b, cpu, n*b.N, "row")
		})
	}
}

// cpuTime returns the processor time of this process: on a machine shared with
// others it tells more than the wall clock.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func report(b *testing.B, since time.Duration, n int, unit string) {
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), unit+"s/s")
	b.ReportMetric(float64((cpuTime()-since).Microseconds())/float64(n), "cpu-us/"+unit)
}
