package loadgen

import "time"

// Kind names what a workload asks of the server.
type Kind string

// The kinds of workload.
const (
	Embeddings  Kind = "embeddings"
	Chat        Kind = "chat"
	Completions Kind = "completions"
	Responses   Kind = "responses"
	Rerank      Kind = "rerank"
	Batch       Kind = "batch" // uploads a file of rows and creates a batch: the time is that until it is accepted
	Job         Kind = "job"   // POST /aloft/v1/jobs, likewise
)

// path is the route below the base URL.
func (k Kind) path() string {
	switch k {
	case Chat:
		return "/v1/chat/completions"
	case Completions:
		return "/v1/completions"
	case Responses:
		return "/v1/responses"
	case Rerank:
		return "/v1/rerank"
	case Batch:
		return "/v1/batches"
	case Job:
		return "/aloft/v1/jobs"
	}
	return "/v1/embeddings"
}

// Content is what the requests of a workload are made of.
type Content struct {
	// Texts are what inputs and prompts are drawn from; none means a few dozen
	// built-in sentences. Corpus is a file to take them from instead, one a line.
	Texts  []string `yaml:"texts,omitempty"`
	Corpus string   `yaml:"corpus,omitempty"`
	// Inputs is the number of texts in one embeddings call (or documents of a
	// rerank, rows of a batch); 0 means 1.
	Inputs int `yaml:"inputs,omitempty"`
	// Encoding asks for embeddings as float or base64; "" leaves it to the server.
	Encoding string `yaml:"encoding,omitempty"`
	// Rows is the kind of a batch's rows; "" means embeddings.
	Rows Kind `yaml:"rows,omitempty"`
	// Template and Params are those of a job.
	Template string            `yaml:"template,omitempty"`
	Params   map[string]string `yaml:"params,omitempty"`
	// InputTokens is how long each text is made, in tokens; nil: as it is.
	// OutputTokens is max_tokens of each request; nil: MaxTokens. A replayed
	// trace's own sizes stand before both.
	InputTokens  *Dist `yaml:"input_tokens,omitempty"`
	OutputTokens *Dist `yaml:"output_tokens,omitempty"`
	// BytesPerToken turns token lengths into text; 0 means 4. What the server
	// counted is in the report.
	BytesPerToken float64 `yaml:"bytes_per_token,omitempty"`
	// Prefix gives prompts a beginning that several share.
	Prefix *Prefix `yaml:"prefix,omitempty"`
	// Requests is a JSONL file of whole request bodies that are sent in turn
	// instead, with "model" and "stream" set by the workload.
	Requests string `yaml:"requests,omitempty"`
}

// Prefix is a pool of shared beginnings.
type Prefix struct {
	Pool   int     `yaml:"pool"`   // how many different ones
	Tokens int     `yaml:"tokens"` // length of each
	Share  float64 `yaml:"share"`  // of requests that have one, 0 to 1
}

// Goal is what a good request may take, from its intended start; 0 means no
// such target.
type Goal struct {
	Target     time.Duration `yaml:"target,omitempty"`      // to the end of the answer
	TTFTTarget time.Duration `yaml:"ttft_target,omitempty"` // to its first token
	TPOTTarget time.Duration `yaml:"tpot_target,omitempty"` // mean time of each further token
	// TTFBTarget is to the first byte, RoleTarget to the first chunk of a stream,
	// and VisibleTarget to the first token that a reader sees; an answer without
	// such a token is held to the others alone.
	TTFBTarget    time.Duration `yaml:"ttfb_target,omitempty"`
	RoleTarget    time.Duration `yaml:"role_target,omitempty"`
	VisibleTarget time.Duration `yaml:"visible_target,omitempty"`
	// ITLTarget and GapTarget bound what an answer has many of: its longest token
	// and its longest gap between reads with content.
	ITLTarget time.Duration `yaml:"itl_target,omitempty"`
	GapTarget time.Duration `yaml:"gap_target,omitempty"`
	// Smooth bounds how late the worst token may be against a playback that
	// starts with the first token and goes on at TPOTTarget (0: 50 ms a token):
	// a server that holds tokens back, or drops some, cannot win by its mean.
	Smooth time.Duration `yaml:"smooth_target,omitempty"`
}

// Tenant is one of those who send a workload.
type Tenant struct {
	Name     string        `yaml:"name"`
	Share    float64       `yaml:"share"`              // of the arrivals, relative to the others'
	Key      string        `yaml:"key,omitempty"`      // "" = the workload's
	Class    string        `yaml:"class,omitempty"`    // x-aloft-priority: interactive, standard, offline
	Deadline time.Duration `yaml:"deadline,omitempty"` // x-aloft-deadline-ms
	Goal     *Goal         `yaml:"goal,omitempty"`     // nil = the workload's
}

// Sessions makes each planned arrival the first turn of a conversation: every
// further turn is meant to start Think after the end of the answer before it,
// and sends the whole history.
type Sessions struct {
	Turns Dist          `yaml:"turns"`
	Think time.Duration `yaml:"think"`                // mean, exponential
	Most  time.Duration `yaml:"most_think,omitempty"` // cut at; 0 = 4 times Think
}

// Abandon makes a share of the clients leave before the answer is whole. One that
// had waited past a target makes its request late; the others are counted apart
// and not among the offered, for they say nothing of the server.
type Abandon struct {
	Share float64       `yaml:"share"`
	After time.Duration `yaml:"after"` // from the intended start; 0 = at the target
}

// Retry has refused requests (429, 503) sent again, as clients with a back-off
// do. What is sent again is counted apart as extra offered load; the request
// keeps its first intended start.
type Retry struct {
	Most   int           `yaml:"most"`             // attempts after the first
	Base   time.Duration `yaml:"base,omitempty"`   // first pause, doubled each time; 0 = 500 ms
	Jitter float64       `yaml:"jitter,omitempty"` // share of the pause drawn at random, 0 to 1
	// Obey does what the server's headers say, as the clients of OpenAI do: wait
	// for retry-after-ms, else Retry-After, and try again where x-should-retry is
	// true, whatever the status, and not where it is false.
	Obey bool `yaml:"obey,omitempty"`
}
