package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
)

// hello says in a few lines what was found, what is served and where.
func (s *server) hello(w io.Writer, address string) {
	for _, d := range s.devices {
		var shapes []string
		for _, sl := range d.Slices {
			shapes = append(shapes, sl.Shape.Profile)
		}
		what := d.Model
		if d.Modeled {
			what = "no NVIDIA driver: simulating one " + d.Model + "; engines run on this CPU"
			if s.conf.Node.Devices == "simulated" {
				what = "simulating one " + d.Model + " as configured; engines run on this CPU"
			}
		}
		fmt.Fprintf(w, "GPU %d: %s\n       slices %s\n", d.Index, what, strings.Join(shapes, " "))
		if d.Modeled {
			fmt.Fprintln(w, "       here a shape is a label and a CPU share; jobs run below serving")
		}
	}
	set := s.serving.set.Load()
	for _, name := range set.order {
		m := set.models[name]
		fmt.Fprintf(w, "model: %s (%s, %s), %d to %d replicas, p99 target %v\n", name, m.Engine, strings.Join(m.Endpoints, ", "), m.Replicas.Min, m.Replicas.Max, m.Target)
	}
	a := s.conf.Arbiter
	fmt.Fprintf(w, "arbiter: mode %s; looks every %v, plans every %v, holds a surplus %v; headroom from %d samples in %v\n", a.Mode, a.Guard, a.Plan, a.Hold, a.MinSamples, a.Window)
	address = nearby(address)
	fmt.Fprintf(w, "data: %s\nserving on %s, for example:\n\n  %s\n\n", s.data, address, s.example(address))
}

// nearby is what a client on this machine asks, for an address that stands for all.
func nearby(address string) string {
	scheme, rest, _ := strings.Cut(address, "://")
	if host, port, err := net.SplitHostPort(rest); err == nil && net.ParseIP(host).IsUnspecified() {
		return scheme + "://127.0.0.1:" + port
	}
	return address
}

// example is a curl line that works; with keys, once ALOFT_API_KEY has one.
func (s *server) example(address string) string {
	line := s.question(address)
	if s.keys.Enabled() {
		line = strings.Replace(line, " -H ", ` -H "Authorization: Bearer $ALOFT_API_KEY" -H `, 1)
	}
	return line
}

func (s *server) question(address string) string {
	set := s.serving.set.Load()
	for _, name := range set.order {
		if slices.Contains(set.models[name].Endpoints, "chat") {
			return fmt.Sprintf(`curl %s/v1/chat/completions -H 'Content-Type: application/json' -d '{"model":"%s","max_tokens":40,"messages":[{"role":"user","content":"In the beginning"}]}'`, address, name)
		}
	}
	name := set.order[0]
	if set.models[name].embeds() {
		return fmt.Sprintf(`curl %s/v1/embeddings -H 'Content-Type: application/json' -d '{"model":"%s","input":"an idle GPU"}'`, address, name)
	}
	return fmt.Sprintf(`curl %s/v1/completions -H 'Content-Type: application/json' -d '{"model":"%s","max_tokens":40,"prompt":"In the beginning"}'`, address, name)
}

// journal is the file of decisions, one JSON object a line. It is turned over
// once it is large, so it takes at most twice maxJournal.
type journal struct {
	mu   sync.Mutex
	path string
	file *os.File
	size int64
}

const maxJournal = 32 << 20

func openJournal(path string) (*journal, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("open journal: %w", err)
	}
	return &journal{path: path, file: f, size: st.Size()}, nil
}

// Write implements io.Writer.
func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.size+int64(len(b)) > maxJournal {
		if err := j.turnOver(); err != nil {
			return 0, err
		}
	}
	n, err := j.file.Write(b)
	j.size += int64(n)
	return n, err
}

func (j *journal) turnOver() error {
	if err := os.Rename(j.path, j.path+".1"); err != nil {
		return err
	}
	f, err := os.OpenFile(j.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	j.file.Close()
	j.file, j.size = f, 0
	return nil
}

// Close closes the file.
func (j *journal) Close() error { return j.file.Close() }
