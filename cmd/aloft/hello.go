package main

import (
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
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
