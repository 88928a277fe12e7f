//go:build !cgo

package nvml

import (
	"errors"
	"testing"
)

func TestOpenWithoutCgo(t *testing.T) {
	if inv, err := Open(); inv != nil || !errors.Is(err, ErrNotBuilt) {
		t.Errorf("got %v, %v", inv, err)
	}
}
