//go:build unix

package loadgen

import (
	"net"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A generator without descriptors has not found that the server fails.
func TestRunWithoutDescriptorsDoesNotCount(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close() // whose backlog takes the connections, and says nothing
	next, err := syscall.Dup(0)
	if err != nil {
		t.Fatal(err)
	}
	syscall.Close(next)
	var old syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	few := old
	few.Cur = uint64(next) + 8
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	defer syscall.Setrlimit(syscall.RLIMIT_NOFILE, &old)
	r := mustRun(t, Options{Drain: time.Second, Workloads: []Workload{{
		Name: "w", Kind: Embeddings, Model: "m", URL: "http://" + server.Addr().String(), Timeout: 2 * time.Second, Phases: steady(40, time.Second),
	}}})
	x := r.Results[0]
	if x.Starved == 0 || x.Starved != x.FailedBy[Connect] || x.Offered != x.Late+x.Tally.Failed {
		t.Errorf("%d of %d starved, failed by %v %v", x.Starved, x.Offered, x.FailedBy, x.Problems)
	}
	if err := r.Verdict(); err == nil || !strings.Contains(err.Error(), "no descriptor") {
		t.Errorf("verdict %v", err)
	}
}
