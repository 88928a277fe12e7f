package openai

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math"
	"strconv"

	"aloft/backends"

	"github.com/tidwall/gjson"
)

// ErrDimensions is an answer of an engine that ignored "dimensions".
var ErrDimensions = fmt.Errorf("the model's engine did not honour 'dimensions': %w", backends.ErrBadReply)

// CheckDimensions holds the vectors that Split returned to the length
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

// vector takes the next row of an answer: its index, -1 if it has none, and its
// vector, nil if that is none.
func vector(w *walk) (index int, v []byte) {
	index = -1
	if !w.enter('{') {
		w.skip()
		return index, nil
	}
	for key := w.key(); key != nil; key = w.key() {
		switch value := w.skip(); text(key) {
		case "index":
			if n, err := strconv.Atoi(alias(value)); err == nil {
				index = n
			}
		case "embedding":
			if (value[0] == '[' || value[0] == '"') && (&walk{data: value}).filled() {
				v = value
			}
		}
	}
	return index, v
}

// EmbeddingsReply is one caller's answer. PromptTokens below 0 is written as 0;
// Base64 is the encoding asked for, else lists of numbers.
type EmbeddingsReply struct {
	Model        string
	PromptTokens int
	Base64       bool
}

// AppendEmbeddings appends a caller's reply over rows that Split
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
	dst = appendUsage(append(dst, `,"usage":`...), r.PromptTokens)
	return append(dst, '}'), nil
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
