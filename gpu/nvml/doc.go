// Package nvml reads a node's real GPUs and their MIG slices through NVIDIA's
// management library. It is the only importer of go-nvml and the only package
// that needs cgo; the library itself is opened at run time.
//
// It changes a partition only when asked to reshape a GPU; that part has not run
// on a real one.
package nvml

import "errors"

// ErrNoDriver is wrapped by Open on a machine without an NVIDIA driver.
var ErrNoDriver = errors.New("no NVIDIA driver")

// ErrNotBuilt is returned by Open in a program built with CGO_ENABLED=0.
var ErrNotBuilt = errors.New("built without cgo: gpu/nvml absent")
