package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// chatTokens is the most that one answer has.
const chatTokens = 64

func chat(ctx context.Context, l *lab) (*result, error) {
	server, err := l.serve(ctx, "chat.yaml")
	if err != nil {
		return nil, err
	}
	defer server.stop()
	var bodies [][]byte
	for i, s := range sentences()[:256] {
		bodies = append(bodies, chatBody(lm, s, i, chatTokens))
	}
	counts := []int{1, 4, 16}
	rates := map[int][]float64{}
	for round := range l.rounds() {
		for i := range counts {
			n := counts[i]
			if round%2 == 1 {
				n = counts[len(counts)-1-i]
			}
			v, err := chatRate(ctx, server, n, bodies, l.span(3*time.Second))
			if err != nil {
				return nil, fmt.Errorf("%d streams: %w", n, err)
			}
			rates[n] = append(rates[n], v)
		}
		l.say("chat, round %d of %d: 1 stream %.0f, 4 streams %.0f, 16 streams %.0f tokens/s", round+1, l.rounds(), rates[1][round], rates[4][round], rates[16][round])
	}
	r := &result{title: "Chat: tokens per second",
		how: fmt.Sprintf("Tokens/s over all streams of `aloft serve` with one replica of the real language model with 16 slots and one thread (`cmd/bench/servers/chat.yaml`). "+
			"Each stream asks for its next answer of at most %d tokens when the last one has ended; prompts are Bible verses, temperature 0.8. "+
			"Events are counted as they arrive and turned into tokens by the usage that finished answers report. Best of the rounds; ratios are the median of the rounds' ratios (lowest to highest).", chatTokens),
		head: []string{"streams", "tokens/s, best", "per stream", "against one stream"}}
	for _, n := range counts {
		s := spreadOf(rates[n])
		r.row(fmt.Sprint(n), fmt.Sprintf("%.0f", s.max), fmt.Sprintf("%.0f", s.max/float64(n)), spreadOf(each(rates[n], rates[1], ratio)).show("%.2f"))
		r.measured(fmt.Sprintf("%d streams, tokens/s", n), s.max)
	}
	return r, nil
}

// chatRate is the tokens a second that n streams get.
func chatRate(ctx context.Context, server *child, n int, bodies [][]byte, span time.Duration) (float64, error) {
	var events, tokens atomic.Int64 // of whole answers
	rate, err := loop{n: n, span: span, send: func(ctx context.Context, i int, count func(int)) error {
		a, err := server.stream(ctx, bodies[i%len(bodies)], func() { count(1) })
		if err == nil {
			events.Add(int64(a.events))
			tokens.Add(int64(a.tokens))
		}
		return err
	}}.rate(ctx)
	if err != nil {
		return 0, err
	}
	if tokens.Load() == 0 {
		return 0, fmt.Errorf("no answer reported its usage")
	}
	return rate * float64(tokens.Load()) / float64(events.Load()), nil
}
