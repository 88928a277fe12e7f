package openai

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"

	"aloft/backends"

	"github.com/tidwall/gjson"
)

// AppendMergedEmbeddings appends one request over the rows of all reqs, in
// order, of which there is one at least. Their MergeKeys must agree. Model, options
// and encoding are those of reqs[0]: callers of one moment mostly use the same SDK,
// so mostly nothing needs converting; "user" stays behind, since the rows are not
// all that user's.
func AppendMergedEmbeddings(dst []byte, reqs []*backends.Request) []byte {
	dst = append(dst, `{"input":[`...)
	n := 0
	for _, req := range reqs {
		for _, row := range req.Inputs {
			if n++; n > 1 {
				dst = append(dst, ',')
			}
			dst = append(dst, row...)
		}
	}
	dst = append(dst, ']')
	w := walk{data: reqs[0].Body}
	w.enter('{')
	for key := w.key(); key != nil; key = w.key() {
		v := w.skip()
		if name := text(key); name == "model" || name == "encoding_format" || !perCaller(name) {
			dst = append(append(dst, ','), key...)
			dst = append(append(dst, ':'), v...)
		}
	}
	return append(dst, '}')
}

// Apportion divides the engine's token count over shares, which are ours, in
// proportion, so that they sum to it; total < 0 (not said): ours stand.
func Apportion(shares []int, total int) {
	sum, before, given := 0, 0, 0
	for _, n := range shares {
		sum += n
	}
	if total < 0 || sum == 0 {
		return
	}
	for i, n := range shares {
		before += n
		shares[i] = int(int64(total)*int64(before)/int64(sum)) - given
		given += shares[i]
	}
}

// RowTokens is the size of each row, for the caller to change: a request that
// was not counted by rows has its total spread over them, at least one each.
func RowTokens(r *backends.Request) []int {
	if len(r.InputTokens) == len(r.Inputs) {
		return slices.Clone(r.InputTokens)
	}
	shares := slices.Repeat([]int{1}, len(r.Inputs))
	Apportion(shares, max(r.Tokens, len(r.Inputs)))
	return shares
}

// SplitEmbeddings returns the raw embedding of each row (an array of numbers or
// a base64 string, aliasing reply) in index order, and the prompt tokens that
// the engine counted, -1 if it did not say. A reply in which not every index
// from 0 to rows-1 appears exactly once is an error: guessing would hand one
// caller another's vector (docs/failures.md F8). Errors wrap
// backends.ErrBadReply.
func SplitEmbeddings(reply []byte, rows int) ([][]byte, int, error) {
	if valid(reply) != nil {
		return nil, -1, fmt.Errorf("embeddings reply of %d bytes is no JSON object: %w", len(reply), backends.ErrBadReply)
	}
	out, tokens := make([][]byte, rows), -1
	var data walk
	w := walk{data: reply}
	w.enter('{')
	for key := w.key(); key != nil; key = w.key() {
		switch text(key) {
		case "data":
			data.data = w.skip()
		case "usage":
			if u, ok := usage(&w); ok {
				tokens = u.Prompt
			}
		default:
			w.skip()
		}
	}
	if !data.enter('[') {
		return nil, -1, fmt.Errorf("embeddings reply has no data array: %w", backends.ErrBadReply)
	}
	n := 0
	for ; data.item(); n++ {
		if err := splitRow(&data, out); err != nil {
			return nil, -1, err
		}
	}
	if n != rows {
		return nil, -1, fmt.Errorf("embeddings reply has %d rows, want %d: %w", n, rows, backends.ErrBadReply)
	}
	return out, tokens, nil
}

// ErrDimensions is an answer of an engine that ignored "dimensions".
var ErrDimensions = fmt.Errorf("the model's engine did not honour 'dimensions': %w", backends.ErrBadReply)

// CheckDimensions holds the vectors that SplitEmbeddings returned to the length
// that was asked for; 0 = none. Cutting a longer one would be right only for a
// model that was trained for it, which nobody here knows. Errors wrap
// ErrDimensions, or backends.ErrBadReply for what is no vector.
func CheckDimensions(rows [][]byte, want int) error {
	if want == 0 {
		return nil
	}
	for i, row := range rows {
		n := 0
		if row[0] == '"' {
			bits, err := decodeFloats(row)
			if err != nil {
				return fmt.Errorf("row %d: %w", i, err)
			}
			n = len(bits) / 4
		} else {
			w := walk{data: row}
			for w.enter('['); w.item(); n++ {
				w.skip()
			}
		}
		if n != want {
			return fmt.Errorf("embedding %d has %d numbers, %d were asked for: %w", i, n, want, ErrDimensions)
		}
	}
	return nil
}

