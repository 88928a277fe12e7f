// Package configs holds what ships beside the code: configurations that run as
// they stand and the demonstration models, built into the binary so that the
// quick start needs no files.
package configs

import "embed"

// Quickstart is the built-in configuration.
//
//go:embed quickstart.yaml
var Quickstart []byte

// Models holds the demonstration models; a GGUF named "builtin:NAME" in a
// configuration is the file models/NAME here.
//
//go:embed models/*.gguf
var Models embed.FS

// Sentences is the text that the demo embeds, trains on and sends as load.
//
//go:embed sentences.txt
var Sentences []byte
