package main

import (
	"context"
	"fmt"
	"log/slog"
	"os/exec"
	"path/filepath"
	"strings"

	"aloft/backends/llama"
	"aloft/configs"
	"aloft/gateway"
	"aloft/gateway/keys"
	"aloft/gateway/overflow"
	"aloft/gpu/simulated"
	"aloft/pool"
)

// check finds what a start would refuse, without a GPU, a port or a data folder:
// it reads files and writes none. What another machine may have is a warning.
func (c *Config) check() (warnings []string, err error) {
	data, err := filepath.Abs(c.data)
	if err != nil {
		return nil, err
	}
	s := &server{conf: c, data: data}
	for _, step := range []func() (string, error){s.checkEdge, s.checkModels, s.checkPool} {
		warning, err := step()
		if warning != "" {
			warnings = append(warnings, warning)
		}
		if err != nil {
			return warnings, c.located(err)
		}
	}
	return warnings, nil
}

// checkEdge looks at keys, certificate and address.
func (s *server) checkEdge() (warning string, err error) {
	if s.keys, err = keys.Open(s.keyFile(), "", slog.New(slog.DiscardHandler)); err != nil {
		return "", at("gateway.key_file", "%w", err)
	}
	if t := s.conf.Gateway.TLS; t.Cert != "" {
		if s.cert, err = gateway.LoadCertificate(s.conf.file(t.Cert), s.conf.file(t.Key)); err != nil {
			return "", at("gateway.tls", "%w", err)
		}
	}
	if lacks := s.open(); lacks != "" {
		if !s.conf.Gateway.Insecure {
			return "", at("listen", "%s: %s only a loopback address is served", s.conf.Listen, lacks)
		}
		warning = fmt.Sprintf("%s is open to all who reach it: %s", s.conf.Listen, lacks)
	}
	return warning, nil
}

// checkModels looks at what every model and template needs. Shapes are held
// against the simulated layout unless only the driver's devices will do.
func (s *server) checkModels() (warning string, err error) {
	c := s.conf
	simulates := c.Node.Devices != "nvml"
	if simulates {
		node, err := simulated.New(c.simulated())
		if err != nil {
			return "", at("node.simulated", "%w", err)
		}
		defer node.Close()
		if s.devices, err = node.List(context.Background()); err != nil {
			return "", at("node.simulated", "%w", err)
		}
		if err := s.checkTemplates(c); err != nil {
			return "", err
		}
	}
	for i := range c.Models {
		m, path := &c.Models[i], fmt.Sprintf("models[%d]", i)
		if _, err := s.shape(m.Shape); err != nil && simulates {
			return "", at(path+".shape", "model %s: shape: %w", m.Name, err)
		}
		if err := batching(c, *m).Validate(); err != nil {
			return "", at(path+".batch", "%w", err)
		}
		if m.Overflow != nil {
			if _, err := newRoute(m, &c.Gateway.Timeouts, overflow.Spent{}); err != nil {
				return "", at(path+".overflow", "model %s: %w", m.Name, err)
			}
		}
		switch m.Engine {
		case "llama":
			if err := c.checkGGUF(m); err != nil {
				return "", at(path+".gguf", "model %s: %w", m.Name, err)
			}
			if _, err := c.library(); err != nil {
				warning = err.Error()
			}
		case "command":
			if _, err := exec.LookPath(m.Command[0]); err != nil {
				return "", at(path+".command", "model %s: %w", m.Name, err)
			}
		}
	}
	return warning, nil
}

func (c *Config) checkGGUF(m *ModelConfig) error {
	if name, builtin := strings.CutPrefix(m.GGUF, "builtin:"); builtin {
		if _, err := configs.Models.Open("models/" + name); err != nil {
			return fmt.Errorf("there is no built-in file %q", name)
		}
		return nil
	}
	_, err := llama.ReadGGUF(c.file(m.GGUF))
	return err
}

func (s *server) checkPool() (string, error) {
	c := s.conf.Pool
	o := pool.Options{Launcher: pool.Exec{}, Publish: func(string, []pool.ReadyReplica) {}, OnEvent: func(pool.Event) {},
		StartTimeout: c.StartTimeout, DrainTimeout: c.DrainTimeout, StopGrace: c.StopGrace, BackoffMin: c.BackoffMin, BackoffMax: c.BackoffMax}
	if err := o.Validate(); err != nil {
		return "", at("pool", "%w", err)
	}
	return "", nil
}
