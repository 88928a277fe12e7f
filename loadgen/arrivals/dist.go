package arrivals

// Dist is a distribution of whole numbers: of tokens, or of turns.
type Dist struct {
	Kind string  `yaml:"kind"` // fixed, uniform, normal, lognormal
	Mean float64 `yaml:"mean,omitempty"`
	CV   float64 `yaml:"cv,omitempty"` // standard deviation by mean: normal, lognormal
	Min  int     `yaml:"min,omitempty"`
	Max  int     `yaml:"max,omitempty"`
}
