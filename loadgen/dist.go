package loadgen

import (
	"fmt"

	"aloft/loadgen/arrivals"
)

// Dist is a distribution of whole numbers: of tokens, or of turns.
type Dist = arrivals.Dist

// validateSizes checks the lengths that are planned.
func (w Workload) validateSizes() error {
	for _, v := range []struct {
		key string
		d   *Dist
	}{{"input_tokens", w.InputTokens}, {"output_tokens", w.OutputTokens}} {
		if v.d == nil {
			continue
		}
		if err := v.d.Validate(); err != nil {
			return arrivals.Keyed(v.key, fmt.Errorf("%s: %w", v.key, err))
		}
	}
	if w.OutputTokens != nil && !w.rowKind().streams() {
		return fmt.Errorf("output_tokens does not belong to kind %s", w.rowKind())
	}
	return nil
}
