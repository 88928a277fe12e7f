//go:build !linux

package gateway

// pollSet sees nothing outside Linux, where Aloft is only developed: there a
// client that left is noticed by the first failed write.
type pollSet struct{}

func (*pollSet) closed([]*watched) []*watched { return nil }
