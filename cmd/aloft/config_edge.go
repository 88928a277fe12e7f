package main

import (
	"slices"
	"strings"
	"time"

	"aloft/backends"
)

// GatewayConfig limits the edge.
type GatewayConfig struct {
	KeyFile        string        `yaml:"key_file"` // watched; "" = keys.yaml in the data folder
	TLS            TLSConfig     `yaml:"tls"`
	Insecure       bool          `yaml:"insecure"` // serve a public address without keys or without TLS
	CORS           []string      `yaml:"cors"`     // origins that browsers may call from; "*" = all
	MaxBody        int           `yaml:"max_body"`
	MaxFile        int64         `yaml:"max_file"`
	Connections    int           `yaml:"connections"` // in all
	PerAddress     int           `yaml:"connections_per_address"`
	Timeouts       TimeoutConfig `yaml:"timeouts"`
	DrainGrace     time.Duration `yaml:"drain_grace"`
	PrivateMetrics bool          `yaml:"private_metrics"` // /metrics wants an admin key
	AccessLog      float64       `yaml:"access_log"`      // share of the successful requests that are logged, 0 to 1
	Cache          int64         `yaml:"embedding_cache"` // bytes; 0 = off
}

// TLSConfig names PEM files; they are read again when they change.
type TLSConfig struct {
	Cert string `yaml:"cert"`
	Key  string `yaml:"key"`
}

// TimeoutConfig has one deadline for each thing that can be slow.
type TimeoutConfig struct {
	Header     time.Duration `yaml:"header"`      // to read a request's head
	Body       time.Duration `yaml:"body"`        // to read its body
	Upload     time.Duration `yaml:"upload"`      // to read a file
	Write      time.Duration `yaml:"write"`       // to write a reply, or one event of a stream
	Idle       time.Duration `yaml:"idle"`        // between two requests of a connection
	Connect    time.Duration `yaml:"connect"`     // to reach an engine
	FirstByte  time.Duration `yaml:"first_byte"`  // from the call to an engine's first byte
	StreamIdle time.Duration `yaml:"stream_idle"` // between two events of an engine
	Request    time.Duration `yaml:"request"`     // from arrival to the last byte
}

// AffinityConfig sends requests that belong together to one replica, as long as
// the others have not much less to do.
type AffinityConfig struct {
	Session bool `yaml:"session"` // by X-Session-Id or prompt_cache_key
	Prefix  bool `yaml:"prefix"`  // by the prompt's leading blocks
}

// OverflowConfig is an external OpenAI-compatible provider that serves a model's
// requests when no replica can in time.
type OverflowConfig struct {
	URL    string  `yaml:"url"`          // https://HOST/v1 without the /v1
	KeyEnv string  `yaml:"key_env"`      // environment variable with the provider's key
	Model  string  `yaml:"model"`        // what the provider calls it; "" = as here
	Input  float64 `yaml:"input_price"`  // USD per million prompt tokens
	Output float64 `yaml:"output_price"` // USD per million generated tokens
	Budget float64 `yaml:"budget"`       // USD per calendar month (UTC)
}

func defaultGateway() GatewayConfig {
	return GatewayConfig{
		MaxBody: 32 << 20, MaxFile: 200 << 20, Connections: 20000, AccessLog: 1, DrainGrace: 20 * time.Second,
		Timeouts: TimeoutConfig{Header: 10 * time.Second, Body: 30 * time.Second, Upload: 10 * time.Minute, Write: 30 * time.Second,
			Idle: 2 * time.Minute, Connect: 2 * time.Second, FirstByte: 2 * time.Minute, StreamIdle: time.Minute, Request: 10 * time.Minute},
	}
}

// besideEmbeddings are the endpoints that may share a model with embeddings:
// none holds a slot, and engines that pool serve several of them.
var besideEmbeddings = []backends.Endpoint{backends.Embeddings, backends.Tokenize, backends.Detokenize, backends.Rerank,
	backends.Score, backends.Classify, backends.Moderations}

// ownEndpoints are what the embedded and the timed engine answer.
var ownEndpoints = []backends.Endpoint{backends.Embeddings, backends.Chat, backends.Completions}

func (m *ModelConfig) validateEndpoints(path string) error {
	if len(m.Endpoints) == 0 {
		return at(path, "no endpoints, want embeddings or chat, completions")
	}
	allowed := backends.Endpoints()
	if m.Engine != "command" {
		allowed = ownEndpoints
	}
	for _, e := range m.Endpoints {
		switch e := backends.Endpoint(e); {
		case !e.Known():
			return at(path, "unknown endpoint %q, want some of %s", e, listed(backends.Endpoints()))
		case !slices.Contains(allowed, e):
			return at(path, "engine %s does not serve %s, want some of %s", m.Engine, e, listed(allowed))
		case m.embeds() && e.Generates():
			return at(path, "embeddings are batched, generation is not: give them a model each")
		case m.embeds() && !slices.Contains(besideEmbeddings, e):
			return at(path, "embeddings and %s cannot share a model, want some of %s", e, listed(besideEmbeddings))
		}
	}
	return nil
}

// listed puts endpoints into an error message.
func listed(es []backends.Endpoint) string {
	words := make([]string, len(es))
	for i, e := range es {
		words[i] = string(e)
	}
	return strings.Join(words, ", ")
}

func (m *ModelConfig) validateAdapters(path string) error {
	for i, a := range m.Adapters {
		if a == "" || slices.Contains(m.Adapters[:i], a) {
			return at(path, "adapter %q is empty or there twice", a)
		}
	}
	return nil
}

func (m *ModelConfig) embeds() bool { return slices.Contains(m.Endpoints, string(backends.Embeddings)) }

// merges reports whether calls of m are batched across clients: it has an endpoint
// that is, and none that holds a slot.
func (m *ModelConfig) merges() bool {
	merged := false
	for _, e := range m.Endpoints {
		e := backends.Endpoint(e)
		merged = merged || e.Merged()
		if !slices.Contains(besideEmbeddings, e) {
			return false
		}
	}
	return merged
}
