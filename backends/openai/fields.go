package openai

import (
	"math/bits"

	"aloft/backends"
)

// fields is a set of the top-level keys that routing looks at. A set of bits,
// since it is filled for every request.
type fields uint32

const (
	fieldModel fields = 1 << iota
	fieldStream
	fieldStreamOptions
	fieldMaxTokens
	fieldMaxCompletionTokens
	fieldMaxOutputTokens
	fieldN
	fieldCacheKey
	fieldMessages
	fieldInput
	fieldPrompt
	fieldDimensions
	fieldEncoding
	fieldTokens
	fieldQuery
	fieldDocuments
	fieldText1
	fieldText2
	fieldQueries
	fieldData1
	fieldData2
	fieldSystem
	fieldInstructions
	fieldItems
	fieldServiceTier
)

var fieldNames = [...]string{
	"model", "stream", "stream_options", "max_tokens", "max_completion_tokens", "max_output_tokens", "n",
	"prompt_cache_key", "messages", "input", "prompt", "dimensions", "encoding_format", "tokens", "query",
	"documents", "text_1", "text_2", "queries", "data_1", "data_2", "system", "instructions", "items", "service_tier",
}

// fieldOf is the set with key alone, or the empty one.
func fieldOf(key string) fields {
	for i, name := range fieldNames {
		if name == key {
			return 1 << i
		}
	}
	return 0
}

// first names one field of the set.
func (f fields) first() string { return fieldNames[bits.TrailingZeros32(uint32(f))] }

// rule says which keys an endpoint must and may have, of those that matter here.
type rule struct{ required, optional fields }

const generation = fieldStream | fieldN | fieldCacheKey | fieldServiceTier

// rules follow the API references of OpenAI and Anthropic, and vLLM's for what
// both lack. A score's pair goes by several names there; which of them is given
// is the engine's to judge.
var rules = map[backends.Endpoint]rule{
	backends.Chat:        {fieldModel | fieldMessages, generation | fieldStreamOptions | fieldMaxTokens | fieldMaxCompletionTokens},
	backends.Completions: {fieldModel | fieldPrompt, generation | fieldStreamOptions | fieldMaxTokens},
	backends.Embeddings:  {fieldModel | fieldInput, fieldEncoding | fieldDimensions | fieldServiceTier},
	backends.Responses:   {fieldModel | fieldInput, fieldInstructions | fieldStream | fieldCacheKey | fieldMaxOutputTokens | fieldServiceTier},
	backends.Messages:    {fieldModel | fieldMessages | fieldMaxTokens, fieldSystem | fieldStream},
	backends.Rerank:      {fieldModel | fieldQuery | fieldDocuments, 0},
	backends.Score:       {fieldModel, fieldText1 | fieldText2 | fieldQueries | fieldDocuments | fieldData1 | fieldData2 | fieldItems | fieldQuery},
	backends.Classify:    {fieldModel, fieldInput | fieldMessages},
	backends.Moderations: {fieldInput, fieldModel},
	backends.Speech:      {fieldModel | fieldInput, fieldStream},
	backends.Images:      {fieldPrompt, fieldModel | fieldStream | fieldN},
	backends.Tokenize:    {fieldModel, fieldPrompt | fieldMessages},
	backends.Detokenize:  {fieldModel | fieldTokens, 0},
}
