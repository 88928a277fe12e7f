//go:build race

package tokens_test

func init() { underRace = true }
