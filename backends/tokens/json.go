package tokens

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"
)

// file is a tokenizer.json of Hugging Face's tokenizers library, as far as counting
// depends on it. What it does not know it refuses.
type file struct {
	Added []struct {
		Content string `json:"content"`
	} `json:"added_tokens"`
	Normalizer *part      `json:"normalizer"`
	Pre        *part      `json:"pre_tokenizer"`
	Post       *part      `json:"post_processor"`
	Model      *modelPart `json:"model"`
}

// part is a normalizer, a pre-tokenizer or a post-processor: the fields of all of
// them, or a sequence.
type part struct {
	Type           string `json:"type"`
	Normalizers    []part `json:"normalizers"`
	PreTokenizers  []part `json:"pretokenizers"`
	Processors     []part `json:"processors"`
	Lowercase      *bool  `json:"lowercase"`
	StripAccents   *bool  `json:"strip_accents"`
	Chinese        *bool  `json:"handle_chinese_chars"`
	UseRegex       *bool  `json:"use_regex"`
	AddPrefixSpace *bool  `json:"add_prefix_space"`
	PrependScheme  string `json:"prepend_scheme"`
	Prepend        string `json:"prepend"`
	Content        string `json:"content"`
	Charsmap       []byte `json:"precompiled_charsmap"`
	Individual     bool   `json:"individual_digits"`
	Invert         bool   `json:"invert"`
	Behavior       string `json:"behavior"`
	Pattern        struct {
		Regex  string `json:"Regex"`
		String string `json:"String"`
	} `json:"pattern"`
	Single []map[string]json.RawMessage `json:"single"`
}

type modelPart struct {
	Type         string          `json:"type"`
	Vocab        json.RawMessage `json:"vocab"`
	Merges       json.RawMessage `json:"merges"`
	Continuing   *string         `json:"continuing_subword_prefix"`
	MaxChars     int             `json:"max_input_chars_per_word"`
	ByteFallback bool            `json:"byte_fallback"`
	IgnoreMerges bool            `json:"ignore_merges"`
	Unknown      json.RawMessage `json:"unk_id"`
}

// JSON makes the counter of a model from its tokenizer.json.
func JSON(text []byte) (*Counter, error) {
	var f file
	if err := json.Unmarshal(text, &f); err != nil {
		return nil, fmt.Errorf("is no tokenizer.json: %w", err)
	}
	if f.Model == nil || len(f.Model.Vocab) == 0 {
		return nil, errors.New("is no tokenizer.json: it has no model with a vocabulary")
	}
	c := &Counter{around: around(f.Post)}
	var err error
	kind := f.Model.Type
	if kind == "" { // old files do not say
		switch {
		case len(f.Model.Merges) > 0:
			kind = "BPE"
		case f.Model.Continuing != nil:
			kind = "WordPiece"
		}
	}
	switch kind {
	case "WordPiece":
		c.model, err = f.wordPiece()
	case "BPE":
		c.model, err = f.bpe()
	case "Unigram":
		c.model, err = f.unigram()
	default:
		err = fmt.Errorf("a tokenizer of kind %q is not known", kind)
	}
	if err != nil {
		return nil, err
	}
	var words []string
	for _, a := range f.Added {
		if a.Content != "" {
			words = append(words, a.Content)
		}
	}
	c.added = newAdded(words, "")
	return c, nil
}

// around is how many tokens a post-processor puts around one text.
func around(p *part) (n int) {
	if p == nil {
		return 0
	}
	switch p.Type {
	case "BertProcessing", "RobertaProcessing":
		return 2
	case "TemplateProcessing":
		for _, piece := range p.Single {
			if _, ok := piece["SpecialToken"]; ok {
				n++
			}
		}
	}
	for i := range p.Processors {
		n += around(&p.Processors[i])
	}
	return n
}

// flat is a part's steps, one after the other.
func (p *part) flat() []part {
	if p == nil {
		return nil
	}
	if p.Type != "Sequence" {
		return []part{*p}
	}
	var out []part
	for _, list := range [][]part{p.Normalizers, p.PreTokenizers} {
		for i := range list {
			if list[i].Type != "Sequence" { // no file nests them
				out = append(out, list[i])
			}
		}
	}
	return out
}

