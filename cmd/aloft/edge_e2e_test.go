package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"aloft/gateway/keys"
)

// A server that is told to go while its engines still load goes: exit code 0,
// and nothing of it is left.
func TestStopWhileEnginesLoad(t *testing.T) {
	for name, model := range map[string]string{
		"an engine that never answers": "    engine: command\n    sleep: pause\n    command: [sleep, \"1000\"]\n    endpoints: [chat]\n",
		"an engine that starts":        "    engine: synthetic\n    endpoints: [embeddings]\n",
	} {
		t.Run(name, func(t *testing.T) {
			conf := write(t, "aloft.yaml", "node: {devices: simulated}\nmodels:\n  - name: slow\n"+model+"    replicas: {min: 2, max: 2}\n")
			data := t.TempDir()
			c := aloft(t, nil, "serve", "--listen", "127.0.0.1:0", "--data", data, "--config", conf)
			if !eventually(patience, func() bool { return len(c.running()) > 1 }) {
				t.Fatalf("no engine was started\n%s", c.err.String())
			}
			if strings.Contains(model, "sleep") {
				toldToComeBack(t, data)
			}
			(&instance{command: c}).stop(t)
		})
	}
}

// toldToComeBack asks a server whose only engines still load, until it says so.
func toldToComeBack(t *testing.T, data string) {
	t.Helper()
	said := ""
	if !eventually(patience, func() bool {
		address, err := os.ReadFile(filepath.Join(data, "run", "address"))
		if err != nil {
			return false
		}
		req, err := http.NewRequest(http.MethodPost, strings.TrimSpace(string(address))+"/v1/chat/completions",
			strings.NewReader(`{"model":"slow","messages":[{"role":"user","content":"hi"}]}`))
		if err != nil {
			return false
		}
		req.Header.Set("X-Aloft-Deadline-Ms", "200")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return false
		}
		resp.Body.Close()
		said = fmt.Sprintf("%d %s %v", resp.StatusCode, resp.Header.Get("X-Aloft-Reason"), resp.Header.Get("Retry-After") != "")
		return said == "503 loading true"
	}) {
		t.Errorf("while engines load: %s, want 503, loading and Retry-After", said)
	}
	http.DefaultClient.CloseIdleConnections()
}

// pair writes a new certificate for 127.0.0.1 and its key, as PEM files.
func pair(t *testing.T, serial int64, cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	leaf := &x509.Certificate{SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, leaf, leaf, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := keys.WriteFile(path, pem.EncodeToMemory(block)); err != nil {
			t.Fatal(err)
		}
	}
}

// A new certificate is used for new connections without a restart, and a broken
// one leaves the old one in use.
func TestCertificateIsReadAgain(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	pair(t, 1, cert, key)
	conf := write(t, "aloft.yaml", tiny+fmt.Sprintf("gateway: {tls: {cert: %s, key: %s}}\n", cert, key))
	data := t.TempDir()
	s := &instance{command: aloft(t, nil, "serve", "--listen", "127.0.0.1:0", "--data", data, "--config", conf), data: data}
	serial := func() int64 {
		text, _ := os.ReadFile(filepath.Join(data, "run", "address"))
		address, ok := strings.CutPrefix(strings.TrimSpace(string(text)), "https://")
		if !ok {
			return 0
		}
		// Self-signed: which certificate it is, not who made it, is asked here.
		conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			return 0
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
	}
	is := func(want int64) {
		t.Helper()
		if !eventually(patience, func() bool { return serial() == want }) {
			t.Fatalf("certificate %d, want %d\n%s", serial(), want, s.err.String())
		}
	}
	is(1)
	pair(t, 2, cert, key)
	is(2)
	if err := keys.WriteFile(cert, []byte("no certificate")); err != nil {
		t.Fatal(err)
	}
	if !eventually(patience, func() bool { return strings.Contains(s.err.String(), "files not read again") }) {
		t.Errorf("nothing of it in the log:\n%s", s.err.String())
	}
	is(2)
	pair(t, 3, cert, key)
	is(3)
	_ = s.Process.Signal(syscall.SIGTERM)
	s.stopped(t)
}

// A key that `aloft keys` makes opens a running server soon, and one that it
// revokes does not. The files are looked at each second (watchEvery).
func TestKeysOfARunningServer(t *testing.T) {
	const soon = 10 * time.Second // a busy machine's
	data := t.TempDir()
	s := start(t, data, nil, "--config", write(t, "aloft.yaml", tiny))
	with := func(key string) string {
		return fmt.Sprint(listModels(s.url, key))
	}
	if got := with(""); got != "<nil>" {
		t.Errorf("without keys: %s", got)
	}
	turns := func(what, key, want string) {
		t.Helper()
		if !eventually(soon, func() bool { return with(key) == want }) {
			t.Errorf("%s: %s, want %s", what, with(key), want)
		}
	}
	one := strings.TrimSpace(call(t, nil, "keys", "make", "--data", data, "--tenant", "red"))
	turns("with the first key", one, "<nil>")
	turns("without a key", "", "401")
	two := strings.TrimSpace(call(t, nil, "keys", "make", "--data", data, "--tenant", "blue"))
	turns("with the second key", two, "<nil>")
	for line := range strings.Lines(call(t, nil, "keys", "list", "--data", data)) {
		if strings.Contains(line, "red") {
			call(t, nil, "keys", "revoke", "--data", data, strings.Fields(line)[0])
		}
	}
	turns("with a revoked key", one, "401")
	turns("with the other", two, "<nil>")
	s.stop(t)
}

// listModels asks with a key; an error is the answer's status.
func listModels(url, key string) error {
	req, err := http.NewRequest(http.MethodGet, url+"/v1/models", nil)
	if err != nil {
		return err
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%d", resp.StatusCode)
	}
	return nil
}
