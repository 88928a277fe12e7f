package scenario

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"

	"aloft/configs"
)

// Text is a scenario's file as it stands or, where there is none, the built-in
// scenario of that name.
func Text(path string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if built, in := configs.Scenarios.ReadFile("scenarios/" + strings.TrimSuffix(path, ".yaml") + ".yaml"); in == nil {
			return built, nil
		}
		return nil, fmt.Errorf("scenario: %s is neither a file nor one of the built-in scenarios %s", path, strings.Join(Names(), ", "))
	}
	if err != nil {
		return nil, fmt.Errorf("scenario: %w", err)
	}
	return text, nil
}

// Change sets keys of a scenario's text: key=value, with a key such as
// jobs.offered_load or models.chat.slo.ttft_s, where entries of a list go by their
// name or number, and * stands for all of them. The text that comes back says the
// same as the first apart from that; its comments are gone.
func Change(text []byte, assignments []string) ([]byte, error) {
	if len(text) > maxBytes {
		return nil, fmt.Errorf("%d bytes, want at most %d", len(text), maxBytes)
	}
	var root yaml.MapSlice
	if err := yaml.UnmarshalWithOptions(text, &root, yaml.UseOrderedMap()); err != nil {
		return nil, errors.New(strings.TrimSpace(yaml.FormatError(err, false, false)))
	}
	for _, a := range assignments {
		key, value, ok := strings.Cut(a, "=")
		if !ok || key == "" {
			return nil, fmt.Errorf("%q is no key=value, such as jobs.offered_load=1.2", a)
		}
		var v any
		if err := yaml.UnmarshalWithOptions([]byte(value), &v, yaml.UseOrderedMap()); err != nil {
			return nil, fmt.Errorf("%s: %q is no YAML value", key, value)
		}
		changed, err := put(root, strings.Split(key, "."), v)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		root = changed.(yaml.MapSlice)
	}
	return yaml.Marshal(root)
}

// put sets what lies at a path below a node. A last key that is not there yet is
// added: whether it is known the reader of the text says.
func put(node any, path []string, value any) (any, error) {
	if len(path) == 0 {
		return value, nil
	}
	switch node := node.(type) {
	case yaml.MapSlice:
		var have []string
		for i := range node {
			if name := fmt.Sprint(node[i].Key); name == path[0] {
				v, err := put(node[i].Value, path[1:], value)
				if err == nil {
					node[i].Value = v
				}
				return node, err
			} else {
				have = append(have, name)
			}
		}
		if len(path) == 1 {
			return append(node, yaml.MapItem{Key: path[0], Value: value}), nil
		}
		return nil, fmt.Errorf("there is no %s; there are %s", path[0], strings.Join(have, ", "))
	case []any:
		return putIn(node, path, value)
	}
	return nil, fmt.Errorf("%s lies below a value that has no keys", path[0])
}

// putIn sets it in the entries of a list that the first step names.
func putIn(list []any, path []string, value any) (any, error) {
	var have []string
	hit := false
	for i := range list {
		name := nameOf(list[i])
		have = append(have, name)
		if path[0] != "*" && path[0] != name && path[0] != strconv.Itoa(i) {
			continue
		}
		v, err := put(list[i], path[1:], value)
		if err != nil {
			return nil, err
		}
		list[i], hit = v, true
	}
	if !hit {
		return nil, fmt.Errorf("there is no %s; there are %s, or * for all", path[0], strings.Join(have, ", "))
	}
	return list, nil
}

func nameOf(entry any) string {
	if m, ok := entry.(yaml.MapSlice); ok {
		for _, item := range m {
			if item.Key == "name" {
				return fmt.Sprint(item.Value)
			}
		}
	}
	return ""
}

// JSON is a scenario's text as JSON, with the same keys.
func JSON(text []byte) (json.RawMessage, error) { return yaml.YAMLToJSON(text) }
