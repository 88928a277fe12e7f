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
func ReadProfile(text []byte) (Options, error) {
	var opt Options
	if err := yaml.UnmarshalWithOptions(text, &opt, yaml.Strict()); err != nil {
		return Options{}, located(strings.TrimSpace(yaml.FormatError(err, false, false)))
	}
	if err := opt.Validate(); err != nil {
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
// is. Messages begin with the key that they are about, so that the line is that
// of this key where the profile has it, else of what it belongs to.
func AtLine(text []byte, err error) error {
	keys, message := arrivals.Keys(err)
	message = strings.TrimPrefix(message, "loadgen: ")
	file, bad := parser.ParseBytes(text, 0)
	if bad != nil {
		return err
	}
	if word := firstWord.FindString(message); word != "" {
		keys = append(keys, word)
	}
	for n := len(keys); n > 0; n-- {
		path, bad := yaml.PathString("$." + strings.Join(keys[:n], "."))
		if bad != nil {
			continue
		}
		if node, bad := path.FilterFile(file); bad == nil && node != nil {
			return fmt.Errorf("line %d: %w", node.GetToken().Position.Line, err)
		}
	}
	return err
}

var firstWord = regexp.MustCompile(`^[a-z_]+`)