func is(b *bool, otherwise bool) bool {
	if b == nil {
		return otherwise
	}
	return *b
}

// ids reads a vocabulary of the form {"token": id}.
func (m *modelPart) ids() (*vocabulary, error) {
	var ids map[string]int64
	if err := json.Unmarshal(m.Vocab, &ids); err != nil {
		return nil, fmt.Errorf("vocabulary: %w", err)
	}
	if len(ids) == 0 || len(ids) > maxTokens {
		return nil, fmt.Errorf("a vocabulary of %d tokens, want 1 to %d", len(ids), maxTokens)
	}
	v := &vocabulary{}
	for t := range ids {
		v.tokens = append(v.tokens, t)
		v.kinds = append(v.kinds, normal)
	}
	v.scores = make([]float64, len(v.tokens))
	return v, nil
}

func (f *file) wordPiece() (counter, error) {
	v, err := f.Model.ids()
	if err != nil {
		return nil, err
	}
	marker := "##"
	if f.Model.Continuing != nil {
		marker = *f.Model.Continuing
	}
	var head, rest []string
	for _, t := range v.tokens {
		if t != "" {
			head = append(head, t)
		}
		if word, ok := strings.CutPrefix(t, marker); ok && word != "" {
			rest = append(rest, word)
		}
	}
	w := newWordPiece(head, rest)
	w.whole, w.lower, w.strip, w.chinese, w.longest = true, false, false, false, f.Model.MaxChars
	if w.longest == 0 {
		w.longest = 100
	}
	bert := false
	for _, n := range f.Normalizer.flat() {
		switch n.Type {
		case "BertNormalizer":
			bert = true
			w.lower = is(n.Lowercase, true)
			w.strip, w.chinese = is(n.StripAccents, w.lower), is(n.Chinese, true)
		default:
			return nil, fmt.Errorf("a normalizer %q for WordPiece is not known", n.Type)
		}
	}
	if !bert || f.Pre == nil || f.Pre.Type != "BertPreTokenizer" {
		return nil, errors.New("WordPiece is known as BERT has it: BertNormalizer and BertPreTokenizer")
	}
	return w, nil
}

// pairs reads merges, each "left right" or ["left", "right"].
func (m *modelPart) pairs() ([][2]string, error) {
	var list []string
	if json.Unmarshal(m.Merges, &list) == nil {
		return sides(list)
	}
	var out [][2]string
	if err := json.Unmarshal(m.Merges, &out); err != nil {
		return nil, fmt.Errorf("merges: %w", err)
	}
	return out, nil
}

func (f *file) bpe() (counter, error) {
	v, err := f.Model.ids()
	if err != nil {
		return nil, err
	}
	merges, err := f.Model.pairs()
	if err != nil {
		return nil, err
	}
	pre := f.Pre.flat()
	if n := len(pre); n > 0 && pre[n-1].Type == "ByteLevel" {
		cut, err := cutterOf(pre)
		if err != nil {
			return nil, err
		}
		for _, n := range f.Normalizer.flat() {
			if n.Type != "NFC" { // nearly all text is in that form already
				return nil, fmt.Errorf("a normalizer %q for byte-level BPE is not known", n.Type)
			}
		}
		return newByteLevel(v, merges, cut, f.Model.IgnoreMerges)
	}
	return f.blankBPE(v, merges)
}

// The regular expressions that byte-level models cut by, as their files spell them.
var regexes = map[string]cutter{
	`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`:                                                                                                                                                                llama3,
	`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`:                                                                                                                                                                     qwen2,
	`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`:                                                                                                                                                         qwen35,
	`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`: gpt4o.with(allCases),
	`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`:                                                                tekken.with(allCases),
	`'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`:                                                                                                                                                                                                         gpt2,
}

func (k cutter) with(c cases) cutter {
	k.cases = c
	return k
}

