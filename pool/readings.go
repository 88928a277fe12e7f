package pool

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"aloft/backends"
)

const (
	readEvery = time.Second
	// readSilence is when an engine that has said something counts as silent; the
	// batcher, too, takes what is older as no news. readTimeout and readEvery together
	// are less: an engine that is slow to answer is not silent.
	readSilence = 3 * time.Second
	readTimeout = 1500 * time.Millisecond
	// readRarely is between the looks at an engine that has no figures for us.
	readRarely = 5 * time.Second
	readMost   = 4 << 20 // bytes of an answer; vLLM's is about 100 KiB
	readLine   = 64 << 10
)

// figure is what a metric says.
type figure uint8

const (
	running figure = iota + 1
	waiting
	kvUsage
	kvTokens
	kvBlock
	kvBlocks // blocks and their size, in labels
)

// figures are the names that engines give, and ours. Those of vLLM (005a810), SGLang
// (44cedc2; with --enable-metrics) and text-embeddings-inference (0204616) are as in
// their sources and, the first two, in the model server protocol of Kubernetes'
// inference extension (84436a9); llama.cpp's server wants --metrics. Its
// kv_cache_usage_ratio, of old builds, counts the caches of idle slots as taken, and
// is left out.
var figures = map[string]figure{
	"vllm:num_requests_running": running,
	"vllm:num_requests_waiting": waiting,
	"vllm:kv_cache_usage_perc":  kvUsage, // 0 to 1, whatever its name says
	"vllm:gpu_cache_usage_perc": kvUsage, // its former name
	"vllm:cache_config_info":    kvBlocks,

	"sglang:num_running_reqs":     running,
	"sglang:num_queue_reqs":       waiting,
	"sglang:token_usage":          kvUsage,
	"sglang:max_total_num_tokens": kvTokens,

	"llamacpp:requests_processing": running,
	"llamacpp:requests_deferred":   waiting,

	"te_queue_size": waiting,

	"aloft_engine_running":         running,
	"aloft_engine_waiting":         waiting,
	"aloft_engine_kv_tokens":       kvTokens,
	"aloft_engine_kv_block_tokens": kvBlock,
}

var (
	errNoFigures = errors.New("none of its metrics is one that is known")
	errTooLong   = fmt.Errorf("more than %d bytes", readMost)
)

// parseReading picks an engine's figures from its metrics. Engines with several
// schedulers have a sample of each: counts add up, of usages the highest counts.
func parseReading(text io.Reader) (said backends.Reading, err error) {
	all := &io.LimitedReader{R: text, N: readMost + 1}
	lines := bufio.NewScanner(all)
	lines.Buffer(nil, readLine)
	var known bytes.Buffer // the samples of figures alone: histograms are most of a text
	for lines.Scan() {
		line := lines.Bytes()
		if end := bytes.IndexAny(line, "{ \t"); end > 0 && figures[string(line[:end])] != 0 {
			known.Write(line)
			known.WriteByte('\n')
		}
	}
	switch {
	case all.N <= 0:
		return said, errTooLong
	case lines.Err() != nil:
		return said, lines.Err()
	case known.Len() == 0:
		return said, errNoFigures
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(&known)
	if err != nil {
		return backends.Reading{}, err
	}
	for name, family := range families {
		for _, m := range family.Metric {
			v := m.GetUntyped().GetValue()
			if math.IsNaN(v) || v < 0 {
				continue
			}
			labels := map[string]string{}
			for _, l := range m.Label {
				labels[l.GetName()] = l.GetValue()
			}
			take(&said, figures[name], v, labels)
		}
	}
	return said, nil
}

// most bounds what is believed of an engine.
const most = 1 << 40

func take(said *backends.Reading, f figure, v float64, labels map[string]string) {
	n := int(min(v, most))
	switch f {
	case running:
		said.Running = min(said.Running+n, most)
	case waiting:
		said.Waiting = min(said.Waiting+n, most)
	case kvUsage:
		said.KVUsage = max(said.KVUsage, min(v, 1))
	case kvTokens:
		said.KVTokens = min(said.KVTokens+n, most)
	case kvBlock:
		said.KVBlock = min(max(said.KVBlock, n), 1<<20)
	case kvBlocks:
		size, err1 := strconv.Atoi(labels["block_size"])
		blocks, err2 := strconv.Atoi(labels["num_gpu_blocks"]) // "None" before it is known
		if err1 != nil || err2 != nil || size < 1 || size > 1<<20 || blocks < 1 || blocks > most>>20 {
			return
		}
		said.KVBlock = max(said.KVBlock, size)
		said.KVTokens = min(said.KVTokens+size*blocks, most)
	}
}

// reader asks an engine for its figures, again and again.
type reader struct {
	url    string
	asleep func() bool
	said   func(backends.Reading, error) // Launch.Said

	every, timeout, silence, rarely time.Duration
}

// run reads until done is closed.
func (r reader) run(done <-chan struct{}) {
	var last time.Time // zero = it has said nothing yet
	silent := false
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-done:
			return
		case <-next.C:
		}
		wait := r.every
		if r.asleep() { // it may be paused
			last, silent = time.Time{}, false
			next.Reset(wait)
			continue
		}
		said, err := r.read()
		switch {
		case err == nil:
			last, silent = time.Now(), false
			r.said(said, nil)
		case last.IsZero():
			wait = r.rarely
		case !silent && time.Since(last) >= r.silence && !r.asleep():
			silent = true
			r.said(backends.Reading{}, err)
		}
		next.Reset(wait)
	}
}

func (r reader) read() (said backends.Reading, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), r.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url, nil)
	if err != nil {
		return said, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return said, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return said, fmt.Errorf("GET %s: %s", r.url, resp.Status)
	}
	if said, err = parseReading(resp.Body); err != nil {
		return said, fmt.Errorf("GET %s: %w", r.url, err)
	}
	return said, nil
}

// readings hears what the engine of a replica says of itself.
func (p *Pool) readings(model, replica string) func(backends.Reading, error) {
	silent := false // one goroutine calls
	return func(said backends.Reading, err error) {
		switch {
		case err != nil:
			silent = true
			p.log.Warn("engine metrics silent", "replica", replica, "error", err)
			return
		case silent:
			silent = false
			p.log.Info("engine metrics back", "replica", replica)
		}
		if p.opt.OnReading != nil {
			p.opt.OnReading(model, replica, said)
		}
	}
}
