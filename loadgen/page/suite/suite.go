// Package suite is what every page made of loadgen/page/sheet has to pass; the
// tests of loadgen/page and sim/page call it.
package suite

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Hostile is a name as no file should have it.
const Hostile = `<script src="http://evil.example/x.js">alert(1)</script>"'&<img onerror=x>`

// outside is what a page must not have: anything that is fetched, or runs.
var outside = regexp.MustCompile(`(?i)<(script|link|iframe|img|image|object|embed|base|form|use|foreignobject)\b|\s(src|href|srcset|action|style|on[a-z]+)=|url\(|@import|xmlns`)

// SelfContained holds pages about Hostile, by kind, to need nothing but
// themselves, and to show the name without taking it for HTML.
func SelfContained(t *testing.T, pages map[string]string) {
	t.Helper()
	for kind, text := range pages {
		if found := outside.FindAllString(stripped(text), 5); found != nil {
			t.Errorf("%s has %q", kind, found)
		}
		style := text[strings.Index(text, "<style>"):strings.Index(text, "</style>")]
		if found := outside.FindString(style); found != "" {
			t.Errorf("the style of %s has %q", kind, found)
		}
		if strings.Contains(text, "<script") || strings.Contains(text, "<img") {
			t.Errorf("%s has a name that was not escaped", kind)
		}
		if !strings.Contains(text, "&lt;script src=&#34;http://evil.example") {
			t.Errorf("%s does not show the name", kind)
		}
		for _, bad := range []string{"NaN", "Inf", "ZgotmplZ", "%!", "<no value>"} {
			if strings.Contains(text, bad) {
				t.Errorf("%s has %q", kind, bad)
			}
		}
	}
}

// stripped is a page without its texts and the values of its attributes, where
// a name may say what it likes.
func stripped(page string) string {
	page = regexp.MustCompile(`"[^"]*"`).ReplaceAllString(page, `""`)
	return regexp.MustCompile(`>[^<]*<`).ReplaceAllString(page, "><")
}

// Accessible holds pages, by kind, to this: every chart has words, every id is
// there once, what is named is there, and tables are whole. Of the kinds named
// apart a page may be without charts.
func Accessible(t *testing.T, pages map[string]string, bare ...string) {
	t.Helper()
	for kind, text := range pages {
		ids := map[string]bool{}
		for _, m := range regexp.MustCompile(` id="([^"]*)"`).FindAllStringSubmatch(text, -1) {
			if ids[m[1]] {
				t.Errorf("%s: id %s is there twice", kind, m[1])
			}
			ids[m[1]] = true
		}
		charts := regexp.MustCompile(`<svg [^>]*role="img" aria-labelledby="(\S+) (\S+)"`).FindAllStringSubmatch(text, -1)
		if n := strings.Count(text, "<figure>"); len(charts) != n || n == 0 && !slices.Contains(bare, kind) {
			t.Errorf("%s: %d figures, %d of them labelled", kind, n, len(charts))
		}
		for _, c := range charts {
			if !ids[c[1]] || !ids[c[2]] {
				t.Errorf("%s: no title or description %s, %s", kind, c[1], c[2])
			}
		}
		if strings.Contains(text, "<desc></desc>") || regexp.MustCompile(`<desc id="[^"]*"></desc>`).MatchString(text) {
			t.Errorf("%s: a chart has an empty description", kind)
		}
		if tables, captions := strings.Count(text, "<table>"), strings.Count(text, "<caption>"); tables != captions || tables == 0 {
			t.Errorf("%s: %d tables, %d captions", kind, tables, captions)
		}
		for _, found := range regexp.MustCompile(`(?s)<table>.*?</table>`).FindAllString(text, -1) {
			head := strings.Count(found, `<th scope="col"`)
			for _, row := range regexp.MustCompile(`<tr><th scope="row">.*</tr>`).FindAllString(found, -1) {
				if n := strings.Count(row, "<td") + 1; n != head {
					t.Errorf("%s: a row of %d cells below %d heads: %s", kind, n, head, row)
				}
			}
		}
	}
}
