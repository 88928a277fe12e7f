package arrivals

// Scaled is the process at f times its rate. What is scaled is the law that
// gaps are drawn from, before they are; a drawn gap is never touched.
func (p Process) Scaled(f float64) Process {
	p.Rate, p.Base = p.Rate*f, p.Base*f
	return p
}

// Expected is the mean number of arrivals in the phase.
func (p Phase) Expected() float64 { return p.Process.expected(p.Duration) }
