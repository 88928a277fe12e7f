package pool

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"aloft/backends"
)

// What engines answer, shortened.
const (
	vllmMetrics = `# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="org/m"} 12.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="org/m"} 3.0
vllm:gpu_cache_usage_perc{engine="0",model_name="org/m"} 0.4375
vllm:kv_cache_usage_perc{engine="0",model_name="org/m"} 0.4375
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="org/m"} 0.0
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",num_cpu_blocks="None",num_gpu_blocks="2048"} 1.0
`
	sglangMetrics = `# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{engine_type="unified",model_name="m",tp_rank="0"} 162.0
sglang:token_usage{engine_type="unified",model_name="m",tp_rank="0"} 0.28
sglang:num_queue_reqs{engine_type="unified",model_name="m",tp_rank="0"} 2826.0
sglang:max_total_num_tokens{engine_type="unified",model_name="m",tp_rank="0"} 161721.0
`
	llamacppMetrics = `# HELP llamacpp:requests_processing Number of requests processing.
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 4
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 46
llamacpp:kv_cache_usage_ratio 1
`
)

func TestParseReading(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		want       backends.Reading
		err        string // part of it
	}{
		{"vllm", vllmMetrics, backends.Reading{Running: 12, Waiting: 3, KVUsage: 0.4375, KVTokens: 32768, KVBlock: 16}, ""},
		{"sglang", sglangMetrics, backends.Reading{Running: 162, Waiting: 2826, KVUsage: 0.28, KVTokens: 161721}, ""},
		{"llama.cpp", llamacppMetrics, backends.Reading{Running: 4, Waiting: 46}, ""},
		{"text-embeddings-inference", "# TYPE te_queue_size gauge\nte_queue_size 7\n", backends.Reading{Waiting: 7}, ""},
		{"ours", `aloft_engine_running{model="m"} 2` + "\n" + `aloft_engine_kv_tokens{model="m"} 65536` + "\n" + `aloft_engine_kv_block_tokens{model="m"} 16` + "\n",
			backends.Reading{Running: 2, KVTokens: 65536, KVBlock: 16}, ""},
		{"two schedulers", `vllm:num_requests_running{engine="0"} 1
vllm:num_requests_running{engine="1"} 2
vllm:kv_cache_usage_perc{engine="0"} 0.9
vllm:kv_cache_usage_perc{engine="1"} 0.1
vllm:cache_config_info{block_size="16",num_gpu_blocks="10"} 1
vllm:cache_config_info{block_size="16",num_gpu_blocks="20",x="y"} 1
`, backends.Reading{Running: 3, KVUsage: 0.9, KVTokens: 480, KVBlock: 16}, ""},
		{"blocks that are not known yet", "vllm:num_requests_running 1\n" + `vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1` + "\n", backends.Reading{Running: 1}, ""},
		{"no number, less than none, too many", "vllm:num_requests_running NaN\nvllm:num_requests_waiting -3\nsglang:max_total_num_tokens +Inf\nsglang:token_usage 7\n", backends.Reading{KVTokens: most, KVUsage: 1}, ""},
		{"the end of the last line is missing", "te_queue_size 7", backends.Reading{Waiting: 7}, ""},
		{"what is no figure may be broken", "garbage{{{ 1\nte_queue_size 7\n\x00\xff\n", backends.Reading{Waiting: 7}, ""},
		{"a broken figure", "te_queue_size seven\n", backends.Reading{}, "seven"},
		{"names that only begin alike", "te_queue_size_total 7\n", backends.Reading{}, errNoFigures.Error()},
		{"nothing", "", backends.Reading{}, errNoFigures.Error()},
		{"a page", "<!doctype html><title>404</title>", backends.Reading{}, errNoFigures.Error()},
		{"too long", strings.Repeat("# a comment of sixteen\n", readMost/16), backends.Reading{}, errTooLong.Error()},
		{"a line too long", strings.Repeat("x", readLine+1), backends.Reading{}, "too long"},
	} {
		got, err := parseReading(strings.NewReader(tc.text))
		if got != tc.want || (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%s: %+v, %v, want %+v, %q", tc.name, got, err, tc.want, tc.err)
		}
	}
}

func FuzzReading(f *testing.F) {
	for _, s := range []string{vllmMetrics, sglangMetrics, llamacppMetrics, "te_queue_size 7", "vllm:cache_config_info{block_size=\"999999999\",num_gpu_blocks=\"99999999999\"} 1\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := parseReading(strings.NewReader(text))
		if err != nil && r != (backends.Reading{}) {
			t.Errorf("%v and %+v", err, r)
		}
		if r.Running < 0 || r.Waiting < 0 || r.KVTokens < 0 || r.KVTokens > most || r.KVBlock < 0 || r.KVBlock > 1<<20 || !(r.KVUsage >= 0 && r.KVUsage <= 1) {
			t.Errorf("%+v", r)
		}
	})
}

// heard is one call of Said.
type heard struct {
	backends.Reading
	err error
}

