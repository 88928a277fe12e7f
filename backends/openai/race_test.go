//go:build race

package openai

func init() { underRace = true }
