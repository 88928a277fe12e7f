//go:build race

package gateway

func init() { raced = true }
