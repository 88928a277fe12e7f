package loadgen

import "aloft/loadgen/arrivals"

// Dist is a distribution of whole numbers: of tokens, or of turns.
type Dist = arrivals.Dist
