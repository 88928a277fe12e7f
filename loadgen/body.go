package loadgen

import (
	"crypto/x509"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"

	"aloft/loadgen/arrivals"
)

// order says which request is to be made. A request is decided by its place
// alone, and not by what was made before it: the same seed sends the same
// bytes, however many workers share a plan and in whatever order they send.
type order struct {
	index int // in the plan
	turn  int // of a session, from 0
	step  int // of a batch: 0 uploads, 1 creates
	shape arrivals.Shape
	said  []byte // of a session: the messages so far, each with a comma after it
	file  []byte // of a batch's second step: the id of what was uploaded, as JSON
}

// stock is what all requests of a workload are made of. Nobody changes it.
type stock struct {
	w        *Workload
	lines    *library
	prefixes *library
	given    *given
	roots    *x509.CertPool  // nil: the system's
	perToken float64         // bytes
	seed     uint64          // of this workload
	head     []byte          // {"model":"…"
	tail     []byte          // of each generated answer's request, and of embeddings
	job      []byte          // a whole body
	texts    []arrivals.Text // of the plan: which requests begin alike
	rows     Kind            // what a batch is made of, else the workload's kind
}

// sources are the files that a workload named, read.
type sources struct {
	corpus *library
	given  *given
	roots  *x509.CertPool
}

func newStock(w *Workload, seed uint64, src sources) *stock {
	s := &stock{w: w, lines: src.corpus, given: src.given, roots: src.roots, perToken: w.BytesPerToken, seed: seed, rows: w.Kind}
	if s.perToken == 0 {
		s.perToken = defaultBytesPerToken
	}
	if w.Kind == Batch {
		s.rows = w.rowKind()
	}
	if s.lines == nil {
		s.lines = &library{}
		for _, text := range w.Texts {
			s.lines.add(text)
		}
		if len(w.Texts) == 0 {
			s.lines = builtin()
		}
	}
	s.head = appendString([]byte(`{"model":`), w.Model)
	if w.Encoding != "" && s.rows == Embeddings {
		s.tail = appendString([]byte(`,"encoding_format":`), w.Encoding)
	}
	if w.Stream {
		s.tail = append(s.tail, `,"stream":true`...)
		if w.Kind != Responses { // where usage comes with the last event, asked or not
			s.tail = append(s.tail, `,"stream_options":{"include_usage":true}`...)
		}
	}
	s.tail = append(s.tail, '}')
	if w.Kind == Job && src.given == nil {
		s.job = appendJob(nil, w.Template, w.Params)
	}
	if p := w.Prefix; p != nil {
		s.prefixes = &library{}
		m := s.maker()
		for i := range p.Pool {
			m.draw(i, drawPrefixes)
			s.prefixes.text = s.lines.appendText(s.prefixes.text, m.r, s.bytes(p.Tokens))
			s.prefixes.end()
		}
	}
	return s
}

func builtin() *library {
	l := &library{}
	for _, text := range builtinTexts {
		l.add(text)
	}
	return l
}

func appendJob(b []byte, template string, params map[string]string) []byte {
	b = appendString(append(b, `{"template":`...), template)
	b = append(b, `,"params":{`...)
	for i, name := range slices.Sorted(maps.Keys(params)) {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(append(appendString(b, name), ':'), params[name])
	}
	return append(b, "}}"...)
}

// bytes is how long a text of so many tokens is made: an estimate, since only
// the server counts.
func (s *stock) bytes(tokens int) int {
	if tokens == 0 {
		return 0
	}
	return max(1, int(float64(tokens)*s.perToken))
}

// What is drawn for a request, each from a stream of its own, so that a change
// to one leaves the others as they were. Turns of a session follow after drawTexts.
const (
	drawPrefixes = iota // the pool itself; the place is that in the pool
	drawPrefix          // which one of the pool a request begins with
	drawTurns
	drawLeaving
	drawPause
	drawThink
	drawSizes
	drawBlock          // of a text that several requests may have; the place is the block's
	drawTexts = 1 << 8 // apart, so that a further kind of draw changes no text
)

// maker makes requests for one goroutine.
type maker struct {
	*stock
	pcg   rand.PCG
	r     *rand.Rand
	chain []uint32 // of texts, kept for the next
}

func (s *stock) maker() *maker {
	m := &maker{stock: s}
	m.r = rand.New(&m.pcg)
	return m
}

