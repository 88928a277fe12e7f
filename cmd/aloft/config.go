package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/caarlos0/env/v11"
	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/parser"

	"aloft/configs"
	"aloft/gpu/simulated"
)

// Config is a configuration file. Flags > environment > file > defaults.
type Config struct {
	Listen  string        `yaml:"listen"`
	Log     LogConfig     `yaml:"log"`
	Node    NodeConfig    `yaml:"node"`
	Engine  EngineConfig  `yaml:"engine"`
	Models  []ModelConfig `yaml:"models"`
	Arbiter ArbiterConfig `yaml:"arbiter"`
	Pool    PoolConfig    `yaml:"pool"`
	Jobs    JobsConfig    `yaml:"jobs"`
	Gateway GatewayConfig `yaml:"gateway"`

	path string // the file, for messages and relative paths; "" = built in
	data string // the data folder, from the environment or a flag
	text []byte // of the file, for the lines of messages

	sides map[string]side // of the models that are variants or have one in their place; see withVariants
}

// LogConfig is the log's level (debug, info, warn, error) and format (text, json).
type LogConfig struct {
	Level  string `yaml:"level"`
	Format string `yaml:"format"`
}

// NodeConfig says which devices to use.
type NodeConfig struct {
	Devices   string         `yaml:"devices"` // auto, nvml, simulated
	Simulated []SimulatedGPU `yaml:"simulated"`
	Price     float64        `yaml:"price"` // USD per GPU-hour; slices by their weight
}

// SimulatedGPU is one modelled GPU.
type SimulatedGPU struct {
	Family string   `yaml:"family"`
	Model  string   `yaml:"model"`
	Bytes  int64    `yaml:"bytes"`
	Layout []string `yaml:"layout"`
}

// EngineConfig says where llama.cpp's shared libraries are.
type EngineConfig struct {
	Library string `yaml:"library"`
}

// ModelConfig is one served model.
type ModelConfig struct {
	Name         string   `yaml:"name"`
	Aliases      []string `yaml:"aliases"`
	Engine       string   `yaml:"engine"` // llama, synthetic, command
	Files        `yaml:",inline"`
	Command      []string          `yaml:"command"` // engine command: argument list with {port}
	Env          map[string]string `yaml:"env"`
	Sleep        string            `yaml:"sleep"` // engine command: http or pause
	Endpoints    []string          `yaml:"endpoints"`
	Shape        string            `yaml:"shape"`
	LimitsConfig `yaml:",inline"`
	Slots        int             `yaml:"slots"`
	Context      int             `yaml:"context"`
	Memory       int64           `yaml:"memory"` // bytes that an engine needs free on its slice before it starts; 0 = it just starts
	Target       time.Duration   `yaml:"target"`
	Batch        BatchConfig     `yaml:"batch"`
	Law          LawConfig       `yaml:"law"`      // engine synthetic
	Adapters     []string        `yaml:"adapters"` // LoRA, asked for as MODEL:ADAPTER; the engine has them by these names
	Affinity     AffinityConfig  `yaml:"affinity"`
	Hedge        bool            `yaml:"hedge"` // ask a second replica when a short unary call is slower than its p95
	Overflow     *OverflowConfig `yaml:"overflow"`
}

// Files are a model's files.
type Files struct {
	GGUF      string `yaml:"gguf"`
	Tokenizer string `yaml:"tokenizer"` // tokenizer.json, its folder, or a GGUF file: what tokens are counted by; "" = found by itself
}

// ReplicasConfig bounds a model's replicas.
type ReplicasConfig struct {
	Min int `yaml:"min"`
	Max int `yaml:"max"`
}

// BatchConfig is for those who insist; everything has a measured default.
type BatchConfig struct {
	Off       bool          `yaml:"off"`
	MaxRows   int           `yaml:"max_batch_size"`
	MaxTokens int           `yaml:"max_tokens"`
	MaxDelay  time.Duration `yaml:"max_queue_delay"`
	MaxQueue  int           `yaml:"max_queue"`
	KVTokens  int           `yaml:"kv_tokens"` // of a replica's KV cache; 0 = its engine says it
}

// LawConfig is the timed engine's law on the model's shape: T = alpha + beta ×
// tokens. On a larger slice it is faster in proportion; without a shape it is
// the same everywhere.
type LawConfig struct {
	Alpha time.Duration `yaml:"alpha"`
	Beta  time.Duration `yaml:"beta"` // per token
}

// PoolConfig bounds the steps of a replica.
type PoolConfig struct {
	StartTimeout time.Duration `yaml:"start_timeout"`
	DrainTimeout time.Duration `yaml:"drain_timeout"`
	StopGrace    time.Duration `yaml:"stop_grace"`
	BackoffMin   time.Duration `yaml:"backoff_min"`
	BackoffMax   time.Duration `yaml:"backoff_max"`
}

