package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"aloft/gpu"
	"aloft/loadgen/arrivals"
	"aloft/sim/scenario"
)

// simulateRecording is a scenario made of what a server recorded.
type simulateRecording struct {
	Trace  string `type:"existingfile" help:"Recording of aloft record: simulate its traffic on the node and models of a configuration." placeholder:"FILE"`
	Status string `type:"existingfile" help:"With --trace: what aloft top --json said of the server; the service times are its fits." placeholder:"FILE"`
	Out    string `name:"scenario-out" help:"With --trace: write the scenario here, to change it and simulate that, and end." placeholder:"FILE"`
}

// replica starts are not recorded: the standard scenarios' stand for them.
var usualStart = scenario.Start{WakeMedianS: 3, ColdMedianS: 45, Sigma: 0.15}

// text makes the scenario. What nobody knows yet is left out, and said in missing:
// without it the scenario is refused.
func (c *simulateRecording) text(config string) (text []byte, missing []string, err error) {
	cfg, err := loadConfig(config)
	if err != nil {
		return nil, nil, err
	}
	f, err := os.Open(c.Trace)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	rows, err := arrivals.Read(f, 0)
	if errors.Is(err, arrivals.ErrCut) {
		err = nil // the draw says so
	}
	if err == nil && len(rows) == 0 {
		err = fmt.Errorf("it has no requests")
	}
	if err != nil {
		return nil, nil, fmt.Errorf("--trace %s: %w", c.Trace, err)
	}
	var status Status
	if c.Status != "" {
		said, err := os.ReadFile(c.Status)
		if err == nil {
			err = json.Unmarshal(said, &status)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("--status %s: want what aloft top --json says: %w", c.Status, err)
		}
	}
	trace, err := filepath.Abs(c.Trace)
	if err != nil {
		return nil, nil, err
	}
	s, missing, err := recordedWorld(cfg, rows, &status, c.Out != "")
	if err != nil {
		return nil, nil, fmt.Errorf("simulate %s with --trace: %w", config, err)
	}
	for _, m := range s["models"].([]map[string]any) {
		m["arrivals"] = map[string]any{"trace": trace, "of_model": m["name"], "as_recorded": true}
	}
	s["name"] = "recording-" + strings.TrimSuffix(filepath.Base(trace), filepath.Ext(trace))
	text, err = yaml.Marshal(s)
	head := "# A recording as a scenario. Replica starts and the backlog are those of the standard scenarios.\n"
	for i := range cfg.Models {
		if m := &cfg.Models[i]; c.Out != "" && !strings.HasPrefix(m.Shape, "1g.") {
			head += fmt.Sprintf("# %s has slices of %q: aloft tune --scenario knows them from the configuration, aloft simulate plays slice_shape.\n", m.Name, m.Shape)
		}
	}
	for _, m := range missing {
		head += "# To be filled in: " + m + "\n"
	}
	return append([]byte(head), text...), missing, err
}

// recordedWorld is the scenario but for its name and where the arrivals are.
// With anyShape the instances are no part of it.
func recordedWorld(cfg *Config, rows []arrivals.Record, status *Status, anyShape bool) (map[string]any, []string, error) {
	gpus := max(len(status.Devices), len(cfg.Node.Simulated))
	length := rows[len(rows)-1].Offset + time.Second
	var models []map[string]any
	var missing []string
	serving, shape := 0, ""
	for i := range cfg.Models {
		m := &cfg.Models[i]
		if !slices.ContainsFunc(rows, func(r arrivals.Record) bool { return r.Model == m.Name }) {
			continue
		}
		if !anyShape && (!strings.HasPrefix(m.Shape, "1g.") || shape != "" && m.Shape != shape) {
			return nil, nil, fmt.Errorf("model %s has shape %q: the simulator splits a GPU into seven slices of one 1g shape for all models, or leaves it whole", m.Name, m.Shape)
		}
		shape = m.Shape
		service, slo, lacks := serviceOf(m, status)
		share := cmp.Or(m.Static, m.Replicas.Max)
		missing = append(missing, lacks...)
		models = append(models, map[string]any{"name": m.Name, "static_share_slices": share, "service_time": service, "slo": slo, "start": startKeys(usualStart),
			"replicas": map[string]any{"min": m.Replicas.Min, "max": m.Replicas.Max}})
		serving += share
	}
	all := scenario.SlicesPerGPU * gpus
	switch {
	case len(models) == 0:
		return nil, nil, fmt.Errorf("no model of the configuration is in the recording, whose first request is for %q", rows[0].Model)
	case gpus == 0:
		return nil, nil, fmt.Errorf("neither the configuration nor --status says how many GPUs there are: give what aloft top --json says")
	case serving > all:
		return nil, nil, fmt.Errorf("what the models keep in mode static (static, else replicas.max) sums to %d, and %d GPUs have %d slices", serving, gpus, all)
	}
	if anyShape { // who plays it there brings the instances
		shape = "1g.10gb"
	}
	family, whole, ok := nodeFamily(cfg, status, shape)
	if !ok {
		return nil, nil, fmt.Errorf("no GPU is split into %d slices of %s: the simulator knows %s", scenario.SlicesPerGPU, shape, strings.Join(gpu.Families(), ", "))
	}
	judged := length.Seconds()
	return map[string]any{
		"horizon_h": length.Hours(), "seeds": []int{1}, "measure": map[string]any{"warm_up_s": min(300, judged/20), "tail_s": min(120, judged/20)},
		"cluster": map[string]any{"gpus": gpus, "gpu_model": family, "server_gpus": gpus, "slice_shape": shape, "whole_shape": whole, "reshape_s": 2,
			"serving_share_slices": serving, "job_share_slices": all - serving},
		"models": models, "diurnal": map[string]any{"amplitude": 0}, "jobs": map[string]any{"offered_load": 0},
		"backlog":    map[string]any{"kind": "embed", "size": "unlimited", "start_s": 10, "stop_s": 0.5, "loses_s": 5},
		"batch_rows": map[string]any{"enabled": false}, "faults": map[string]any{},
	}, missing, nil
}

