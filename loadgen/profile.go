package loadgen

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/parser"

	"aloft/loadgen/arrivals"
)

// ReadProfile reads a profile and checks it. Unknown keys are errors, and errors
// name the line wherever there is one to name.
func ReadProfile(text []byte) (opt Options, err error) {
	defer func() { // the decoder of goccy/go-yaml 1.19.2 panics on a tag without a value
		if p := recover(); p != nil {
			opt, err = Options{}, fmt.Errorf("the YAML decoder fails on this text: %v", p)
		}
	}()
	if err = yaml.UnmarshalWithOptions(text, &opt, yaml.Strict()); err != nil {
		return Options{}, located(strings.TrimSpace(yaml.FormatError(err, false, false)))
	}
	if err = opt.Validate(); err != nil {
		return Options{}, AtLine(text, err)
	}
	return opt, nil
}

// The decoder's messages begin with [line:column].
var (
	position = regexp.MustCompile(`^\[(\d+):\d+\] `)
	noUnit   = regexp.MustCompile(`cannot unmarshal \S+ into .* of type time\.Duration`)
)

func located(message string) error {
	m := position.FindStringSubmatch(message)
	if m == nil {
		return errors.New(message)
	}
	message = message[len(m[0]):]
	if noUnit.MatchString(message) {
		message = "a number is no duration, want for example 500ms or 10s"
	}
	return fmt.Errorf("line %s: %s", m[1], message)
}

// AtLine adds the line of the mistake to an error that knows below which key it
// is. One of the first words of a message is the key that it is about, by
// custom: the line is that of this key where the profile has it, else of what it
// belongs to.
func AtLine(text []byte, err error) error {
	file, bad := parser.ParseBytes(text, 0)
	if bad != nil {
		return err
	}
	line := func(keys ...string) int {
		path, bad := yaml.PathString(strings.Join(append([]string{"$"}, keys...), "."))
		if bad != nil {
			return 0
		}
		node, bad := path.FilterFile(file)
		if bad != nil || node == nil {
			return 0
		}
		return node.GetToken().Position.Line
	}
	keys, message := arrivals.Keys(err)
	for _, word := range words.FindAllString(strings.TrimPrefix(message, "loadgen: "), 3) {
		if n := line(append(keys[:len(keys):len(keys)], word)...); n > 0 {
			return fmt.Errorf("line %d: %w", n, err)
		}
	}
	for n := len(keys); n > 0; n-- {
		if n := line(keys[:n]...); n > 0 {
			return fmt.Errorf("line %d: %w", n, err)
		}
	}
	return err
}

var words = regexp.MustCompile(`[a-z_]+`)
