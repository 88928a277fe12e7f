package openai

import (
	"bytes"
	"encoding/json"
	"testing"
	"unicode/utf8"

	"github.com/tidwall/gjson"
)

// gjson is the oracle: both must see the same keys, values and texts.
func sameWalk(t *testing.T, w *walk, v gjson.Result) {
	t.Helper()
	switch {
	case v.IsObject():
		inner := *w
		inner.enter('{')
		v.ForEach(func(k, v gjson.Result) bool {
			if key := inner.key(); string(key) != k.Raw || text(key) != k.Str {
				t.Fatalf("key %q, want %q", key, k.Raw)
			}
			sameWalk(t, &inner, v)
			return true
		})
		if key := inner.key(); key != nil {
			t.Fatalf("key %q after the last", key)
		}
	case v.IsArray():
		inner := *w
		inner.enter('[')
		v.ForEach(func(_, v gjson.Result) bool {
			if !inner.item() {
				t.Fatalf("no item, want %s", v.Raw)
			}
			sameWalk(t, &inner, v)
			return true
		})
		if inner.item() {
			t.Fatal("an item after the last")
		}
	}
	raw := w.skip()
	if string(raw) != v.Raw || v.Type == gjson.String && text(raw) != v.Str {
		t.Fatalf("value %q, want %q", raw, v.Raw)
	}
}

func FuzzWalk(f *testing.F) {
	for _, s := range []string{`{"a":[1,-2.5e3,true,null,{}],"b\n":"c\\\"\u00e9\\"}`, ` [ ] `, `"\ud800"`, `{"a":{"b":[[],[{}]]}}`, `{"a":"\`, `[}]{`, `{"a"`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		keep := bytes.Clone(data)
		if json.Valid(data) && !tooDeep(data) {
			sameWalk(t, &walk{data: data}, gjson.ParseBytes(bytes.TrimSpace(data)))
		}
		// Whatever the bytes, it ends and stays within them.
		w := walk{data: data}
		for w.at < len(data) {
			before := w.at
			if w.enter('{') || w.enter('[') || w.key() != nil || w.item() {
				w.filled()
			}
			if w.at <= before {
				t.Fatalf("%q: no step at byte %d", data, before)
			}
		}
		for _, scan := range []func(){
			func() { scanChunk(data) }, func() { ScanUsage(data) }, func() { responsesEvent(nil, data) }, func() { messagesEvent(nil, data) },
		} {
			scan()
		}
		if !bytes.Equal(keep, data) {
			t.Fatal("changed its input")
		}
	})
}

func FuzzAppendText(f *testing.F) {
	for _, s := range []string{`"a"`, `""`, `"\u00e9\n\t\"\\\/"`, `"\ud83d\ude42"`, `"\ud83d"`, `"\ud83dx"`, `"\ude42\ud83d"`, `"\ud83d\ud83d\ude42"`, `"\u0000"`, `"\uD83D\uDE42é"`, `"\b\f\r"`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := string(AppendText([]byte("x"), []byte(s)))
		if !json.Valid([]byte(s)) || s[0] != '"' || s[len(s)-1] != '"' {
			return // any bytes end
		}
		var want string
		if err := json.Unmarshal([]byte(s), &want); err != nil || !utf8.ValidString(s) {
			return
		}
		if got != "x"+want {
			t.Errorf("%q: %q, want %q", s, got[1:], want)
		}
	})
}
