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

// Scenarios are the worlds in which lending policies are compared; their
// README.md is the rule book.
//
//go:embed scenarios/*.yaml
var Scenarios embed.FS

// Traces are recorded traffic and jobs, so that the scenarios need no other
// files. NOTICE says whose they are.
//
//go:embed traces/azure-llm-2023/*.csv traces/gavel-philly
var Traces embed.FS

// Evaluation holds small sets for `aloft evaluate`; "builtin:NAME" is the file
// evaluation/NAME.jsonl here.
//
//go:embed evaluation/*.jsonl
var Evaluation embed.FS
