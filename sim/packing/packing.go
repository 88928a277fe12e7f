// Package packing repeats, in plain Go and within seconds, the placement
// experiment of FGD ("Beware of Fragmentation", USENIX ATC 2023) on the public
// openb trace, and carries it over to MIG: who places requests so that what is
// free stays of use.
//
// Everything here is modelled: no GPU is asked. The rules of the six policies were
// read in the authors' artifact (hkust-adsl/kubernetes-scheduler-simulator) and
// are written anew here; their published numbers are what the tests compare with.
package packing

import (
	"encoding/csv"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// milli is one GPU in the trace's unit.
const milli = 1000

// maxGPUs is what a node of the trace holds at most.
const maxGPUs = 8

// Pod is one request.
type Pod struct {
	CPU, Memory int64 // milli cores, MiB
	GPUs        int
	Milli       int64    // of each GPU, 1000 = all of it
	Models      []string // GPU models that will do; none = any
	Life        time.Duration
}

// total is what the pod asks of GPUs, in thousandths.
func (p Pod) total() int64 { return int64(p.GPUs) * p.Milli }

// Node is one machine.
type Node struct {
	CPU, Memory int64
	GPUs        int
	Model       string
}

// Trace is the cluster and its requests.
type Trace struct {
	Nodes []Node
	Pods  []Pod
}

// Load reads the openb trace from the folder of traces.
func Load(traces string) (Trace, error) {
	var t Trace
	dir := filepath.Join(traces, "openb-gpu-v2023")
	for _, part := range []struct {
		name string
		read func(io.Reader) error
	}{
		{"openb_node_list_gpu_node.csv", t.readNodes},
		{"openb_pod_list_default.csv", t.readPods},
	} {
		f, err := os.Open(filepath.Join(dir, part.name))
		if err != nil {
			return t, fmt.Errorf("packing: open the openb trace: %w", err)
		}
		err = part.read(f)
		f.Close()
		if err != nil {
			return t, fmt.Errorf("packing: %s: %w", part.name, err)
		}
	}
	return t, nil
}

func (t *Trace) readNodes(r io.Reader) error {
	return rows(r, []string{"cpu_milli", "memory_mib", "gpu", "model"}, func(v []string) error {
		n, err := ints(v[:3])
		if err == nil && (n[2] < 1 || n[2] > maxGPUs) {
			err = fmt.Errorf("%d GPUs, want 1 to %d", n[2], maxGPUs)
		}
		if err == nil {
			t.Nodes = append(t.Nodes, Node{n[0], n[1], int(n[2]), v[3]})
		}
		return err
	})
}

func (t *Trace) readPods(r io.Reader) error {
	columns := []string{"cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "creation_time", "deletion_time", "gpu_spec"}
	return rows(r, columns, func(v []string) error {
		n, err := ints(v[:6])
		switch {
		case err != nil:
			return err
		case n[2] < 0 || n[2] > maxGPUs || n[2] > 0 && (n[3] < 1 || n[3] > milli) || n[2] > 1 && n[3] != milli:
			return fmt.Errorf("%d GPUs of %d milli, want 0 to %d, whole ones if several", n[2], n[3], maxGPUs)
		}
		p := Pod{CPU: n[0], Memory: n[1], GPUs: int(n[2]), Life: time.Duration(n[5]-n[4]) * time.Second}
		if p.GPUs > 0 {
			p.Milli = n[3]
		}
		p.Models = strings.FieldsFunc(v[6], func(r rune) bool { return r == '|' })
		t.Pods = append(t.Pods, p)
		return nil
	})
}

// rows calls do with the named columns of every row of a CSV text.
func rows(r io.Reader, names []string, do func([]string) error) error {
	c := csv.NewReader(r)
	c.ReuseRecord = true
	head, err := c.Read()
	if err != nil {
		return fmt.Errorf("read the header: %w", err)
	}
	at := make([]int, len(names))
	for i, name := range names {
		if at[i] = slices.Index(head, name); at[i] < 0 {
			return fmt.Errorf("no column %q, only %s", name, strings.Join(head, " "))
		}
	}
	values := make([]string, len(names))
	for line := 2; ; line++ {
		row, err := c.Read()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		for i, n := range at {
			values[i] = row[n]
		}
		if err := do(values); err != nil {
			return fmt.Errorf("line %d: %w", line, err)
		}
	}
}

func ints(texts []string) ([]int64, error) {
	out := make([]int64, len(texts))
	for i, t := range texts {
		n, err := strconv.ParseInt(t, 10, 64)
		if err != nil {
			return nil, err
		}
		out[i] = n
	}
	return out, nil
}
