package arrivals

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// Clients is a population of senders, as ServeGen composes one (Xiang et al.,
// NSDI 2026): production traffic is many clients of which a few send most and
// are bursty each in its own way, and whose requests differ more between clients
// than within one.
type Clients struct {
	N int `yaml:"clients,omitempty"` // how many; the process's rate is that of all together
	// Skew is how unequal their rates are: that of the k-th client is in
	// proportion to k^-skew; 0 is equal shares. There is no value for everyone. Of
	// the clients that ServeGen publishes (github.com/alibaba/ServeGen, commit
	// f891d11, mean rates over two weeks) those that send nine tenths give 1.36 for
	// 162 clients of m-large, 1.48 for 109 of m-mid, 1.70 for 43 of m-small, 1.37
	// for 35 of mm-image and 1.35 for 73 of deepseek-r1.
	Skew float64 `yaml:"skew,omitempty"`
	// MinCV and MaxCV are the range from which each client draws the variation of
	// its gaps, evenly in the logarithm. 0 means 0.9 and 8.5: nine tenths of the
	// requests in ServeGen's clients come in windows of 10 minutes with a CV of 0.9
	// to 10 (m-large), 1.0 to 10 (m-small), 0.6 to 9 (deepseek-r1). Half are below
	// 1.0 to 2.0 there, so that an even choice has more bursts than most clients.
	MinCV float64 `yaml:"min_cv,omitempty"`
	MaxCV float64 `yaml:"max_cv,omitempty"`
	// Input and Output are the sizes in tokens over all requests of equal clients.
	// Each client has a mean of its own, drawn from a lognormal law around theirs
	// with the coefficient of variation Spread.
	Input  *Dist   `yaml:"input,omitempty"`
	Output *Dist   `yaml:"output,omitempty"`
	Spread float64 `yaml:"spread,omitempty"`
}

const (
	maxClients = 10_000
	maxSkew    = 5
	fieldMinCV = 0.9
	fieldMaxCV = 8.5
)

func (c Clients) withDefaults() Clients {
	if c.MinCV == 0 && c.MaxCV == 0 {
		c.MinCV, c.MaxCV = fieldMinCV, fieldMaxCV
	}
	return c
}

func (c Clients) validate() error {
	if c.N < 1 || c.N > maxClients {
		return fmt.Errorf("clients is %d, want 1 to %d", c.N, maxClients)
	}
	if !(c.Skew >= 0 && c.Skew <= maxSkew) {
		return fmt.Errorf("skew is %v, want 0 to %d", c.Skew, maxSkew)
	}
	if d := c.withDefaults(); !(d.MinCV >= minCV && d.MinCV <= d.MaxCV && d.MaxCV <= maxCV) {
		return fmt.Errorf("min_cv is %v and max_cv is %v, want %v to %d, the first at most the second", c.MinCV, c.MaxCV, minCV, maxCV)
	}
	if !(c.Spread >= 0 && c.Spread <= maxCV) {
		return fmt.Errorf("spread is %v, want 0 to %d", c.Spread, maxCV)
	}
	if err := sizeLaw("input", c.Input); err != nil {
		return err
	}
	if err := sizeLaw("output", c.Output); err != nil {
		return err
	}
	if c.Spread != 0 && c.Input == nil && c.Output == nil {
		return fmt.Errorf("spread needs input or output")
	}
	return nil
}

// sizeLaw checks a distribution that may be missing.
func sizeLaw(key string, d *Dist) error {
	if d == nil {
		return nil
	}
	if err := d.Validate(); err != nil {
		return Keyed(key, fmt.Errorf("%s: %w", key, err))
	}
	return nil
}

// rates splits a rate over the clients.
func (c Clients) rates(total float64) []float64 {
	rates, sum := make([]float64, c.N), 0.0
	for k := range rates {
		rates[k] = power(float64(k+1), -c.Skew)
		sum += rates[k]
	}
	for k := range rates {
		rates[k] = rates[k] / sum * total
	}
	return rates
}

// scaled is a copy of the law with its mean times by. A uniform law's bounds
// move; the bounds of the others hold for every client.
func (d Dist) scaled(by float64) Dist {
	if d.Kind == "uniform" {
		cut := func(n int) int { return max(1, int(min(float64(n)*by, maxSize))) }
		d.Min, d.Max = cut(d.Min), cut(d.Max)
	}
	d.Mean = min(max(d.Mean*by, 1), maxSize)
	return d
}

// many lays the clients' arrivals over each other. Each client has its own
// random numbers, so that its arrivals depend on its rate alone.
func (b *builder) many(r *rand.Rand, p Process, d time.Duration) ([]arrival, error) {
	c := p.Clients.withDefaults()
	var out []arrival
	for _, rate := range c.rates(p.Rate) {
		own := rand.New(rand.NewPCG(r.Uint64(), r.Uint64()))
		cv := exp(ln(c.MinCV) + float64(uniform(own)*ln(c.MaxCV/c.MinCV)))
		input, output := c.own(own, c.Input), c.own(own, c.Output)
		sizes := rand.New(rand.NewPCG(own.Uint64(), own.Uint64()))
		var full bool
		gaps{cv}.renewal(own, steady(rate), d, func(at time.Duration) bool {
			if full = len(out) >= b.left; full {
				return false
			}
			s := Shape{Tenant: anyone}
			if input != nil {
				s.Input = uint32(input.Draw(sizes))
			}
			if output != nil {
				s.Output = uint32(output.Draw(sizes))
			}
			out = append(out, arrival{at, s})
			return true
		})
		if full {
			return nil, errFull
		}
	}
	sortArrivals(out)
	return out, nil
}

// own is the law of one client's sizes.
func (c Clients) own(r *rand.Rand, d *Dist) *Dist {
	by := lognormal(r, 1, c.Spread) // drawn in any case: another key must not move the arrivals
	if d == nil {
		return nil
	}
	s := d.scaled(by)
	return &s
}
