package openai

import (
	"bytes"
	"strconv"
)

// shape is which of the four legal forms a prompt or input has.
type shape int

const (
	oneText shape = iota
	texts
	oneIDs
	idLists
)

// input reads an embeddings request's rows (docs/failures.md F10).
func (s *scanner) input() *Error {
	form, rows, err := s.inputs("input")
	if err != nil {
		return err
	}
	if len(rows) > maxInputs {
		return Invalid("input", CodeValue, "'input' has %d rows, at most %d are allowed", len(rows), maxInputs)
	}
	if form == oneText || form == texts {
		for i, row := range rows {
			if len(row) == 2 { // ""
				return Invalid("input", CodeValue, "'input' row %d is an empty string", i)
			}
		}
	}
	s.out.Text, s.rows.list, s.rows.form = rows, rows, form
	return nil
}

// prompt reads a completion's prompt, which may be empty text.
func (s *scanner) prompt() (err *Error) {
	_, s.out.Text, err = s.inputs("prompt")
	return err
}

// inputs splits the four forms: a string, strings, token ids, lists of token ids.
func (s *scanner) inputs(param string) (form shape, rows [][]byte, err *Error) {
	c, from := s.peek(), s.at
	if c == '"' {
		return oneText, [][]byte{s.skip()}, nil
	}
	if !s.enter('[') {
		return 0, nil, wrongType(param, "a string or an array", c)
	}
	n := 0
	for ; s.item(); n++ {
		row := s.skip()
		got, ok := itemForm(row)
		if n == 0 {
			form = got
		}
		if !ok || got != form {
			return 0, nil, Invalid(param, CodeType,
				"'%s' must be a string, an array of strings, of token ids, or of arrays of token ids; item %d is not", param, n)
		}
		if form != oneIDs {
			rows = append(rows, row)
		}
	}
	switch {
	case n == 0:
		return 0, nil, Invalid(param, CodeValue, "'%s' is an empty array", param)
	case form == oneIDs:
		rows = [][]byte{s.data[from:s.at:s.at]}
	}
	return form, rows, nil
}

// itemForm says which form an array with this item has.
func itemForm(item []byte) (shape, bool) {
	w := walk{data: item}
	switch {
	case item[0] == '"':
		return texts, true
	case !w.enter('['):
		return oneIDs, isID(item)
	}
	n, ok := 0, true
	for ; ok && w.item(); n++ {
		ok = isID(w.skip())
	}
	return idLists, ok && n > 0
}

func isID(v []byte) bool {
	_, err := strconv.ParseUint(alias(v), 10, 31)
	return err == nil
}

// CountIDs returns the number of token ids in a row that is an array of them,
// 0 for a string. The row must have passed ScanRequest.
func CountIDs(row []byte) int {
	if len(row) == 0 || row[0] != '[' {
		return 0
	}
	return bytes.Count(row, []byte{','}) + 1
}

// messages collects the text of a chat. Parts that are not text (images, audio)
// are the engine's to judge.
func (s *scanner) messages() *Error {
	if !s.enter('[') {
		return wrongType("messages", "an array", s.peek())
	}
	n := 0
	for ; s.item(); n++ {
		if c := s.peek(); c != '{' {
			return wrongType("messages["+strconv.Itoa(n)+"]", "an object", c)
		}
		s.texts()
	}
	if n == 0 {
		return Invalid("messages", CodeValue, "'messages' is an empty array")
	}
	return nil
}

// add appends one value to Text. Chats of up to 8 texts allocate once.
func (s *scanner) add(v []byte) {
	if s.out.Text == nil {
		s.out.Text = make([][]byte, 0, 8)
	}
	s.out.Text = append(s.out.Text, v)
}

// texts collects the text of a value that is a string, a part of text, an item
// with content, or a list of these: whatever OpenAI, Anthropic and vLLM nest
// this way. Ids, names and data (images, audio) are passed over.
func (s *scanner) texts() {
	switch {
	case s.peek() == '"':
		s.add(s.skip())
	case s.enter('['):
		for s.item() {
			s.texts()
		}
	case s.enter('{'):
		for key := s.key(); key != nil; key = s.key() {
			switch text(key) {
			case "content", "text", "output", "arguments":
				s.texts()
			default:
				s.skip()
			}
		}
	default:
		s.skip()
	}
}
