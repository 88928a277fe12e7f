package loadgen

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// serveNull is set in the process that serves the benchmarks: a generator and a
// server in one process would share a scheduler and a collector of garbage.
const serveNull = "ALOFT_TEST_NULL_SERVER"

func init() {
	if os.Getenv(serveNull) != "" {
		nullServer()
		os.Exit(0)
	}
}

// perWrite is how many events the null server sends in one write, of a stream's
// 100: few, as of a server that is busy.
const perWrite = 10

// nullServer answers every request at once: chat with a stream, all else whole.
// It ends with its standard input.
func nullServer() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println(listener.Addr())
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go answerNull(conn)
		}
	}()
	bufio.NewReader(os.Stdin).ReadString('\n')
}

func answerNull(conn net.Conn) {
	defer conn.Close()
	whole := []byte(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(plain), plain))
	var writes [][]byte
	part := "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
	for i := range 100 {
		event := word
		if i == 99 {
			event = finish + usage + done
		}
		part += fmt.Sprintf("%x\r\n%s\r\n", len(event), event)
		if (i+1)%perWrite == 0 {
			writes, part = append(writes, []byte(part)), ""
		}
	}
	writes[len(writes)-1] = append(writes[len(writes)-1], "0\r\n\r\n"...)
	buf, n := make([]byte, 64<<10), 0
	end, field, stream := []byte("\r\n\r\n"), []byte("Content-Length: "), []byte(Chat.path())
	for {
		k, err := conn.Read(buf[n:])
		if err != nil {
			return
		}
		n += k
		i := bytes.Index(buf[:n], end)
		if i < 0 {
			continue
		}
		size := 0
		for _, c := range buf[bytes.Index(buf[:i], field)+len(field) : i] {
			if c < '0' || c > '9' {
				break
			}
			size = 10*size + int(c-'0')
		}
		if n < i+len(end)+size {
			continue
		}
		if n = 0; !bytes.Contains(buf[:i], stream) {
			conn.Write(whole)
			continue
		}
		for _, w := range writes {
			conn.Write(w)
		}
	}
}

// startNull starts a null server in a process of its own.
func startNull(b *testing.B) (url string) {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), serveNull+"=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { in.Close(); cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	return "http://" + strings.TrimSpace(line)
}

// drive puts load on the null server and reports what came of it. The targets
// (issue 4), server included, on 2 cores: 20,000 whole answers/s, 200,000 events/s
// (2,000 streams of 100), and at 5,000 requests/s a send lag of p99 ≤ 1 ms.
func drive(b *testing.B, w Workload, rate float64) {
	w.Name, w.Model, w.URL = "null", "m", startNull(b)
	w.Phases = steady(rate, 2*time.Second)
	for b.Loop() {
		before := ProcessCPU()
		report := mustRunB(b, Options{Workloads: []Workload{w}})
		r := report.Results[0]
		if r.OK != r.Offered {
			b.Fatalf("%+v %v", r.Tally, r.Problems)
		}
		b.ReportMetric(r.Achieved, "sent/s")
		b.ReportMetric(r.SendLag.P50*1000, "lag-p50-µs")
		b.ReportMetric(r.SendLag.P99*1000, "lag-p99-µs")
		b.ReportMetric(r.SendLag.Max*1000, "lag-max-µs")
		b.ReportMetric(r.P99*1000, "e2e-p99-µs")
		b.ReportMetric(float64(r.Waited), "waited")
		b.ReportMetric(100*(ProcessCPU()-before).Seconds()/2, "cpu-%")
	}
}

func mustRunB(b *testing.B, opt Options) *Report {
	b.Helper()
	report, err := Run(b.Context(), opt)
	if err != nil {
		b.Fatal(err)
	}
	return report
}

func BenchmarkUnary(b *testing.B) {
	for _, rate := range []float64{1000, 5000, 20000, 30000} {
		b.Run(fmt.Sprint(rate), func(b *testing.B) { drive(b, Workload{Kind: Completions}, rate) })
	}
}

func BenchmarkStreams(b *testing.B) {
	for _, rate := range []float64{500, 2000, 3000} {
		b.Run(fmt.Sprint(rate), func(b *testing.B) { drive(b, Workload{Kind: Chat, Stream: true}, rate) })
	}
}
