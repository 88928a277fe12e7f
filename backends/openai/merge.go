package openai

import (
	"fmt"
	"slices"
	"strconv"

	"aloft/backends"

	"github.com/tidwall/gjson"
)

// merging says how requests of an endpoint share one engine call: which of a
// request's values hold its rows, and which of the answer's holds their items. What
// else a request says must agree, but for what perCaller names.
//
// The shapes are those of OpenAI (embeddings, moderations), vLLM (score) and both
// vLLM and SGLang (classify); what has any other goes alone, as it came.
type merging struct {
	first, second fields // lists of rows; with second a row is a pair
	prefix        string // of MergeKey
	list          string // the answer's key
	indexed       bool   // its items have an index; else they are in the order of the rows
}

var mergings = map[backends.Endpoint]*merging{
	backends.Embeddings:  {first: fieldInput, prefix: "embeddings|", list: "data", indexed: true},
	backends.Classify:    {first: fieldInput, prefix: "classify|", list: "data", indexed: true},
	backends.Moderations: {first: fieldInput, prefix: "moderations|", list: "results"},
	backends.Score: {first: fieldText1 | fieldQueries | fieldData1, second: fieldText2 | fieldDocuments | fieldItems | fieldData2,
		prefix: "score|", list: "data", indexed: true},
}

// perCaller names the fields that need not agree for merging, and that a merged
// call therefore does not carry over.
func perCaller(key string) bool {
	switch key {
	case "model", "encoding_format", "user", "stream", "stream_options", "service_tier":
		return true
	}
	return false
}

// rowsOf are what the scan noted of a request's rows.
type rowsOf struct {
	merging       *merging // nil: the endpoint is not merged
	first, second []byte   // raw values
	list          [][]byte // first's rows, where the scan has them
	form          shape    // of list
	odd           bool     // in no shape that can be merged
	options       []string // "key":value of everything that must agree
}

// note keeps the value of one field, which begins at from, for merging.
func (s *scanner) note(key []byte, name string, f fields, from int) {
	m := s.rows.merging
	if m == nil || f != 0 && s.data[from] == 'n' { // null: as if not given
		return
	}
	value := s.data[from:s.at]
	switch {
	case f&(m.first|m.second) != 0:
		at := &s.rows.first
		if f&m.second != 0 {
			at = &s.rows.second
		}
		s.rows.odd = s.rows.odd || *at != nil // two names for the same
		*at = value
	case f == fieldMessages || f == fieldQuery:
		s.rows.odd = true
	case !perCaller(name):
		s.rows.options = append(s.rows.options, alias(key)+":"+alias(value))
	}
}

// merge sets Inputs and MergeKey of a request that may share its call.
func (s *scanner) merge() {
	r, m := &s.rows, s.rows.merging
	if m == nil || r.odd || r.first == nil || (r.second == nil) != (m.second == 0) {
		return
	}
	if r.list == nil {
		r.list, r.form = listed(r.first)
	}
	ids := r.form == oneIDs || r.form == idLists
	if r.list == nil || ids && s.endpoint != backends.Embeddings && s.endpoint != backends.Classify {
		return
	}
	if m.second != 0 {
		seconds, form := listed(r.second)
		// One query for several documents is a batch already, and not always several
		// pairs: what ranks by list (JinaForRanking in vLLM) reads them together.
		if len(seconds) != len(r.list) || form == oneIDs || form == idLists {
			return
		}
		r.list = pairs(r.list, seconds)
	}
	if ids { // engines take a list of texts or one of token ids, not both in one
		r.options = append(r.options, "ids")
	}
	s.out.Inputs, s.out.MergeKey = r.list, m.prefix
	if len(r.options) > 0 {
		s.out.MergeKey = mergeKey(m.prefix, r.options)
	}
}

// listed splits a value of one of the four forms; nil if it has none.
func listed(value []byte) ([][]byte, shape) {
	s := scanner{walk: walk{data: value}}
	form, rows, err := s.inputs("")
	if err != nil {
		return nil, 0
	}
	return rows, form
}

