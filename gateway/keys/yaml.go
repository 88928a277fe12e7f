package keys

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

const (
	maxFlow   = 8  // brackets within brackets; a key file needs three
	maxIndent = 64 // columns
)

// blockScalar is a line that opens a text over lines. Blank ones in it cost the
// lexer time that grows with their square: 32 KiB take two seconds.
var blockScalar = regexp.MustCompile(`(?m)^[ \t]*(?:(?:---|[-?])[ \t]+)*(?:[^ \t#\n][^\n]*:[ \t]+)?(?:[!&][^ \t\n]*[ \t]+)*[|>][-+0-9]*[ \t]*(?:#.*)?$`)

var lineBreaks = strings.NewReplacer("\r\n", "\n", "\r", "\n")

// refused is what a key file has no use for, and what makes YAML slow or read
// otherwise than it looks.
var refused = map[token.Type]string{
	token.AnchorType: "an anchor", token.AliasType: "an alias", token.MergeKeyType: "a merge key",
	token.TagType: "a tag", token.DirectiveType: "a directive", token.MappingKeyType: "a complex key",
	token.LiteralType: "a block of text", token.FoldedType: "a block of text",
}

// tree parses YAML that is flat and plain. The bounds hold before the parser
// runs, since its time grows with the square of the depth at least.
func tree(raw []byte) (*ast.File, error) {
	text := lineBreaks.Replace(string(raw))
	if at := blockScalar.FindStringIndex(text); at != nil {
		return nil, fmt.Errorf("line %d: a block of text is not for a key file: write it in quotes", 1+strings.Count(text[:at[0]], "\n"))
	}
	tokens := lexer.Tokenize(text)
	line, depth := 0, 0
	for _, t := range tokens {
		if what := refused[t.Type]; what != "" {
			return nil, fmt.Errorf("line %d: %s is not for a key file", t.Position.Line, what)
		}
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			depth++
		case token.SequenceEndType, token.MappingEndType:
			depth--
		}
		opens := depth == 0 && t.Position.Line > line || t.Type == token.SequenceEntryType
		if depth > maxFlow || opens && t.Position.Column > maxIndent && t.Type != token.CommentType {
			return nil, fmt.Errorf("line %d: too deep for a key file", t.Position.Line)
		}
		line = t.Position.Line
	}
	f, err := parser.Parse(tokens, 0)
	if err == nil && len(f.Docs) > 1 {
		err = fmt.Errorf("line %d: %d YAML documents, want one", f.Docs[1].Start.Position.Line, len(f.Docs))
	}
	return f, err
}
