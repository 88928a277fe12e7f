// Package study runs policies side by side over the same worlds and says what they
// came to: the summary over seeds, what changed between two studies, tables and
// CSV. `aloft simulate`, `aloft tune` and the benchmark of the arbiter are made of
// it. All of it is modelled.
package study

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"aloft/loadgen"
	"aloft/sim"
	"aloft/sim/rivals"
)

// Schema names the format of a Study as JSON. It changes when a key changes its
// meaning or goes.
const Schema = "aloft.simulation/1"

// Modelled is said wherever a user meets a figure of a simulation.
const Modelled = "simulated (modelled): no GPU was used, no request was sent, no job ran"

// maxStudy bounds a file that is read, in bytes; a day of 64 GPUs under nine
// policies with ten seeds has some 100 MB.
const maxStudy = 512 << 20

// Study is what policies came to in the worlds of some seeds.
type Study struct {
	Schema   string       `json:"schema"`
	Modelled string       `json:"modelled"` // see Modelled
	Scenario string       `json:"scenario"`
	FromH    float64      `json:"from_h"` // the window of the scenario's horizon
	ToH      float64      `json:"to_h"`
	Rows     bool         `json:"rows"` // batch rows rode in ready replicas
	Seeds    []uint64     `json:"seeds"`
	Policies []string     `json:"policies"` // as asked for; static is always run
	Variants []Variant    `json:"variants"` // at least one, the first as the file is
	Started  time.Time    `json:"started"`
	Elapsed  float64      `json:"elapsed_s"`
	Tool     loadgen.Tool `json:"tool"`
	Notes    []string     `json:"notes"` // how traffic and jobs were brought to the wanted load, and what a run left out
	// Interrupted: it was ended from outside; the runs are those that were done.
	Interrupted bool  `json:"interrupted,omitempty"`
	Runs        []Run `json:"runs"` // by variant, seed and policy, in the order above
}

// Variant is the scenario with some keys changed.
type Variant struct {
	Name string `json:"name"` // AsIs, or what was changed
	// Config is the scenario that was run, whole.
	Config json.RawMessage `json:"config,omitempty"`
}

// AsIs is the name of the variant in which nothing was changed.
const AsIs = "as it is"

// Run is one policy in one world.
type Run struct {
	Variant string `json:"variant"`
	sim.Result
	// Caused are the misses caused by lending, against the static run of the same
	// world: a row for each model, and the last for all.
	Caused []sim.Cause `json:"caused"`
	Took   float64     `json:"took_s"` // of this machine's time
}

// Static is the policy that all others are held against.
const Static = rivals.Static

// Find is the run of a policy in a world; nil if there is none.
func (s *Study) Find(variant, policy string, seed uint64) *Run {
	for i := range s.Runs {
		if r := &s.Runs[i]; r.Variant == variant && r.Policy == policy && r.Seed == seed {
			return r
		}
	}
	return nil
}

// Write writes the study as JSON.
func (s *Study) Write(w io.Writer) error {
	if err := json.NewEncoder(w).Encode(s); err != nil {
		return fmt.Errorf("sim/study: write: %w", err)
	}
	return nil
}

// Read reads what Write wrote.
func Read(r io.Reader) (*Study, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxStudy+1))
	if err != nil {
		return nil, fmt.Errorf("read the simulation: %w", err)
	}
	if len(text) > maxStudy {
		return nil, fmt.Errorf("the file exceeds %d bytes", maxStudy)
	}
	var of struct {
		Schema string `json:"schema"`
	}
	if err := json.Unmarshal(text, &of); err != nil {
		return nil, fmt.Errorf("this is no JSON object: %w", err)
	}
	switch {
	case of.Schema == "":
		return nil, errors.New("this is no result of `aloft simulate --json`: it has no schema")
	case of.Schema != Schema:
		return nil, fmt.Errorf("the file is %q, this program reads %q: simulate again, or use the program that wrote it", of.Schema, Schema)
	}
	out := &Study{}
	if err := json.Unmarshal(text, out); err != nil {
		return nil, fmt.Errorf("read the simulation: %w", err)
	}
	for i := range out.Runs {
		if err := out.Runs[i].sound(); err != nil {
			return nil, fmt.Errorf("the file was changed or damaged: %s, seed %d: %w", out.Runs[i].Policy, out.Runs[i].Seed, err)
		}
	}
	return out, nil
}

// sound is an error when the numbers contradict each other.
func (r *Run) sound() error {
	if r.HorizonS < 0 || r.Slices < 0 {
		return fmt.Errorf("%d slices over %v s", r.Slices, r.HorizonS)
	}
	for _, m := range r.Models {
		if m.Good < 0 || m.Good > m.Requests {
			return fmt.Errorf("model %s: %d of %d requests are good", m.Name, m.Good, m.Requests)
		}
	}
	sum := 0.0
	for _, v := range r.Ledger {
		sum += v
	}
	// The accounts are rounded each; the engine holds the sum before that.
	if all := float64(r.Slices) * r.HorizonS; len(r.Ledger) > 0 && (sum < all*0.999-1 || sum > all*1.001+1) {
		return fmt.Errorf("the ledger sums to %.0f slice-s of %.0f", sum, all)
	}
	return nil
}

// variantNames are the variants in order.
func (s *Study) variantNames() []string {
	var out []string
	for _, v := range s.Variants {
		out = append(out, v.Name)
	}
	return out
}

// policies are those that have runs: the ones asked for, and static.
func (s *Study) policies() []string {
	if slices.Contains(s.Policies, Static) {
		return s.Policies
	}
	return append([]string{Static}, s.Policies...)
}
