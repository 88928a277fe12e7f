//go:build race

package jobs_test

func init() { raced = true }
