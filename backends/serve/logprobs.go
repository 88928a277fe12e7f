package serve

import (
	"encoding/json"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/tidwall/gjson"
)

// appendLogprobs writes ,"logprobs":… for the tokens of p, null without any.
// Chat and completions have different shapes for the same facts.
func (f *frames) appendLogprobs(dst []byte, p joined) []byte {
	dst = append(dst, `,"logprobs":`...)
	switch {
	case len(p.tokens) == 0:
		return append(dst, "null"...)
	case f.chat:
		dst = append(dst, `{"content":[`...)
		for i, t := range p.tokens {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = appendChatToken(dst, t.Text, t.Logprob)
			dst = append(dst, `,"top_logprobs":[`...)
			for j, top := range t.Top {
				if j > 0 {
					dst = append(dst, ',')
				}
				dst = append(appendChatToken(dst, top.Text, top.Logprob), '}')
			}
			dst = append(dst, "]}"...)
		}
		return append(dst, `],"refusal":null}`...)
	}
	return f.appendCompletionLogprobs(dst, p.tokens)
}

// appendChatToken leaves the object open. bytes is there because a token may be
// part of a rune, which the text cannot show.
func appendChatToken(dst []byte, text string, logprob float64) []byte {
	dst = gjson.AppendJSONString(append(dst, `{"token":`...), text)
	dst = appendLogprob(append(dst, `,"logprob":`...), logprob)
	dst = append(dst, `,"bytes":[`...)
	for i := range len(text) {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendUint(dst, uint64(text[i]), 10)
	}
	return append(dst, ']')
}

// appendLogprob writes -9999 for what JSON cannot hold (minus infinity), as
// OpenAI does for very unlikely tokens.
func appendLogprob(dst []byte, v float64) []byte {
	if !(v >= -9999) { // NaN too
		v = -9999
	}
	return strconv.AppendFloat(dst, min(v, 0), 'g', 8, 64)
}

func (f *frames) appendCompletionLogprobs(dst []byte, tokens []Piece) []byte {
	var names, values, tops, offsets []string
	for _, t := range tokens {
		names = append(names, quote(t.Text))
		offsets = append(offsets, strconv.Itoa(f.offset))
		f.offset += utf8.RuneCountInString(t.Text)
		if t.First {
			values, tops = append(values, "null"), append(tops, "null")
			continue
		}
		values = append(values, string(appendLogprob(nil, t.Logprob)))
		var top []string
		for _, alt := range t.Top {
			top = append(top, quote(alt.Text)+":"+string(appendLogprob(nil, alt.Logprob)))
		}
		tops = append(tops, "{"+strings.Join(top, ",")+"}")
	}
	return append(dst, `{"tokens":[`+strings.Join(names, ",")+`],"token_logprobs":[`+strings.Join(values, ",")+
		`],"top_logprobs":[`+strings.Join(tops, ",")+`],"text_offset":[`+strings.Join(offsets, ",")+`]}`...)
}

func quote(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic("BUG: a string does not marshal: " + err.Error())
	}
	return string(b)
}
