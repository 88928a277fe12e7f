package openai

import (
	"bytes"
	"strconv"

	"github.com/tidwall/gjson"
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
func (s *scanner) input(v gjson.Result) *Error {
	form, rows, err := s.rows("input", v)
	if err != nil {
		return err
	}
	if len(rows) > MaxInputs {
		return Invalid("input", CodeValue, "'input' has %d rows, at most %d are allowed", len(rows), MaxInputs)
	}
	if form == oneText || form == texts {
		for i, row := range rows {
			if len(row) == 2 { // ""
				return Invalid("input", CodeValue, "'input' row %d is an empty string", i)
			}
		}
	}
	s.out.Inputs, s.out.Text = rows, rows
	return nil
}

// prompt reads a completion's prompt, which may be empty text.
func (s *scanner) prompt(v gjson.Result) (err *Error) {
	_, s.out.Text, err = s.rows("prompt", v)
	return err
}

// rows splits the four forms: a string, strings, token ids, lists of token ids.
func (s *scanner) rows(param string, v gjson.Result) (form shape, rows [][]byte, err *Error) {
	switch {
	case v.Type == gjson.String:
		return oneText, [][]byte{raw(s.body, v)}, nil
	case !v.IsArray():
		return 0, nil, wrongType(param, "a string or an array", v)
	}
	n := 0
	v.ForEach(func(_, item gjson.Result) bool {
		got, ok := itemForm(item)
		if n == 0 {
			form = got
		}
		if !ok || got != form {
			err = Invalid(param, CodeType,
				"'%s' must be a string, an array of strings, of token ids, or of arrays of token ids; item %d is not", param, n)
			return false
		}
		if n++; form != oneIDs {
			rows = append(rows, raw(s.body, item))
		}
		return true
	})
	switch {
	case err != nil:
		return 0, nil, err
	case n == 0:
		return 0, nil, Invalid(param, CodeValue, "'%s' is an empty array", param)
	case form == oneIDs:
		rows = [][]byte{raw(s.body, v)}
	}
	return form, rows, nil
}

// itemForm says which form an array with this item has.
func itemForm(item gjson.Result) (shape, bool) {
	switch {
	case item.Type == gjson.String:
		return texts, true
	case item.Type == gjson.Number:
		return oneIDs, isID(item)
	case !item.IsArray():
		return 0, false
	}
	n, ok := 0, true
	item.ForEach(func(_, id gjson.Result) bool {
		n++
		ok = isID(id)
		return ok
	})
	return idLists, ok && n > 0
}

func isID(v gjson.Result) bool {
	if v.Type != gjson.Number {
		return false
	}
	_, err := strconv.ParseUint(v.Raw, 10, 31)
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
func (s *scanner) messages(v gjson.Result) (err *Error) {
	if !v.IsArray() {
		return wrongType("messages", "an array", v)
	}
	n := 0
	v.ForEach(func(_, message gjson.Result) bool {
		if !message.IsObject() {
			err = wrongType("messages["+strconv.Itoa(n)+"]", "an object", message)
			return false
		}
		n++
		s.texts(message)
		return true
	})
	if err == nil && n == 0 {
		err = Invalid("messages", CodeValue, "'messages' is an empty array")
	}
	return err
}

// add appends one value to Text. Chats of up to 8 texts allocate once.
func (s *scanner) add(v gjson.Result) {
	if s.out.Text == nil {
		s.out.Text = make([][]byte, 0, 8)
	}
	s.out.Text = append(s.out.Text, raw(s.body, v))
}

// texts collects the text of v, which is a string, a part of text, an item
// with content, or a list of these: whatever OpenAI, Anthropic and vLLM nest
// this way. Ids, names and data (images, audio) are passed over.
func (s *scanner) texts(v gjson.Result) {
	switch {
	case v.Type == gjson.String:
		s.add(v)
	case v.IsArray():
		v.ForEach(func(_, item gjson.Result) bool {
			s.texts(item)
			return true
		})
	case v.IsObject():
		v.ForEach(func(key, item gjson.Result) bool {
			switch key.Str {
			case "content", "text", "output", "arguments":
				s.texts(item)
			}
			return true
		})
	}
}
