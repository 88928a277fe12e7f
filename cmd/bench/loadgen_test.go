package main

import (
	"slices"
	"testing"
)

func TestPeersAreRead(t *testing.T) {
	took, err := heyTimes([]byte("response-time,DNS+dialup,status-code\n0.0067,0.0052,200\n2.0008,0.0000,200\n"))
	if want := []float64{6.7, 2000.8}; err != nil || !slices.Equal(took, want) {
		t.Errorf("hey: %v, %v, want %v", took, err, want)
	}
	if _, err := heyTimes([]byte("response-time\n")); err == nil {
		t.Error("hey: no rows are no error")
	}
	v, err := wrkView([]byte("Running 2s test\nRequests/sec:  27334.45\nALOFT 54877 2000000 184 7118 17051 2030546\n"))
	if err != nil || v.requests != 54877 || v.seconds != 2 || v.q != [4]float64{0.184, 7.118, 17.051, 2030.546} {
		t.Errorf("wrk: %+v, %v", v, err)
	}
	if _, err := wrkView([]byte("unable to connect")); err == nil {
		t.Error("wrk: no line is no error")
	}
}
