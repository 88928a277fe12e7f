package search

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"aloft/loadgen"
	"aloft/loadgen/arrivals"
)

// A real server with two workers of 20 ms does 100 requests a second and not one
// more; the real generator finds that out in a few seconds.
func TestFindARealServersCapacity(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some 10 s of real time")
	}
	workers := make(chan struct{}, 2)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		workers <- struct{}{}
		time.Sleep(20 * time.Millisecond)
		<-workers
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"object":"list","model":"m","data":[{"object":"embedding","index":0,"embedding":[0.5]}],"usage":{"prompt_tokens":1,"total_tokens":1}}`)
	}))
	defer server.Close()
	o := Options{
		Base: loadgen.Options{Name: "real", Seed: 1, Drain: 2 * time.Second, WarmUp: 200 * time.Millisecond, Workloads: []loadgen.Workload{{
			Name: "a", Kind: loadgen.Embeddings, URL: server.URL, Model: "m",
			Phases: []arrivals.Phase{{Name: "p", Duration: time.Second, Process: arrivals.Process{Kind: arrivals.Constant, Rate: 50}}},
		}}},
		SLO: slo(t, "e2e_p90<3s"), Attain: 0.9, Window: time.Second, MaxWindow: time.Second, Repeats: 1, Resolution: 0.5,
		Min: 5, Max: 400, Limit: time.Minute,
		OnTry: func(x Try) {
			t.Logf("%.1f/s in %.1f s: %s, %s (%v, growth %.1f ± %.1f/s) %s", x.Rate, x.Took, x.Verdict, x.Reason, x.Evidence, x.Growth, x.GrowthError, x.Discarded)
		},
	}
	a, err := Find(t.Context(), o)
	if errors.Is(err, ErrGenerator) {
		t.Skipf("this machine is too busy to send on time: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if a.Stopped != Found || a.Low > 105 || a.High < 50 || a.High > 210 {
		t.Errorf("%s: %.1f to %.1f/s, want an interval about 100/s", a.Stopped, a.Low, a.High)
	}
}