// cutterOf finds the scanner for what comes before ByteLevel, the last of them.
func cutterOf(pre []part) (cutter, error) {
	last := pre[len(pre)-1]
	if is(last.AddPrefixSpace, false) {
		return cutter{}, errors.New("byte-level BPE that puts a space before each text is not known")
	}
	pre = pre[:len(pre)-1]
	switch {
	case len(pre) == 0 && is(last.UseRegex, true):
		return gpt2, nil
	case len(pre) == 1 && pre[0].Type == "Digits" && pre[0].Individual && is(last.UseRegex, true):
		return starcoder, nil
	case len(pre) == 1 && pre[0].Type == "Split" && !is(last.UseRegex, true) && (pre[0].Behavior == "Isolated" || pre[0].Invert):
		if k, ok := regexes[pre[0].Pattern.Regex]; ok {
			return k, nil
		}
		return cutter{}, fmt.Errorf("the regular expression %.200q is not known", pre[0].Pattern.Regex)
	}
	return cutter{}, errors.New("this combination of pre-tokenizers is not known")
}

// blankBPE is BPE over characters with a blank for each space, as the files of
// Llama 2 and Gemma have it.
func (f *file) blankBPE(v *vocabulary, merges [][2]string) (counter, error) {
	j := newJoiner(v, f.Model.ByteFallback)
	if err := j.ranked(merges); err != nil {
		return nil, err
	}
	s := newSentence(v, j)
	for _, n := range f.Normalizer.flat() {
		switch {
		case n.Type == "Prepend" && n.Prepend == blank:
			s.prefix, s.always = true, true
		case n.Type == "Replace" && n.Pattern.String == " " && n.Content == blank:
		default:
			return nil, fmt.Errorf("a normalizer %q for BPE is not known", n.Type)
		}
	}
	for _, p := range f.Pre.flat() {
		switch {
		case p.Type == "Metaspace":
			s.metaspace(&p)
		case p.Type == "Split" && p.Pattern.String == " ": // after the replacement there is none
		default:
			return nil, fmt.Errorf("a pre-tokenizer %q for BPE is not known", p.Type)
		}
	}
	return s, nil
}

func (c *sentence) metaspace(p *part) {
	scheme := p.PrependScheme
	if scheme == "" {
		scheme = "always"
		if !is(p.AddPrefixSpace, true) {
			scheme = "never"
		}
	}
	c.prefix, c.always, c.unlessThere = scheme != "never", scheme == "always", true
}

func (f *file) unigram() (counter, error) {
	var list [][2]any
	if err := json.Unmarshal(f.Model.Vocab, &list); err != nil {
		return nil, fmt.Errorf("vocabulary: %w", err)
	}
	if len(list) == 0 || len(list) > maxTokens {
		return nil, fmt.Errorf("a vocabulary of %d tokens, want 1 to %d", len(list), maxTokens)
	}
	unknownID := int64(-1)
	_ = json.Unmarshal(f.Model.Unknown, &unknownID) // null or absent: there is none
	v := &vocabulary{}
	for i, entry := range list {
		t, ok := entry[0].(string)
		score, also := entry[1].(float64)
		if !ok || !also || math.IsNaN(score) || !utf8.ValidString(t) {
			return nil, fmt.Errorf("entry %d of the vocabulary is no token with its score", i)
		}
		kind := int64(normal)
		if int64(i) == unknownID {
			kind = unknown
		}
		v.tokens, v.scores, v.kinds = append(v.tokens, t), append(v.scores, score), append(v.kinds, kind)
	}
	u := newUnigram(v)
	u.bytes = f.Model.ByteFallback
	s := newSentence(v, u)
	for _, n := range f.Normalizer.flat() {
		switch {
		case n.Type == "Precompiled":
			var err error
			if s.charsmap, err = newCharsmap(n.Charsmap); err != nil {
				return nil, err
			}
		case n.Type == "Replace" && n.Pattern.Regex == " {2,}" && n.Content == " ":
			s.single = true
		default:
			return nil, fmt.Errorf("a normalizer %q for unigram is not known", n.Type)
		}
	}
	for _, p := range f.Pre.flat() {
		switch p.Type {
		case "Metaspace":
			s.metaspace(&p)
		case "WhitespaceSplit":
			s.squeeze = true
		default:
			return nil, fmt.Errorf("a pre-tokenizer %q for unigram is not known", p.Type)
		}
	}
	return s, nil
}
