package variants

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"math"

	"github.com/tidwall/gjson"

	"aloft/backends"
	"aloft/backends/openai"
)

// comparable reports whether answers of an endpoint can be held against each other.
func comparable(e backends.Endpoint) bool {
	return e == backends.Embeddings || e == backends.Chat || e == backends.Completions
}

// Agree is how alike two whole answers to a request are, from whether they are
// the same to not at all, 1 to 0 (vectors: their mean cosine, which may be below
// 0). ok is false where that cannot be said.
func Agree(r *backends.Request, a, b []byte) (alike float64, exact, ok bool) {
	if r.Endpoint == backends.Embeddings {
		return agreeVectors(len(r.Inputs), a, b)
	}
	x, y := openai.AnswerText(r.Endpoint, a), openai.AnswerText(r.Endpoint, b)
	if !gjson.GetBytes(a, "choices").IsArray() || !gjson.GetBytes(b, "choices").IsArray() {
		return 0, false, false
	}
	return agreeTexts(bytes.Join(x, []byte("\n")), bytes.Join(y, []byte("\n")))
}

// agreeTexts is the share of words before the first that differs, of the longer
// text's: after that word greedy texts go on from different beginnings, and what
// they still share says nothing.
func agreeTexts(a, b []byte) (alike float64, exact, ok bool) {
	if bytes.Equal(a, b) {
		return 1, true, true
	}
	x, y := bytes.Fields(a), bytes.Fields(b)
	n := 0
	for n < len(x) && n < len(y) && bytes.Equal(x[n], y[n]) {
		n++
	}
	return float64(n) / float64(max(len(x), len(y), 1)), false, true
}

func agreeVectors(rows int, a, b []byte) (alike float64, exact, ok bool) {
	x, err := openai.Split(backends.Embeddings, a, rows)
	if err != nil {
		return 0, false, false
	}
	y, err := openai.Split(backends.Embeddings, b, rows)
	if err != nil || rows == 0 {
		return 0, false, false
	}
	exact = true
	for i := range x.Rows {
		v, w := vector(x.Rows[i]), vector(y.Rows[i])
		if len(v) == 0 || len(v) != len(w) { // a smaller model's may be shorter: then no two can agree
			return 0, false, len(v) > 0 && len(w) > 0
		}
		c := cosine(v, w)
		alike += c / float64(rows)
		exact = exact && c > 1-1e-6
	}
	return alike, exact, true
}

// vector reads a row: a list of numbers, or base64 of float32 in quotes.
func vector(row []byte) []float64 {
	if !bytes.HasPrefix(row, []byte{'"'}) {
		var out []float64
		if json.Unmarshal(row, &out) != nil {
			return nil
		}
		return out
	}
	var text string
	if json.Unmarshal(row, &text) != nil {
		return nil
	}
	bits, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil
	}
	out := make([]float64, 0, len(bits)/4)
	for ; len(bits) >= 4; bits = bits[4:] {
		out = append(out, float64(math.Float32frombits(binary.LittleEndian.Uint32(bits))))
	}
	return out
}

func cosine(v, w []float64) float64 {
	var dot, a, b float64
	for i := range v {
		dot += v[i] * w[i]
		a += v[i] * v[i]
		b += w[i] * w[i]
	}
	if a == 0 || b == 0 {
		return 0
	}
	return dot / math.Sqrt(a*b)
}

// greedy returns the body with temperature 0, and whether it had that already:
// only texts without chance can be compared. It is nil where the body is no
// object.
func greedy(body []byte) (out []byte, already bool) {
	trimmed := bytes.TrimLeft(body, " \t\r\n")
	if len(trimmed) == 0 || trimmed[0] != '{' {
		return nil, false
	}
	t := gjson.GetBytes(trimmed, "temperature")
	switch {
	case t.Exists() && t.Type == gjson.Number && t.Num == 0:
		return body, true
	case t.Exists() && t.Index > 0:
		out = append(out, trimmed[:t.Index]...)
		out = append(out, '0')
		return append(out, trimmed[t.Index+len(t.Raw):]...), false
	}
	rest := bytes.TrimLeft(trimmed[1:], " \t\r\n")
	if len(rest) == 0 || rest[0] == '}' {
		return nil, false
	}
	return append([]byte(`{"temperature":0,`), rest...), false
}
