//go:build !cgo

package nvml

import "aloft/gpu"

// Open returns ErrNotBuilt.
func Open() (gpu.Inventory, error) { return nil, ErrNotBuilt }
