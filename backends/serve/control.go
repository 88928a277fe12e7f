package serve

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"aloft/backends/openai"
)

// health says that the process answers. A sleeping engine is healthy.
func (s *Server) health(w http.ResponseWriter, _ *http.Request) {
	s.json(w, map[string]any{"status": "ok", "asleep": s.gate.isClosed()})
}

func (s *Server) card() map[string]any {
	return map[string]any{
		"id": s.info.Model, "object": "model", "created": s.info.Created, "owned_by": "aloft",
		"kind": s.info.Kind, "note": s.info.Note, "max_model_len": s.info.Context,
		"dimensions": s.info.Dim, "slots": s.info.Slots,
	}
}

func (s *Server) models(w http.ResponseWriter, _ *http.Request) {
	s.json(w, map[string]any{"object": "list", "data": []any{s.card()}})
}

func (s *Server) model(w http.ResponseWriter, r *http.Request) {
	if id := r.PathValue("id"); id != s.info.Model {
		s.fail(w, r, unknownModel(id), "model")
		return
	}
	s.json(w, s.card())
}

// sleep closes the gate, waits for running calls and puts the engine to sleep.
// The names /sleep?level=, /wake_up and /is_sleeping are vLLM's, so that one
// launch profile serves both. Levels other than 1 are refused: level 2 throws
// weights away and has given garbage elsewhere (docs/failures.md F12).
func (s *Server) sleep(w http.ResponseWriter, r *http.Request) {
	if level := r.URL.Query().Get("level"); level != "" && level != "1" {
		s.fail(w, r, openai.Invalid("level", openai.CodeValue, "sleep level is '%s', only 1 is supported", level), "")
		return
	}
	if !s.takeTurn(w, r) {
		return
	}
	defer s.endTurn()
	began := time.Now()
	if err := s.gate.close(r.Context()); err != nil {
		s.gate.open()
		s.fail(w, r, err, "")
		return
	}
	if err := s.engine.Sleep(r.Context()); err != nil {
		s.gate.open()
		s.fail(w, r, err, "")
		return
	}
	s.log.Info("engine asleep", "model", s.info.Model, "took", time.Since(began))
	s.json(w, map[string]any{"is_sleeping": true})
}

func (s *Server) wake(w http.ResponseWriter, r *http.Request) {
	if !s.takeTurn(w, r) {
		return
	}
	defer s.endTurn()
	began := time.Now()
	if err := s.engine.Wake(r.Context()); err != nil {
		s.fail(w, r, err, "")
		return
	}
	s.gate.open()
	s.log.Info("engine awake", "model", s.info.Model, "took", time.Since(began))
	s.json(w, map[string]any{"is_sleeping": false})
}

func (s *Server) isSleeping(w http.ResponseWriter, _ *http.Request) {
	s.json(w, map[string]any{"is_sleeping": s.gate.isClosed()})
}

// takeTurn makes sleep and wake follow each other.
func (s *Server) takeTurn(w http.ResponseWriter, r *http.Request) bool {
	select {
	case s.turn <- struct{}{}:
		return true
	case <-r.Context().Done():
		s.fail(w, r, r.Context().Err(), "")
		return false
	}
}

func (s *Server) endTurn() { <-s.turn }

func (s *Server) json(w http.ResponseWriter, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		panic("BUG: a control reply does not marshal: " + err.Error())
	}
	s.reply(w, http.StatusOK, body)
}

// metrics writes Prometheus text. The gauges are those that a router looks at.
func (s *Server) metrics(w http.ResponseWriter, _ *http.Request) {
	running, waiting := s.gate.load()
	asleep := 0
	if s.gate.isClosed() {
		asleep = 1
	}
	out := make([]byte, 0, 1024)
	add := func(name, kind, help string, v int64) {
		out = append(out, "# HELP "+name+" "+help+"\n# TYPE "+name+" "+kind+"\n"+name+"{model="+strconv.Quote(s.info.Model)+"} "...)
		out = append(strconv.AppendInt(out, v, 10), '\n')
	}
	add("aloft_engine_running", "gauge", "Calls that the engine works on.", int64(running))
	add("aloft_engine_waiting", "gauge", "Calls that wait inside the engine.", int64(waiting))
	if s.info.KVTokens > 0 {
		add("aloft_engine_kv_tokens", "gauge", "Tokens that the KV cache holds.", int64(s.info.KVTokens))
		add("aloft_engine_kv_block_tokens", "gauge", "Tokens of a block of it.", int64(s.info.KVBlock))
	}
	add("aloft_engine_asleep", "gauge", "1 while the engine sleeps.", int64(asleep))
	add("aloft_engine_prompt_tokens_total", "counter", "Prompt tokens of finished calls.", s.count.promptTokens.Load())
	add("aloft_engine_generation_tokens_total", "counter", "Tokens generated.", s.count.generatedTokens.Load())
	add("aloft_engine_embed_calls_total", "counter", "Embedding calls finished, each one batch.", s.count.embedCalls.Load())
	add("aloft_engine_embed_rows_total", "counter", "Rows of those calls.", s.count.embedRows.Load())
	add("aloft_engine_generations_total", "counter", "Generations finished.", s.count.generations.Load())
	add("aloft_engine_refused_total", "counter", "Calls refused, queue full or asleep.", s.count.refused.Load())
	add("aloft_engine_cancelled_total", "counter", "Calls whose client left.", s.count.cancelled.Load())
	add("aloft_engine_failed_total", "counter", "Calls that the engine failed.", s.count.failed.Load())
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	w.Write(out)
}
