package pool

import (
	"slices"
	"testing"
)

func TestListed(t *testing.T) {
	for _, tc := range []struct {
		text string
		want []string
		bad  bool
	}{
		{text: `{"object":"list","data":[{"id":"base"},{"id":"fr","parent":"base"},{"id":"de"}]}`, want: []string{"de", "fr"}},
		{text: `{"data":[{"id":"fr-2"},{"id":""}]}`},
		{text: `{}`},
		{text: `{"data":null}`},
		{text: `{"data":{}}`, bad: true},
		{text: `<html>`, bad: true},
		{text: ``, bad: true},
	} {
		got, err := listed([]byte(tc.text), []string{"de", "fr"})
		if !slices.Equal(got, tc.want) || (err != nil) != tc.bad {
			t.Errorf("%s: %q, %v; want %q", tc.text, got, err, tc.want)
		}
	}
}

// FuzzListed: whatever an engine says, only what was asked for comes out.
func FuzzListed(f *testing.F) {
	f.Add([]byte(`{"data":[{"id":"fr"}]}`))
	f.Add([]byte(`{"data":[{"id":7}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if got, _ := listed(text, []string{"fr"}); len(got) > 1 || len(got) == 1 && got[0] != "fr" {
			t.Fatalf("%q of %q", got, text)
		}
	})
}
