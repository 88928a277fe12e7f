package law

import (
	"math"
	"testing"
	"time"
)

func TestTimes(t *testing.T) {
	l := Law{AlphaMs: 4, BetaMsPerToken: 0.5, StepMs: 6, StepMsPerSeq: 0.25, PrefillTokensPerS: 2000, Slots: 2, KVTokens: 64, BlockTokens: 16,
		SleepMs: 1, WakeMs: 2, StartMs: 3}
	for name, d := range map[string][2]time.Duration{
		"batch":     {l.Batch(10), 9 * time.Millisecond},
		"empty":     {l.Batch(0), 4 * time.Millisecond},
		"prefill":   {l.Prefill(100), 50 * time.Millisecond},
		"step":      {l.Step(4), 7 * time.Millisecond},
		"sleep":     {l.Sleep(), time.Millisecond},
		"wake":      {l.Wake(), 2 * time.Millisecond},
		"start":     {l.Start(), 3 * time.Millisecond},
		"1/2 batch": {l.Scaled(0.5, 0.25).Batch(10), 14 * time.Millisecond},
		"1/4 step":  {l.Scaled(0.5, 0.25).Step(4), 28 * time.Millisecond},
		"1/2 pre":   {l.Scaled(0.5, 0.25).Prefill(100), 100 * time.Millisecond},
		"scaled kv": {time.Duration(l.Scaled(0.5, 0.25).KVTokens), 16},
		"scaled sl": {time.Duration(l.Scaled(0.5, 0.25).Slots), 1},
	} {
		if d[0] != d[1] {
			t.Errorf("%s: %v, want %v", name, d[0], d[1])
		}
	}
	if n := l.BatchTokens([]int{1, 5, 2}); n != 8 {
		t.Errorf("tokens %d, want 8", n)
	}
	l.Padded = true
	if n := l.BatchTokens([]int{1, 5, 2}); n != 15 {
		t.Errorf("padded tokens %d, want 15", n)
	}
	if n := l.Knee(0.2); n != 32 { // 4·0.8/(0.2·0.5)
		t.Errorf("knee %d, want 32", n)
	}
	if n := (Law{AlphaMs: 1}).Knee(0.2); n != math.MaxInt32 {
		t.Errorf("knee without beta %d", n)
	}
}

func TestKV(t *testing.T) {
	l := Law{Slots: 2, KVTokens: 64, BlockTokens: 16}
	for in, want := range map[int]int{0: 0, 1: 16, 16: 16, 17: 32} {
		if got := l.KV(in); got != want {
			t.Errorf("KV(%d) is %d, want %d", in, got, want)
		}
	}
	if !l.Fits(1, 32, 32) || l.Fits(2, 0, 16) || l.Fits(1, 48, 32) {
		t.Error("Fits")
	}
	l.KVTokens = 0
	if !l.Fits(1, 1<<40, 1) {
		t.Error("no limit is a limit")
	}
}

func TestValidate(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Law){
		"negative": func(l *Law) { l.AlphaMs = -1 }, "nan": func(l *Law) { l.StepMs = math.NaN() },
		"rate": func(l *Law) { l.PrefillTokensPerS = 0 }, "slots": func(l *Law) { l.Slots = -1 }, "block": func(l *Law) { l.BlockTokens = 0 },
	} {
		l := Default()
		if change(&l); l.Validate() == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}
