package evaluation

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Bounds of a set: every document's vector is held until the end.
const (
	maxRows  = 20_000
	maxBytes = 64 << 20
)

// Set is what a model is asked.
type Set struct {
	SetInfo
	Rows []Row
}

// Row is one line of a set's file. Which fields it has says what it asks:
//
//	{"prompt": "…", "expect": "…"}              a completion, and what it must be
//	{"messages": […], "expect": ["…", "…"]}     a chat, and the answers that are right
//	{"text": "…"}                               held-out text to predict
//	{"query": "…", "relevant": ["d1"]}          a search, and the documents it must find
//	{"id": "d1", "document": "…"}               one of the documents
//
// Without expect an answer is only timed and compared.
type Row struct {
	ID        string          `json:"id"`
	Prompt    string          `json:"prompt"`
	Messages  json.RawMessage `json:"messages"`
	Expect    oneOrMore       `json:"expect"`
	Match     string          `json:"match"`      // exact (default), prefix or contains
	MaxTokens int             `json:"max_tokens"` // of an answer; 0 = Options.MaxTokens
	Stop      oneOrMore       `json:"stop"`
	Text      string          `json:"text"`
	Query     string          `json:"query"`
	Relevant  []string        `json:"relevant"`
	Document  string          `json:"document"`
}

// oneOrMore is a string or a list of them.
type oneOrMore []string

// UnmarshalJSON implements json.Unmarshaler.
func (l *oneOrMore) UnmarshalJSON(b []byte) error {
	var one string
	if json.Unmarshal(b, &one) == nil {
		*l = oneOrMore{one}
		return nil
	}
	var more []string
	if err := json.Unmarshal(b, &more); err != nil {
		return errors.New("want a text or a list of them")
	}
	*l = more
	return nil
}

// ReadSet reads a set. An error names the line.
func ReadSet(name string, r io.Reader) (Set, error) {
	all, err := io.ReadAll(io.LimitReader(r, maxBytes+1))
	if err != nil {
		return Set{}, fmt.Errorf("set %s: %w", name, err)
	}
	if len(all) > maxBytes {
		return Set{}, fmt.Errorf("set %s has more than %d bytes", name, maxBytes)
	}
	sum := sha256.Sum256(all)
	s := Set{SetInfo: SetInfo{Name: name, SHA256: hex.EncodeToString(sum[:])}}
	documents := map[string]bool{}
	lines := bufio.NewScanner(bytes.NewReader(all))
	lines.Buffer(nil, 1<<20)
	at := 0
	for lines.Scan() {
		at++
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		var row Row
		dec := json.NewDecoder(bytes.NewReader(lines.Bytes()))
		dec.DisallowUnknownFields()
		err := dec.Decode(&row)
		if err == nil {
			err = row.validate()
		}
		if err == nil && row.Document != "" {
			if documents[row.ID] {
				err = fmt.Errorf("there is another document %q", row.ID)
			}
			documents[row.ID] = true
		}
		if err == nil && len(s.Rows) == maxRows {
			err = fmt.Errorf("more than %d rows", maxRows)
		}
		if err != nil {
			return Set{}, fmt.Errorf("set %s, line %d: %w", name, at, err)
		}
		s.Rows = append(s.Rows, row)
	}
	if err := lines.Err(); err != nil {
		return Set{}, fmt.Errorf("set %s, line %d: %w", name, at+1, err)
	}
	if s.SetInfo.Rows = len(s.Rows); len(s.Rows) == 0 {
		return Set{}, fmt.Errorf("set %s has no rows", name)
	}
	for _, row := range s.Rows {
		for _, id := range row.Relevant {
			if !documents[id] {
				return Set{}, fmt.Errorf("set %s: query %q calls %q relevant, and there is no such document", name, row.Query, id)
			}
		}
	}
	return s, nil
}

func (r Row) validate() error {
	asks := 0
	for _, there := range []bool{r.Prompt != "", r.Messages != nil, r.Text != "", r.Query != "", r.Document != ""} {
		if there {
			asks++
		}
	}
	var turns []json.RawMessage
	generates := r.Prompt != "" || r.Messages != nil
	switch {
	case asks != 1:
		return fmt.Errorf("want one of prompt, messages, text, query and document, got %d", asks)
	case r.Messages != nil && (json.Unmarshal(r.Messages, &turns) != nil || len(turns) == 0):
		return errors.New("messages: want a list with at least one message")
	case !generates && (r.Expect != nil || r.Match != "" || r.MaxTokens != 0 || r.Stop != nil):
		return errors.New("expect, match, max_tokens and stop go with prompt or messages")
	case !slices.Contains([]string{"", "exact", "prefix", "contains"}, r.Match):
		return fmt.Errorf("match is %q, want exact, prefix or contains", r.Match)
	case r.MaxTokens < 0 || r.MaxTokens > 1<<16:
		return fmt.Errorf("max_tokens is %d, want 1 to %d", r.MaxTokens, 1<<16)
	case len(r.Stop) > 4:
		return fmt.Errorf("stop has %d texts, want at most 4", len(r.Stop))
	case r.Expect != nil && slices.ContainsFunc(r.Expect, func(e string) bool { return strings.TrimSpace(e) == "" }):
		return errors.New("expect: an empty text is no answer")
	case r.Query != "" && len(r.Relevant) == 0:
		return errors.New("a query without relevant documents measures nothing")
	case r.Query == "" && r.Relevant != nil:
		return errors.New("relevant goes with query")
	case r.Document != "" && r.ID == "":
		return errors.New("a document needs an id")
	}
	return nil
}

// right reports whether an answer is an expected one. White space around either
// does not matter; a prefix must end where a word does.
func (r Row) right(answer string) bool {
	answer = strings.TrimSpace(answer)
	return slices.ContainsFunc(r.Expect, func(want string) bool {
		want = strings.TrimSpace(want)
		switch r.Match {
		case "prefix":
			rest, ok := strings.CutPrefix(answer, want)
			return ok && (rest == "" || !letter(rest[0]))
		case "contains":
			return strings.Contains(answer, want)
		}
		return answer == want
	})
}

func letter(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c >= 0x80
}
