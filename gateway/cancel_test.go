package gateway

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"testing"
	"time"

	"aloft/backends"
)

// A client that leaves ends its request's context within a second, wherever the
// request is, and is counted as 499 (docs/failures.md F1).
func TestClientLeaves(t *testing.T) {
	if watchPeriod > time.Second/2 {
		t.Errorf("clients are looked after every %v: one that leaves is not noticed within a second", watchPeriod)
	}
	tests := []struct {
		name, path, body string
		stream           string // what the engine has sent before the client leaves; "" = nothing yet
		unaryBegun       bool   // the engine sits on half of a whole reply
	}{
		{"unary in the queue", "/v1/embeddings", embedBody, "", false},
		{"unary while the reply comes", "/v1/chat/completions", chatBody, "", true},
		{"stream before the first byte", "/v1/chat/completions", streamBody, "", false},
		{"mid-stream, engine silent", "/v1/chat/completions", streamBody, frameHel, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			begun, ended := make(chan struct{}, 1), make(chan error, 1)
			calls := 0
			e := start(t, func(ctx context.Context, req *backends.Request) (*backends.Reply, error) {
				calls++
				begun <- struct{}{}
				context.AfterFunc(ctx, func() { ended <- context.Cause(ctx) })
				switch {
				case tt.unaryBegun:
					r := whole200(200, "")
					f := newFeed(ctx)
					f.parts <- `{"half":`
					r.Body = f
					return r, nil
				case tt.stream != "":
					f := newFeed(ctx)
					f.parts <- tt.stream
					return sse(f), nil
				}
				<-ctx.Done()
				return nil, ctx.Err()
			})
			c := e.raw(t, tt.path, tt.body)
			<-begun
			if tt.stream != "" { // wait until it is mid-stream
				if _, err := io.ReadFull(c, make([]byte, 20)); err != nil {
					t.Fatal(err)
				}
			}
			c.Close()
			wantGone(t, ended)
			if o := e.ledger.wait(t); o.Status != 499 || o.Reason != "client_gone" {
				t.Errorf("outcome %d %q, want 499 client_gone", o.Status, o.Reason)
			}
			if calls != 1 {
				t.Errorf("%d calls, want 1: no retry", calls)
			}
			if e.watch.look(); len(e.watch.conns) != 0 {
				t.Errorf("%d connections still watched", len(e.watch.conns))
			}
		})
	}
}

// The end of a connection must also be seen behind data that nobody reads yet:
// a pipelined request, or TLS's closing alert.
func TestClientLeavesBehindUnreadData(t *testing.T) {
	t.Run("pipelined", func(t *testing.T) {
		ended := make(chan error, 2)
		e := start(t, holds(ended))
		c := e.raw(t, "/v1/embeddings", embedBody)
		io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
		time.Sleep(50 * time.Millisecond)
		c.Close()
		wantGone(t, ended)
	})
	t.Run("TLS", func(t *testing.T) {
		ended := make(chan error, 2)
		e := start(t, holds(ended))
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go e.http.Serve(tls.NewListener(ln, &tls.Config{Certificates: []tls.Certificate{selfSigned(t)}}))
		c, err := tls.Dial("tcp", ln.Addr().String(), &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, "POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: 35\r\n\r\n"+embedBody)
		time.Sleep(50 * time.Millisecond)
		c.Close()
		wantGone(t, ended)
	})
}

func wantGone(t *testing.T, ended <-chan error) {
	t.Helper()
	select {
	case cause := <-ended:
		if !errors.Is(cause, backends.ErrClientGone) {
			t.Errorf("cause %v, want ErrClientGone", cause)
		}
	case <-time.After(patience):
		t.Fatal("context still alive after the client left")
	}
}

// A client that stays is not taken for gone.
func TestClientStays(t *testing.T) {
	e := start(t, func(ctx context.Context, _ *backends.Request) (*backends.Reply, error) {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(3 * watchPeriod):
			return whole200(200, `{"object":"list"}`), nil
		}
	})
	for range 2 { // twice on one connection
		if resp, body := e.post(t, "/v1/embeddings", embedBody); resp.StatusCode != 200 {
			t.Fatalf("answer %d %s, want 200", resp.StatusCode, body)
		}
	}
}

func selfSigned(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}