// nodeFamily is the MIG family whose smallest slices are of that shape, and its whole
// GPU: the one that the node has if that is known, else the first.
func nodeFamily(cfg *Config, status *Status, shape string) (name, whole string, ok bool) {
	for _, candidate := range gpu.Families() {
		f, _ := gpu.Lookup(candidate)
		small, has := f.Profile(shape)
		if !has || len(small.Starts) < scenario.SlicesPerGPU {
			continue
		}
		for _, p := range f.Profiles {
			if p.Compute != f.Compute {
				continue
			}
			here := slices.ContainsFunc(status.Devices, func(d DeviceStatus) bool { return gpu.FamilyOf(d.Model, p.Bytes) == candidate }) ||
				len(cfg.Node.Simulated) > 0 && cfg.Node.Simulated[0].Family == candidate
			if here || !ok {
				name, whole, ok = candidate, p.Name, true
			}
			if here {
				return name, whole, true
			}
		}
	}
	return name, whole, ok
}

func startKeys(s scenario.Start) map[string]any {
	return map[string]any{"wake_median_s": float64(s.WakeMedianS), "cold_median_s": float64(s.ColdMedianS), "lognormal_sigma": s.Sigma}
}

// serviceOf is a model's service time as the server fitted it, its target, and
// what is not known of them.
func serviceOf(m *ModelConfig, status *Status) (service, slo map[string]any, missing []string) {
	at := "models." + m.Name + "."
	slo = map[string]any{"ttft_s": m.Target.Seconds(), "ttft_ms_per_input_token": 0}
	if !slices.Contains(m.Endpoints, "embeddings") {
		return map[string]any{"slots": m.Slots, "decode_speed_during_prefill": 0.5}, slo, []string{
			at + "service_time.alpha_ms and beta_ms_per_sequence (a decoding step), prefill_tokens_per_s: aloft load shows them as TPOT at one and at many requests, and as TTFT over the input",
			at + "slo.tpot_ms: what a later token may take"}
	}
	service = map[string]any{}
	for i := range status.Models {
		if s := &status.Models[i]; s.Name == m.Name && len(s.Batching.Fits) > 0 {
			fit := s.Batching.Fits[0]
			for _, f := range s.Batching.Fits {
				if f.Shape == m.Shape {
					fit = f
				}
			}
			service["alpha_ms"], service["beta_ms_per_token"], service["max_tokens"] = fit.Alpha, fit.Beta/1000, fit.Largest
		}
	}
	if m.Engine == "synthetic" && len(service) == 0 {
		service["alpha_ms"], service["beta_ms_per_token"] = 1000*m.Law.Alpha.Seconds(), 1000*m.Law.Beta.Seconds()
		service["max_tokens"] = max(m.Batch.MaxTokens, 1)
	}
	if len(service) == 0 {
		missing = append(missing, at+"service_time.alpha_ms, beta_ms_per_token, max_tokens: the server's fit, in what aloft top --json says (--status)")
	}
	return service, slo, missing
}
