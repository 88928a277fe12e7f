package gateway

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"
)

// Certificate is a pair of PEM files that can be read again while it serves.
type Certificate struct {
	certFile, keyFile string
	current           atomic.Pointer[tls.Certificate]
}

// LoadCertificate reads a certificate chain and its private key.
func LoadCertificate(certFile, keyFile string) (*Certificate, error) {
	c := &Certificate{certFile: certFile, keyFile: keyFile}
	return c, c.Reload()
}

// Reload reads both files again; new connections get the new pair. After an
// error, which names the file at fault, the old pair goes on.
func (c *Certificate) Reload() error {
	cert, err := os.ReadFile(c.certFile)
	if err != nil {
		return fmt.Errorf("gateway: certificate: %w", err)
	}
	key, err := os.ReadFile(c.keyFile)
	if err != nil {
		return fmt.Errorf("gateway: private key: %w", err)
	}
	if err := checkChain(cert, time.Now()); err != nil {
		return fmt.Errorf("gateway: certificate %s: %w", c.certFile, err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return fmt.Errorf("gateway: private key %s for certificate %s: %w", c.keyFile, c.certFile, err)
	}
	c.current.Store(&pair)
	return nil
}

// checkChain finds what is wrong with the certificate by itself, so that a fault
// is put down to the right file. The first certificate is the server's.
func checkChain(text []byte, now time.Time) error {
	n := 0
	for rest := bytes.TrimSpace(text); ; n++ {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return fmt.Errorf("holds a PEM block of type %.40q", block.Type)
		}
		leaf, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return err
		}
		if n == 0 && now.After(leaf.NotAfter) {
			return fmt.Errorf("ended on %s", leaf.NotAfter.UTC().Format(time.RFC3339))
		}
	}
	if n == 0 {
		return errors.New("holds no PEM certificate")
	}
	return nil
}

// config serves HTTP/1.1 alone: fasthttp speaks nothing newer.
func (c *Certificate) config() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.current.Load(), nil },
	}
}
