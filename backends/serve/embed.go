package serve

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"sync/atomic"

	"aloft/backends"
	"aloft/backends/openai"

	"github.com/tidwall/gjson"
)

// counters feed /metrics.
type counters struct {
	promptTokens, generatedTokens      atomic.Int64
	embedCalls, embedRows, generations atomic.Int64
	refused, cancelled, failed         atomic.Int64
}

func (s *Server) embeddings(w http.ResponseWriter, r *http.Request) {
	body, scan, err := s.scan(w, r, backends.Embeddings)
	if err != nil {
		s.fail(w, r, err, "input")
		return
	}
	req, err := embedRequest(body, scan)
	if err != nil {
		s.fail(w, r, err, "input")
		return
	}
	if err := s.gate.enter(embed); err != nil {
		s.count.refused.Add(1)
		s.fail(w, r, err, "input")
		return
	}
	defer s.gate.leave(embed)
	res, err := s.engine.Embed(r.Context(), req)
	if err != nil {
		s.countFailure(r)
		s.fail(w, r, err, "input")
		return
	}
	reply, err := appendEmbedResult(nil, s.info.Model, res, scan.Base64)
	if err != nil {
		s.countFailure(r)
		s.fail(w, r, err, "input")
		return
	}
	s.count.embedCalls.Add(1)
	s.count.embedRows.Add(int64(len(req.Inputs)))
	s.count.promptTokens.Add(int64(res.PromptTokens))
	s.reply(w, http.StatusOK, reply)
}

func (s *Server) countFailure(r *http.Request) {
	if r.Context().Err() != nil {
		s.count.cancelled.Add(1)
		return
	}
	s.count.failed.Add(1)
}

func embedRequest(body []byte, scan openai.Scan) (*EmbedRequest, error) {
	req := &EmbedRequest{Inputs: make([]Input, len(scan.Inputs))}
	for i, row := range scan.Inputs {
		in := &req.Inputs[i]
		target := any(&in.Text)
		if row[0] == '[' {
			target = &in.Tokens
		}
		if err := json.Unmarshal(row, target); err != nil {
			return nil, openai.Invalid("input", openai.CodeType, "'input' row %d: %v", i, err)
		}
	}
	req.Dimensions = int(gjson.GetBytes(body, "dimensions").Int()) // the scan has checked it
	return req, nil
}

func appendEmbedResult(dst []byte, model string, res *EmbedResult, asBase64 bool) ([]byte, error) {
	rows := make([][]byte, len(res.Vectors))
	for i, v := range res.Vectors {
		for _, f := range v {
			if f64 := float64(f); math.IsNaN(f64) || math.IsInf(f64, 0) {
				return nil, fmt.Errorf("the model gave %v in the embedding of row %d", f, i)
			}
		}
		rows[i] = appendVector(nil, v, asBase64)
	}
	return openai.AppendEmbeddings(dst, rows, openai.EmbeddingsReply{Model: model, PromptTokens: res.PromptTokens, Base64: asBase64})
}

func appendVector(dst []byte, v []float32, asBase64 bool) []byte {
	if asBase64 {
		bits := make([]byte, 0, 4*len(v))
		for _, f := range v {
			bits = binary.LittleEndian.AppendUint32(bits, math.Float32bits(f))
		}
		dst = append(dst, '"')
		return append(base64.StdEncoding.AppendEncode(dst, bits), '"')
	}
	dst = append(dst, '[')
	for i, f := range v {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = openai.AppendFloat32(dst, f)
	}
	return append(dst, ']')
}