// JobsConfig says what may run and how much of it.
type JobsConfig struct {
	BatchWidth int              `yaml:"batch_width"`   // slices a batch may borrow at once
	BatchRows  int              `yaml:"batch_rows"`    // rows under way per replica
	Blobs      string           `yaml:"blobs"`         // bucket URL; "" = a folder below the data folder
	Free       bool             `yaml:"free_commands"` // admins may submit programs of their own
	KeepFor    time.Duration    `yaml:"keep_for"`      // finished jobs, unless they or their template say otherwise
	Sessions   SessionsConfig   `yaml:"sessions"`
	Suspend    SuspendConfig    `yaml:"suspend"`
	Users      UsersConfig      `yaml:"users"`
	Templates  []TemplateConfig `yaml:"templates"`
	Schedules  []ScheduleConfig `yaml:"schedules"`
}

// Process is what the environment sets; empty means not set.
type Process struct {
	Config  string `env:"ALOFT_CONFIG"`
	Listen  string `env:"ALOFT_LISTEN"`
	Data    string `env:"ALOFT_DATA"`
	Level   string `env:"ALOFT_LOG_LEVEL"`
	Format  string `env:"ALOFT_LOG_FORMAT"`
	Library string `env:"ALOFT_ENGINE_LIB"`
}

func environment() (Process, error) {
	var p Process
	if err := env.Parse(&p); err != nil {
		return p, fmt.Errorf("read ALOFT_* variables: %w", err)
	}
	return p, nil
}

// defaults are what a file need not say.
func defaults() Config {
	return Config{
		Listen: "127.0.0.1:8080",
		Log:    LogConfig{Level: "info", Format: "text"},
		Node:   NodeConfig{Devices: "auto", Simulated: []SimulatedGPU{{Family: "A100-80GB", Layout: slices.Repeat([]string{"1g.10gb"}, 7)}}},
		Arbiter: ArbiterConfig{Mode: "lend", Risk: "normal", Guard: 500 * time.Millisecond, Plan: 10 * time.Second,
			Hold: 30 * time.Second, AfterReclaim: 60 * time.Second, MinSamples: 100, Rho: 0.8, Window: 30 * time.Second,
			RiseQuantile: 0.999, FastHorizon: 5 * time.Second, SlowHorizon: 35 * time.Second,
			LendAbove: 0.35, ReclaimBelow: 0.15, Spare: 1, MaxEta: 0.8, AgeEvery: time.Hour,
			Budget: BudgetConfig{Detect: time.Second, Kill: 5 * time.Second, Back: 30 * time.Second}},
		Pool: PoolConfig{StartTimeout: 5 * time.Minute, DrainTimeout: 30 * time.Second, StopGrace: 5 * time.Second,
			BackoffMin: time.Second, BackoffMax: time.Minute},
		Jobs:    JobsConfig{BatchWidth: 1, BatchRows: 32},
		Gateway: defaultGateway(),
	}
}

// loadConfig reads a file ("" = the built-in quick start) over the defaults.
func loadConfig(path string) (*Config, error) {
	text := configs.Quickstart
	if path != "" {
		var err error
		if text, err = os.ReadFile(path); err != nil {
			return nil, fmt.Errorf("read configuration: %w", err)
		}
	}
	c, err := parseConfig(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", configName(path), err)
	}
	c.path = path
	return c, nil
}

func configName(path string) string {
	if path == "" {
		return "built-in quick start"
	}
	return path
}

// parseConfig decodes and checks. Unknown keys are errors, and every error
// names its line.
func parseConfig(text []byte) (*Config, error) {
	c := defaults()
	if err := yaml.UnmarshalWithOptions(text, &c, yaml.Strict()); err != nil {
		return nil, locate(text, strings.TrimSpace(yaml.FormatError(err, false, false)))
	}
	for i := range c.Models {
		c.Models[i].fill()
	}
	c.text = text
	if err := c.validate(); err != nil {
		return nil, c.line(err)
	}
	return &c, nil
}

// line adds the line of the mistake to an error that knows its place.
func (c *Config) line(err error) error {
	var at *atError
	if errors.As(err, &at) {
		if line := lineOf(c.text, at.path); line > 0 {
			return fmt.Errorf("line %d: %w", line, err)
		}
	}
	return err
}

// located adds the file, too.
func (c *Config) located(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", configName(c.path), c.line(err))
}

// noUnit is the decoder's message about a duration that is a number.
var noUnit = regexp.MustCompile(`^\[(\d+):\d+\] cannot unmarshal \S+ into .* of type time\.Duration`)

// locate says what is wrong with a duration, and adds the line to a message that
// has none, by the value that it quotes.
func locate(text []byte, message string) error {
	if m := noUnit.FindStringSubmatch(message); m != nil {
		return fmt.Errorf("line %s: a number is no duration, want for example 500ms or 10s", m[1])
	}
	if _, rest, ok := strings.Cut(message, `invalid duration "`); ok {
		value, _, _ := strings.Cut(rest, `"`)
		for i, line := range strings.Split(string(text), "\n") {
			if strings.Contains(line, value) {
				return fmt.Errorf("line %d: %q is no duration, want for example 500ms or 10s", i+1, value)
			}
		}
	}
	return errors.New(message)
}