// splitRow takes the next row.
func splitRow(w *walk, out [][]byte) error {
	index, vector := -1, []byte(nil)
	if !w.enter('{') {
		w.skip()
	} else {
		for key := w.key(); key != nil; key = w.key() {
			switch v := w.skip(); text(key) {
			case "index":
				if n, err := strconv.Atoi(alias(v)); err == nil {
					index = n
				}
			case "embedding":
				if (v[0] == '[' || v[0] == '"') && (&walk{data: v}).filled() {
					vector = v
				}
			}
		}
	}
	switch {
	case index < 0 || index >= len(out):
		return fmt.Errorf("embeddings reply has a row with index %d of %d: %w", index, len(out), backends.ErrBadReply)
	case out[index] != nil:
		return fmt.Errorf("embeddings reply has index %d twice: %w", index, backends.ErrBadReply)
	case vector == nil:
		return fmt.Errorf("embeddings reply has no vector at index %d: %w", index, backends.ErrBadReply)
	}
	out[index] = vector
	return nil
}

// EmbeddingsReply is one caller's answer. PromptTokens below 0 is written as 0;
// Base64 is the encoding asked for, else lists of numbers.
type EmbeddingsReply struct {
	Model        string
	PromptTokens int
	Base64       bool
}

// AppendEmbeddings appends a caller's reply over rows that SplitEmbeddings
// returned, indexed from 0. Errors wrap backends.ErrBadReply; dst is then useless.
func AppendEmbeddings(dst []byte, rows [][]byte, r EmbeddingsReply) ([]byte, error) {
	dst = append(dst, `{"object":"list","data":[`...)
	var err error
	for i, row := range rows {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"object":"embedding","index":`...)
		dst = strconv.AppendInt(dst, int64(i), 10)
		dst = append(dst, `,"embedding":`...)
		if dst, err = appendVector(dst, row, r.Base64); err != nil {
			return dst, fmt.Errorf("row %d: %w", i, err)
		}
		dst = append(dst, '}')
	}
	dst = append(dst, `],"model":`...)
	dst = gjson.AppendJSONString(dst, r.Model)
	dst = append(dst, `,"usage":{"prompt_tokens":`...)
	dst = strconv.AppendInt(dst, int64(max(r.PromptTokens, 0)), 10)
	dst = append(dst, `,"total_tokens":`...)
	dst = strconv.AppendInt(dst, int64(max(r.PromptTokens, 0)), 10)
	return append(dst, "}}"...), nil
}

func appendVector(dst, row []byte, base64 bool) ([]byte, error) {
	switch isBase64 := len(row) > 0 && row[0] == '"'; {
	case len(row) == 0:
		return dst, fmt.Errorf("empty embedding: %w", backends.ErrBadReply)
	case isBase64 == base64:
		return append(dst, row...), nil
	case base64:
		return appendBase64(dst, row)
	}
	return appendFloats(dst, row)
}

// appendBase64 turns a JSON array of numbers into little-endian float32, base64.
func appendBase64(dst, row []byte) ([]byte, error) {
	bits := make([]byte, 0, len(row)/2)
	w := walk{data: row}
	for w.enter('['); w.item(); {
		v := w.skip()
		f, err := strconv.ParseFloat(alias(v), 32)
		if err != nil {
			return dst, fmt.Errorf("embedding has %.20q among its numbers: %w", v, backends.ErrBadReply)
		}
		bits = binary.LittleEndian.AppendUint32(bits, math.Float32bits(float32(f)))
	}
	dst = append(dst, '"')
	dst = base64.StdEncoding.AppendEncode(dst, bits)
	return append(dst, '"'), nil
}

// appendFloats turns base64 of little-endian float32 into a JSON array with the
// shortest digits that give the same float32 back.
func appendFloats(dst, row []byte) ([]byte, error) {
	bits, err := decodeFloats(row)
	if err != nil {
		return dst, err
	}
	dst = append(dst, '[')
	for i := 0; i < len(bits); i += 4 {
		f := float64(math.Float32frombits(binary.LittleEndian.Uint32(bits[i:])))
		if math.IsNaN(f) || math.IsInf(f, 0) {
			return dst, fmt.Errorf("embedding has %v at %d: %w", f, i/4, backends.ErrBadReply)
		}
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = AppendFloat32(dst, float32(f))
	}
	return append(dst, ']'), nil
}

// decodeFloats returns the bytes of a JSON string of base64.
func decodeFloats(row []byte) ([]byte, error) {
	bits, err := base64.StdEncoding.DecodeString(text(row)) // which undoes "\/": some encoders write it
	if err != nil || len(bits)%4 != 0 || len(bits) == 0 {
		return nil, fmt.Errorf("embedding is no base64 of float32: %w", backends.ErrBadReply)
	}
	return bits, nil
}

// AppendFloat32 appends a finite float as JSON, shortest form that reads back
// the same.
func AppendFloat32(dst []byte, f float32) []byte {
	return strconv.AppendFloat(dst, float64(f), 'g', -1, 32)
}
