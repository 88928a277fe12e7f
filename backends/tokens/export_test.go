package tokens

import (
	"maps"
	"slices"
)

// PreTokenizers lists one tokenizer.ggml.pre of each kind.
func PreTokenizers() (out []string) {
	seen := map[any]bool{}
	for _, name := range slices.Sorted(maps.Keys(preTokenizers)) {
		if how := preTokenizers[name]; !seen[how] {
			seen[how] = true
			out = append(out, name)
		}
	}
	return out
}

// Written is how a byte-level vocabulary writes some bytes.
func Written(text string) string {
	var out []rune
	for i := range len(text) {
		out = append(out, printable[text[i]])
	}
	return string(out)
}