// atError is a mistake at a YAML path.
type atError struct {
	path string
	err  error
}

func (e *atError) Error() string { return strings.TrimPrefix(e.path, "$.") + ": " + e.err.Error() }
func (e *atError) Unwrap() error { return e.err }

func at(path, format string, args ...any) error {
	return &atError{"$." + path, fmt.Errorf(format, args...)}
}

// lineOf finds the line of a path, or of the nearest parent that the file has.
func lineOf(text []byte, path string) int {
	file, err := parser.ParseBytes(text, 0)
	if err != nil {
		return 0
	}
	for path != "$" {
		if p, err := yaml.PathString(path); err == nil {
			if node, err := p.FilterFile(file); err == nil && node != nil {
				return node.GetToken().Position.Line
			}
		}
		path = path[:strings.LastIndexAny(path, ".[")]
	}
	return 0
}

func (m *ModelConfig) fill() {
	if m.Replicas.Max == 0 {
		m.Replicas.Max = max(1, m.Replicas.Min)
	}
	if m.Slots == 0 {
		m.Slots = 1
		if !m.merges() {
			m.Slots = 8
		}
	}
	if m.Target == 0 {
		m.Target = time.Second
	}
}

func (c *Config) validate() error {
	if len(c.Models) == 0 {
		return at("models", "no model is configured; want at least one")
	}
	names := map[string]bool{}
	for i, m := range c.Models {
		if err := m.validate(fmt.Sprintf("models[%d]", i)); err != nil {
			return err
		}
		for _, n := range append([]string{m.Name}, m.Aliases...) {
			if names[n] {
				return at(fmt.Sprintf("models[%d].name", i), "%q is used twice", n)
			}
			names[n] = true
		}
	}
	if !slices.Contains([]string{"auto", "nvml", "simulated"}, c.Node.Devices) {
		return at("node.devices", "%q, want auto, nvml or simulated", c.Node.Devices)
	}
	if c.Node.Price < 0 {
		return at("node.price", "%g, want 0 or more", c.Node.Price)
	}
	if err := c.simulated().Validate(); err != nil {
		return at("node.simulated", "%w", err)
	}
	if _, err := logLevel(c.Log.Level); err != nil {
		return at("log.level", "%w", err)
	}
	if c.Log.Format != "text" && c.Log.Format != "json" {
		return at("log.format", "%q, want text or json", c.Log.Format)
	}
	if err := c.policy(time.Time{}).Validate(); err != nil {
		return at("arbiter", "%w", err)
	}
	if err := c.Arbiter.validate(c); err != nil {
		return err
	}
	if err := c.validateJobs(); err != nil {
		return err
	}
	return c.Gateway.validate()
}

func (m *ModelConfig) validate(path string) error {
	if m.Name == "" {
		return at(path+".name", "no name")
	}
	switch m.Engine {
	case "llama":
		if m.GGUF == "" {
			return at(path+".gguf", "engine llama needs a GGUF file")
		}
	case "synthetic":
	case "command":
		if len(m.Command) == 0 {
			return at(path+".command", "engine command needs an argument list")
		}
		if m.Sleep != "http" && m.Sleep != "pause" {
			return at(path+".sleep", "%q, want http or pause", m.Sleep)
		}
	default:
		return at(path+".engine", "unknown engine %q, want llama, synthetic or command", m.Engine)
	}
	if err := m.validateEndpoints(path + ".endpoints"); err != nil {
		return err
	}
	if err := m.validateAdapters(path + ".adapters"); err != nil {
		return err
	}
	r := m.Replicas
	if r.Min < 0 || r.Max < r.Min {
		return at(path+".replicas", "min %d, max %d, want 0 <= min <= max", r.Min, r.Max)
	}
	if m.Slots < 1 || m.Context < 0 || m.Memory < 0 || m.Target < 0 {
		return at(path, "slots must be at least 1; context, memory and target must not be negative")
	}
	if m.Law.Alpha < 0 || m.Law.Beta < 0 {
		return at(path+".law", "alpha %v, beta %v, want none negative", m.Law.Alpha, m.Law.Beta)
	}
	return nil
}

func (c *Config) simulated() simulated.Options {
	var o simulated.Options
	for _, g := range c.Node.Simulated {
		o.GPUs = append(o.GPUs, simulated.GPU{Family: g.Family, Model: g.Model, Bytes: g.Bytes, Layout: g.Layout})
	}
	return o
}

// file resolves a path of the configuration: relative to the file it stands in.
func (c *Config) file(p string) string {
	if filepath.IsAbs(p) || c.path == "" {
		return p
	}
	return filepath.Join(filepath.Dir(c.path), p)
}
