package backends

// Endpoint names an API route by what an engine has to do for it.
type Endpoint string

// The endpoints that Aloft serves. Each request names its model, and goes to
// an engine of that model as the client wrote it.
const (
	Chat           Endpoint = "chat"
	Completions    Endpoint = "completions"
	Embeddings     Endpoint = "embeddings"
	Responses      Endpoint = "responses"
	Messages       Endpoint = "messages" // Anthropic's
	Rerank         Endpoint = "rerank"
	Score          Endpoint = "score"
	Classify       Endpoint = "classify"
	Moderations    Endpoint = "moderations"
	Transcriptions Endpoint = "transcriptions"
	Translations   Endpoint = "translations"
	Speech         Endpoint = "speech"
	Images         Endpoint = "images"
	Tokenize       Endpoint = "tokenize"
	Detokenize     Endpoint = "detokenize"
)

// route is what an endpoint looks like on the wire.
type route struct {
	endpoint Endpoint
	engine   string   // the engine's path, where it is not the client's
	paths    []string // ours; the first is the usual one
	form     bool     // multipart/form-data instead of JSON
}

// routes are the paths of OpenAI, and of vLLM, SGLang and TEI for what OpenAI lacks.
var routes = []route{
	{endpoint: Chat, paths: []string{"/v1/chat/completions"}},
	{endpoint: Completions, paths: []string{"/v1/completions"}},
	{endpoint: Embeddings, paths: []string{"/v1/embeddings"}},
	{endpoint: Responses, paths: []string{"/v1/responses"}},
	{endpoint: Messages, paths: []string{"/v1/messages"}},
	{endpoint: Rerank, paths: []string{"/v1/rerank", "/v2/rerank", "/rerank"}},
	{endpoint: Score, paths: []string{"/v1/score", "/score"}},
	{endpoint: Classify, paths: []string{"/v1/classify", "/classify"}, engine: "/classify"},
	{endpoint: Moderations, paths: []string{"/v1/moderations"}},
	{endpoint: Transcriptions, paths: []string{"/v1/audio/transcriptions"}, form: true},
	{endpoint: Translations, paths: []string{"/v1/audio/translations"}, form: true},
	{endpoint: Speech, paths: []string{"/v1/audio/speech"}},
	{endpoint: Images, paths: []string{"/v1/images/generations"}},
	{endpoint: Tokenize, paths: []string{"/tokenize"}},
	{endpoint: Detokenize, paths: []string{"/detokenize"}},
}

func (e Endpoint) route() *route {
	for i := range routes {
		if routes[i].endpoint == e {
			return &routes[i]
		}
	}
	panic("BUG: no endpoint " + string(e))
}

// Endpoints lists all of them.
func Endpoints() []Endpoint {
	out := make([]Endpoint, len(routes))
	for i, r := range routes {
		out[i] = r.endpoint
	}
	return out
}

// Known reports whether e is one of Endpoints.
func (e Endpoint) Known() bool {
	for i := range routes {
		if routes[i].endpoint == e {
			return true
		}
	}
	return false
}

// Path returns the usual route, for example "/v1/embeddings".
func (e Endpoint) Path() string { return e.route().paths[0] }

// Paths returns every route that clients may use.
func (e Endpoint) Paths() []string { return e.route().paths }

// EnginePath is where an engine answers what came in on path.
func (e Endpoint) EnginePath(path string) string {
	if r := e.route(); r.engine != "" {
		return r.engine
	}
	return path
}

// Form reports whether the body is multipart/form-data, not JSON.
func (e Endpoint) Form() bool { return e.route().form }

// Generates reports whether an answer is generated token by token, and so holds
// a slot of its replica.
func (e Endpoint) Generates() bool {
	switch e {
	case Chat, Completions, Responses, Messages:
		return true
	}
	return false
}

// Marked reports whether a stream of e says that it is complete
// (openai.Chunk.Last): one that ends without is broken. The streams of other
// endpoints end with their connection.
func (e Endpoint) Marked() bool { return e.Generates() }

// Merged reports whether calls of several clients may share one engine call, if
// their inputs have a shape that can be taken apart again. Generation is never
// merged: engines batch it better. Nor is a rerank: two queries are two calls.
func (e Endpoint) Merged() bool {
	switch e {
	case Embeddings, Classify, Moderations, Score:
		return true
	}
	return false
}