// pairs makes one row of two.
func pairs(first, second [][]byte) [][]byte {
	size := 0
	for i := range first {
		size += len(first[i]) + len(second[i]) + 3
	}
	all := make([]byte, 0, size)
	rows := make([][]byte, len(first))
	for i := range rows {
		from := len(all)
		all = append(append(all, '['), first[i]...)
		all = append(append(all, ','), second[i]...)
		all = append(all, ']')
		rows[i] = all[from:len(all):len(all)]
	}
	return rows
}

// Pair returns the texts of a row of a score request, raw; ok is false for any
// other row.
func Pair(e backends.Endpoint, row []byte) (first, second []byte, ok bool) {
	w := walk{data: row}
	if e != backends.Score || !w.enter('[') {
		return nil, nil, false
	}
	return w.skip(), w.skip(), true
}

// AppendMerged appends one request over the rows of all reqs, in order, of which
// there is one at least. Their MergeKeys must agree. Model, options and encoding are
// those of reqs[0]: callers of one moment mostly use the same SDK, so mostly nothing
// needs converting; "user" and its like stay behind, since the rows are not all that
// caller's.
func AppendMerged(dst []byte, reqs []*backends.Request) []byte {
	m := mergings[reqs[0].Endpoint]
	dst = append(dst, '{')
	w := walk{data: reqs[0].Body}
	w.enter('{')
	n := 0
	for key := w.key(); key != nil; key = w.key() {
		v, name := w.skip(), text(key)
		f := fieldOf(name)
		lists := f & (m.first | m.second)
		if lists != 0 && v[0] == 'n' || lists == 0 && name != "model" && name != "encoding_format" && perCaller(name) {
			continue
		}
		if n++; n > 1 {
			dst = append(dst, ',')
		}
		dst = append(append(dst, key...), ':')
		if lists == 0 {
			dst = append(dst, v...)
		} else {
			dst = appendRows(dst, reqs, f&m.second != 0)
		}
	}
	return append(dst, '}')
}

func appendRows(dst []byte, reqs []*backends.Request, second bool) []byte {
	dst = append(dst, '[')
	n := 0
	for _, req := range reqs {
		for _, row := range req.Inputs {
			if n++; n > 1 {
				dst = append(dst, ',')
			}
			if a, b, ok := Pair(req.Endpoint, row); ok {
				row = a
				if second {
					row = b
				}
			}
			dst = append(dst, row...)
		}
	}
	return append(dst, ']')
}

// Items are an engine's answer to a merged call, taken apart. They alias it.
type Items struct {
	Rows   [][]byte // of embeddings the vector (numbers, or base64 in quotes), else the whole item
	Prompt int      // tokens that the engine counted; -1 = it did not say
	frame  []byte   // the whole answer
}

// Split takes the answer to a merged call of so many rows apart, in the order of
// the rows. One in which not every row has exactly one item is an error: guessing
// would hand one caller another's (docs/failures.md F8). Errors wrap
// backends.ErrBadReply.
func Split(e backends.Endpoint, reply []byte, rows int) (Items, error) {
	bad := func(format string, args ...any) (Items, error) {
		return Items{Prompt: -1}, fmt.Errorf("%s reply %s: %w", e, fmt.Sprintf(format, args...), backends.ErrBadReply)
	}
	if valid(reply) != nil {
		return bad("of %d bytes is no JSON object", len(reply))
	}
	m := mergings[e]
	out := Items{Rows: make([][]byte, rows), Prompt: -1, frame: reply}
	var list walk
	w := walk{data: reply}
	w.enter('{')
	for key := w.key(); key != nil; key = w.key() {
		switch text(key) {
		case m.list:
			if list.data != nil {
				return bad("has two lists %q", m.list)
			}
			list.data = w.skip()
		case "usage":
			if u, ok := usage(&w); ok {
				out.Prompt = u.Prompt
			}
		default:
			w.skip()
		}
	}
	if !list.enter('[') {
		return bad("has no array %q", m.list)
	}
	n := 0
	for ; list.item(); n++ {
		i, item := n, []byte(nil)
		if e == backends.Embeddings {
			i, item = vector(&list)
		} else if item = list.skip(); item[0] != '{' {
			return bad("has an item that is no object")
		} else if m.indexed {
			i = indexOf(item)
		}
		switch {
		case i < 0 || i >= rows:
			return bad("has an item with index %d of %d", i, rows)
		case out.Rows[i] != nil:
			return bad("has index %d twice", i)
		case item == nil:
			return bad("has no vector at index %d", i)
		}
		out.Rows[i] = item
	}
	if n != rows {
		return bad("has %d items, want %d", n, rows)
	}
	return out, nil
}