// draw sets the random stream to where the place-th request draws what.
func (m *maker) draw(place, what int) {
	seedPlace(&m.pcg, m.seed, place, what)
}

// seedPlace mixes, since PCG takes a seed as its state and neighbouring states
// begin alike.
func seedPlace(pcg *rand.PCG, seed uint64, place, what int) {
	pcg.Seed(arrivals.Scramble(seed+uint64(what)), arrivals.Scramble(uint64(place)))
}

// append appends the body of a request to dst, and says what its answer must
// hold. It allocates nothing but growth of dst.
func (m *maker) append(dst []byte, o *order) ([]byte, expect) {
	switch {
	case m.w.Kind == Batch && o.step == 0:
		return m.appendUpload(dst, o), expect{1, 1}
	case m.w.Kind == Batch:
		return m.appendCreate(dst, o), expect{1, 1}
	case m.job != nil:
		return append(dst, m.job...), expect{1, 1}
	case m.given != nil:
		return m.appendGiven(dst, o.index)
	}
	return m.appendOwn(dst, o)
}

// appendGiven appends one of the user's own bodies, in turn.
func (m *maker) appendGiven(dst []byte, n int) ([]byte, expect) {
	i := int(uint(n) % uint(m.given.lines())) // places in a warm-up are negative
	members := m.given.line(i)
	if m.rows == Job { // has no model
		dst = append(dst, '{')
		return append(append(dst, members[1:]...), '}'), m.given.wants[i]
	}
	dst = append(dst, m.head...)
	return append(append(dst, members...), m.tail...), m.given.wants[i]
}

// appendOwn appends a body made of texts.
func (m *maker) appendOwn(dst []byte, o *order) ([]byte, expect) {
	prefix := m.prefix(o)
	m.draw(o.index, drawTexts+o.turn)
	dst = append(dst, m.head...)
	size := m.bytes(int(o.shape.Input))
	want := expect{1, 1}
	switch m.rows {
	case Embeddings:
		dst = append(dst, `,"input":`...)
		dst = m.appendTexts(dst, prefix, o, size)
		want = expect{m.inputs(), m.inputs()}
	case Rerank: // models read the query before each document
		dst = appendPrefix(append(dst, `,"query":"`...), prefix)
		dst = append(m.lines.appendText(dst, m.r, 0), `","documents":`...)
		dst = m.appendTexts(dst, nil, o, size)
		want = expect{m.inputs(), m.inputs()}
	case Completions:
		dst = appendPrefix(append(dst, `,"prompt":"`...), prefix)
		dst = append(m.appendText(dst, o, size), '"')
	case Responses:
		dst = m.appendMessages(append(dst, `,"input":[`...), prefix, o, size)
	default:
		dst = m.appendMessages(append(dst, `,"messages":[`...), prefix, o, size)
	}
	if most := m.mostTokens(o); most > 0 {
		key := `,"max_tokens":`
		if m.rows == Responses {
			key = `,"max_output_tokens":`
		}
		dst = strconv.AppendInt(append(dst, key...), int64(most), 10)
	}
	return append(dst, m.tail...), want
}

func (m *maker) mostTokens(o *order) int {
	if o.shape.Output > 0 {
		return int(o.shape.Output)
	}
	return m.w.MaxTokens
}

// inputs is how many texts one request has; a row of a batch has one.
func (m *maker) inputs() int {
	if m.w.Kind == Batch {
		return 1
	}
	return max(1, m.w.Inputs)
}

// appendTexts appends an array of inputs, each of which begins with the prefix.
// Where a recording says how a prompt began, the first is that prompt.
func (m *maker) appendTexts(dst, prefix []byte, o *order, size int) []byte {
	dst = append(dst, '[')
	for i := range m.inputs() {
		if i > 0 {
			dst = append(dst, ',')
		}
		if dst = appendPrefix(append(dst, '"'), prefix); i == 0 {
			dst = append(m.appendText(dst, o, size), '"')
		} else {
			dst = append(m.lines.appendText(dst, m.r, size), '"')
		}
	}
	return append(dst, ']')
}

func appendPrefix(dst, prefix []byte) []byte {
	if prefix == nil {
		return dst
	}
	return append(append(dst, prefix...), ' ')
}

// prefix is the shared beginning of a request, nil when it has none.
// One whose recording says what it began with has none of the pool.
func (m *maker) prefix(o *order) []byte {
	if m.prefixes == nil || o.shape.Text != 0 {
		return nil
	}
	m.draw(o.index, drawPrefix)
	if m.r.Float64() >= m.w.Prefix.Share {
		return nil
	}
	return m.prefixes.line(m.r.IntN(m.prefixes.lines()))
}

