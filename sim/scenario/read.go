package scenario

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"

	"aloft/configs"
)

// maxBytes bounds a scenario's file: the decoder takes half a second a MiB.
const maxBytes = 256 << 10

// Load reads a scenario's file or, where there is none, the built-in scenario
// of that name.
func Load(path string) (*Scenario, error) {
	text, err := Text(path)
	if err != nil {
		return nil, err
	}
	s, err := Parse(text)
	if err != nil {
		return nil, fmt.Errorf("scenario %s: %w", path, err)
	}
	return s, nil
}

// Names of the built-in scenarios.
func Names() []string {
	files, err := configs.Scenarios.ReadDir("scenarios")
	if err != nil {
		panic("BUG: " + err.Error())
	}
	var names []string
	for _, f := range files {
		names = append(names, strings.TrimSuffix(f.Name(), ".yaml"))
	}
	return names
}

// Parse reads a scenario and checks it. Unknown keys are errors, and errors name
// the line where there is one to name.
func Parse(text []byte) (s *Scenario, err error) {
	if len(text) > maxBytes {
		return nil, fmt.Errorf("%d bytes, want at most %d", len(text), maxBytes)
	}
	defer func() { // the decoder of goccy/go-yaml 1.19.2 panics on a tag without a value
		if p := recover(); p != nil {
			s, err = nil, fmt.Errorf("the YAML decoder fails on this text: %v", p)
		}
	}()
	s = &Scenario{}
	if err := yaml.UnmarshalWithOptions(text, s, yaml.Strict()); err != nil {
		message := strings.TrimSpace(yaml.FormatError(err, false, false))
		message = position.ReplaceAllString(message, "line $1: ")
		if m := mistyped.FindStringSubmatch(message); m != nil && wanted[m[2]] != "" {
			message = mistyped.ReplaceAllString(message, "want "+wanted[m[2]]+", not "+found(m[1]))
		}
		return nil, errors.New(message)
	}
	c := &check{text: text}
	c.scenario(s)
	if c.err != nil {
		return nil, c.err
	}
	return s, nil
}

// position is how the decoder's messages begin.
var position = regexp.MustCompile(`^\[(\d+):\d+\] `)

// mistyped is how the decoder says that a value is of another type, in Go's words;
// wanted has ours.
var (
	mistyped = regexp.MustCompile(`cannot unmarshal (.+?) into Go .*of type (\S+)( \( overflow \))?`)
	wanted   = map[string]string{"int": "a whole number", "uint64": "a whole number of at least 0", "float64": "a number", "string": "text", "bool": "true or false"}
)

// found is what stands there instead.
func found(kind string) string {
	switch {
	case kind == "string":
		return "text"
	case strings.HasPrefix(kind, "map["):
		return "keys"
	case strings.HasPrefix(kind, "[]"):
		return "a list"
	}
	return kind
}

// UnmarshalYAML reads "auto" or a number.
func (c *Copies) UnmarshalYAML(text []byte) error {
	word := strings.TrimSpace(string(text))
	if word == "auto" {
		*c = 0
		return nil
	}
	n, err := strconv.Atoi(word)
	if err != nil || n < 1 || n > maxCopies {
		return fmt.Errorf("copies is %s, want auto or 1 to %d", word, maxCopies)
	}
	*c = Copies(n)
	return nil
}