// indexSite is where an item's one index stands, at == 0: nowhere.
func indexSite(item []byte) (at, end int) {
	w := walk{data: item}
	w.enter('{')
	for key := w.key(); key != nil; key = w.key() {
		w.peek()
		from := w.at
		if w.skip(); text(key) == "index" {
			if at > 0 {
				return 0, 0
			}
			at, end = from, w.at
		}
	}
	return at, end
}

// indexOf is an item's index, -1 if it has none.
func indexOf(item []byte) int {
	if at, end := indexSite(item); at > 0 {
		if n, err := strconv.Atoi(alias(item[at:end])); err == nil {
			return n
		}
	}
	return -1
}

// Answer is what a caller's own answer says besides its items. PromptTokens below 0
// is written as 0.
type Answer struct {
	ID, Model    string
	PromptTokens int
	Base64       bool // embeddings: the encoding asked for, else lists of numbers
}

// AppendAnswer appends the answer of a caller whose items these are, indexed from
// 0. Around them is what the engine wrote (of embeddings what OpenAI writes) with
// id, model and usage the caller's own. Errors wrap backends.ErrBadReply; dst is then
// useless.
func AppendAnswer(dst []byte, e backends.Endpoint, items Items, a Answer) ([]byte, error) {
	if e == backends.Embeddings {
		return AppendEmbeddings(dst, items.Rows, EmbeddingsReply{Model: a.Model, PromptTokens: a.PromptTokens, Base64: a.Base64})
	}
	m := mergings[e]
	dst = append(dst, '{')
	w := walk{data: items.frame}
	w.enter('{')
	n := 0
	for key := w.key(); key != nil; key = w.key() {
		if n++; n > 1 {
			dst = append(dst, ',')
		}
		dst = append(append(dst, key...), ':')
		v := w.skip()
		switch name := text(key); {
		case name == m.list:
			dst = m.appendItems(dst, items.Rows)
		case name == "id":
			dst = gjson.AppendJSONString(dst, a.ID)
		case name == "model":
			dst = gjson.AppendJSONString(dst, a.Model)
		case name == "usage" && v[0] == '{':
			dst = appendUsage(dst, a.PromptTokens)
		default:
			dst = append(dst, v...)
		}
	}
	return append(dst, '}'), nil
}

func (m *merging) appendItems(dst []byte, items [][]byte) []byte {
	dst = append(dst, '[')
	for i, item := range items {
		if i > 0 {
			dst = append(dst, ',')
		}
		if !m.indexed {
			dst = append(dst, item...)
			continue
		}
		at, end := indexSite(item)
		dst = strconv.AppendInt(append(dst, item[:at]...), int64(i), 10)
		dst = append(dst, item[end:]...)
	}
	return append(dst, ']')
}

func appendUsage(dst []byte, prompt int) []byte {
	dst = append(dst, `{"prompt_tokens":`...)
	dst = strconv.AppendInt(dst, int64(max(prompt, 0)), 10)
	dst = append(dst, `,"total_tokens":`...)
	dst = strconv.AppendInt(dst, int64(max(prompt, 0)), 10)
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