// appendMessages appends what was said so far and what is said now. A shared
// beginning is the system's message, as it is where prompts share one.
func (m *maker) appendMessages(dst, prefix []byte, o *order, size int) []byte {
	if prefix != nil {
		dst = append(append(append(dst, `{"role":"system","content":"`...), prefix...), `"},`...)
	}
	return append(m.appendUser(append(dst, o.said...), o, size), ']')
}

// appendUser appends the user's message.
func (m *maker) appendUser(dst []byte, o *order, size int) []byte {
	dst = append(dst, `{"role":"user","content":"`...)
	return append(m.appendText(dst, o, size), `"}`...)
}

// appendText appends what is said in a request. Requests that a recording says
// began alike get the same blocks at their begin; each block depends on its place
// in its text alone, so that nothing is kept of what was sent.
func (m *maker) appendText(dst []byte, o *order, size int) []byte {
	if o.shape.Text == 0 || o.turn > 0 {
		return m.lines.appendText(dst, m.r, size)
	}
	m.chain = m.chain[:0]
	for text := o.shape.Text; text != 0; text = m.texts[text-1].Parent {
		m.chain = append(m.chain, text)
	}
	left, block := int(o.shape.Input), 0
	for i := len(m.chain) - 1; i >= 0; i-- {
		end := math.MaxInt // of this text's part, in blocks
		if i > 0 {
			end = int(m.texts[m.chain[i-1]-1].From / arrivals.Block)
		}
		for ; block < end && left > 0; block++ {
			m.draw(int(o.shape.Copy)<<56|int(m.chain[i])<<24|block, drawBlock)
			size := m.bytes(min(left, arrivals.Block))
			if block > 0 {
				dst, size = append(dst, ' '), max(1, size-1)
			}
			dst = m.lines.appendText(dst, m.r, size)
			left -= arrivals.Block
		}
	}
	m.draw(o.index, drawTexts) // what follows is its own
	return dst
}

// appendTurn appends the user's message of a turn as it was sent, for the
// history of the next.
func (m *maker) appendTurn(dst []byte, o *order) []byte {
	m.draw(o.index, drawTexts+o.turn)
	return m.appendUser(dst, o, m.bytes(int(o.shape.Input)))
}

// boundary parts a multipart body. It cannot occur in one: rows are JSON, in
// which a line never begins with a dash.
const boundary = "aloft-load-8e1f6c3a"

// uploadType is the content type of a batch's first step.
const uploadType = "multipart/form-data; boundary=" + boundary

// appendUpload appends a form with a file of rows.
func (m *maker) appendUpload(dst []byte, o *order) []byte {
	dst = append(dst, "--"+boundary+"\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n"+
		"--"+boundary+"\r\nContent-Disposition: form-data; name=\"file\"; filename=\"load.jsonl\"\r\n"+
		"Content-Type: application/jsonl\r\n\r\n"...)
	n := max(1, m.w.Inputs)
	for i := range n {
		dst = strconv.AppendInt(append(dst, `{"custom_id":"row-`...), int64(i), 10)
		dst = append(append(append(dst, `","method":"POST","url":"`...), m.rows.path()...), `","body":`...)
		if m.given != nil {
			dst, _ = m.appendGiven(dst, o.index*n+i)
		} else {
			row := order{index: o.index*n + i, shape: o.shape}
			if i > 0 {
				row.shape.Text = 0 // the recorded prompt is the first
			}
			dst, _ = m.appendOwn(dst, &row)
		}
		dst = append(dst, "}\n"...)
	}
	return append(dst, "\r\n--"+boundary+"--\r\n"...)
}

// appendCreate appends the body that makes a batch of an uploaded file.
func (m *maker) appendCreate(dst []byte, o *order) []byte {
	dst = append(append(dst, `{"input_file_id":`...), o.file...)
	dst = append(append(dst, `,"endpoint":"`...), m.rows.path()...)
	return append(dst, `","completion_window":"24h"}`...)
}

// route is where a request goes and what its body is.
func (s *stock) route(o *order) (path, contentType string) {
	if s.w.Kind == Batch && o.step == 0 {
		return "/v1/files", uploadType
	}
	return s.w.Kind.path(), "application/json"
}