// listen reads from url until the test ends, faster than in earnest.
func listen(t *testing.T, url string, asleep func() bool) <-chan heard {
	all, done, over := make(chan heard, 100), make(chan struct{}), make(chan struct{})
	r := reader{url: url, asleep: asleep, every: readEvery / 50, timeout: readTimeout / 5, silence: readSilence / 5, rarely: readRarely / 50,
		said: func(r backends.Reading, err error) {
			select {
			case all <- heard{r, err}:
			default: // nobody listens any more
			}
		}}
	go func() { defer close(over); r.run(done) }()
	t.Cleanup(func() { close(done); <-over })
	return all
}

func awake() bool { return false }

// until waits for what ok accepts.
func until(t *testing.T, what string, all <-chan heard, ok func(heard) bool) heard {
	t.Helper()
	late := time.After(time.Minute)
	for {
		select {
		case h := <-all:
			if ok(h) {
				return h
			}
		case <-late:
			t.Fatalf("never %s", what)
		}
	}
}

// TestReader: engines over TCP that answer well, late, without end, with garbage, or
// not any more.
func TestReader(t *testing.T) {
	var mode atomic.Value
	mode.Store("good")
	release := make(chan struct{})
	var asked atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		switch mode.Load() {
		case "good":
			fmt.Fprint(w, vllmMetrics)
		case "slow":
			select {
			case <-release:
			case <-r.Context().Done():
			}
		case "trickle": // a byte now and then, never an end
			for r.Context().Err() == nil {
				fmt.Fprint(w, "# still\n")
				w.(http.Flusher).Flush()
				time.Sleep(5 * time.Millisecond)
			}
		case "huge":
			line := []byte(strings.Repeat("#", 1000) + "\n")
			for range readMost {
				if _, err := w.Write(line); err != nil {
					return
				}
			}
		case "garbage":
			w.Write([]byte("\x00\x01\xffvllm:num_requests_running{ 1\nte_queue_size {\n"))
		case "gone":
			http.NotFound(w, r)
		case "hang up":
			conn, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				conn.(*net.TCPConn).SetLinger(0)
				conn.Close()
			}
		}
	}))
	defer s.Close()
	defer close(release)
	var asleep atomic.Bool
	all := listen(t, s.URL, asleep.Load)
	spoke := func(h heard) bool { return h.err == nil && h.Running == 12 && h.KVTokens == 32768 }
	for _, bad := range []string{"slow", "trickle", "huge", "garbage", "gone", "hang up"} {
		mode.Store("good")
		until(t, "good before "+bad, all, spoke)
		mode.Store(bad)
		until(t, "silent when "+bad, all, func(h heard) bool { return h.err != nil })
		// it is said once
		for n := asked.Load(); asked.Load() < n+2; {
			time.Sleep(time.Millisecond)
		}
		select {
		case h := <-all:
			t.Errorf("%s: said again: %+v", bad, h)
		default:
		}
	}
	// asleep it is not asked, nor does anybody miss it
	asleep.Store(true)
	time.Sleep(2 * readEvery / 50) // a look that has begun
	n := asked.Load()
	time.Sleep(2 * readSilence / 5)
	if asked.Load() > n+1 || len(all) > 0 {
		t.Errorf("asleep: asked %d times, %d things said", asked.Load()-n, len(all))
	}
	mode.Store("good")
	asleep.Store(false)
	until(t, "good again", all, spoke)
}

// An engine without figures is no silent one, and becomes one that speaks.
func TestReaderOfAnEngineWithoutFigures(t *testing.T) {
	var speaks atomic.Bool
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if speaks.Load() {
			fmt.Fprint(w, llamacppMetrics)
			return
		}
		fmt.Fprint(w, "go_goroutines 7\n")
	}))
	defer s.Close()
	all := listen(t, s.URL, awake)
	select {
	case h := <-all:
		t.Fatalf("it said %+v", h)
	case <-time.After(3 * readSilence / 10):
	}
	speaks.Store(true)
	if h := until(t, "a figure", all, func(h heard) bool { return true }); h.err != nil || h.Waiting != 46 {
		t.Errorf("%+v", h)
	}
}

// An engine that falls silent, and one that comes back, are told once each; only
// figures reach whoever wants them.
func TestSilenceIsLogged(t *testing.T) {
	var log bytes.Buffer
	var got []backends.Reading
	p := &Pool{log: slog.New(slog.NewTextHandler(&log, nil)), opt: Options{OnReading: func(model, replica string, said backends.Reading) {
		if model != "m" || replica != "m-1" {
			t.Errorf("%s %s", model, replica)
		}
		got = append(got, said)
	}}}
	said := p.readings("m", "m-1")
	said(backends.Reading{Running: 1}, nil)
	said(backends.Reading{Running: 2}, nil)
	said(backends.Reading{}, errNoFigures)
	said(backends.Reading{Running: 3}, nil)
	said(backends.Reading{Running: 4}, nil)
	if n := strings.Count(log.String(), "engine metrics silent"); n != 1 {
		t.Errorf("silence told %d times:\n%s", n, &log)
	}
	if n := strings.Count(log.String(), "engine metrics back"); n != 1 {
		t.Errorf("return told %d times:\n%s", n, &log)
	}
	if len(got) != 4 || got[3].Running != 4 {
		t.Errorf("%+v", got)
	}
}
