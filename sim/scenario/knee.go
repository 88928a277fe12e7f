package scenario

// decode and prefill are the two forms of knee work of a model that generates,
// in slice-seconds of a request: what it costs a full replica where decoding, or
// where prefill, is what fills it. Both are linear, so they add up, and each is
// a floor.
func (s Service) decode(in, out int32) float64 {
	return float64(out)*s.Step(float64(s.Slots))/float64(s.Slots) + (1-s.SpeedWhenPrefill)*s.Prefill(float64(in))
}

func (s Service) prefill(in int32) float64 { return s.Prefill(float64(in)) }

// call is the knee work of a request of merged calls: its share of a call of
// max_tokens. No call does more in its time, so this is a floor too; a scenario
// sets max_tokens at the knee.
func (s Service) call(in int32) float64 {
	return float64(in) * (s.AlphaMs/float64(s.MaxTokens) + s.BetaMsPerToken) / 1000
}

// Knee is what a request costs a full replica, in slice-seconds: by the form
// that gives the larger sum over the model's whole trace, for all its requests.
func (t *Traffic) Knee(in, out int32) float64 {
	s := t.Model.Service
	switch {
	case s.Merged():
		return s.call(in)
	case t.DecodeBound:
		return s.decode(in, out)
	}
	return s.prefill(in)
}

// Work is the knee work of all requests, in slice-seconds.
func (t *Traffic) Work() float64 {
	sum := 0.0
	for _, a := range t.Arrivals {
		sum += t.Knee(a.In, a.Out)
	}
	return sum
}
