package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// remote are the flags of commands that talk to a running server.
type remote struct {
	URL  string `help:"Server; default: the one that serves the data folder, else http://127.0.0.1:8080." env:"ALOFT_URL" placeholder:"URL"`
	Key  string `help:"API key." env:"ALOFT_API_KEY" placeholder:"KEY"`
	CA   string `name:"ca" help:"PEM file with the certificate that the server's is signed by, or is." env:"ALOFT_CA" placeholder:"FILE"`
	Data string `help:"Data folder of a server on this machine; default: aloft-data." env:"ALOFT_DATA" placeholder:"DIR"`
	JSON bool   `help:"Print the server's JSON as it is."`
}

// client finds the server. A data folder that was named and is served by nobody
// is an error of the first call: whoever listens on the usual port is not meant.
func (r remote) client() *client {
	base := r.URL
	if base == "" {
		b, err := os.ReadFile(filepath.Join(cmp.Or(r.Data, "aloft-data"), "run", "address"))
		base = strings.TrimSpace(string(b))
		if err != nil && r.Data != "" {
			return &client{nobody: r.Data}
		}
	}
	return &client{base: strings.TrimSuffix(cmp.Or(nearby(base), "http://127.0.0.1:8080"), "/"), key: r.Key, ca: r.CA}
}

// trusting returns a client that knows the CA's file besides the system's.
func trusting(file string) (*http.Client, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read --ca: %w", err)
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool() // a machine without certificates of its own
	}
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("--ca %s: there is no PEM certificate in it", file)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{RootCAs: pool}
	return &http.Client{Transport: transport}, nil
}

// client speaks to a server's API. Replies are bounded by maxReply, except
// downloads.
type client struct {
	base, key string
	ca        string // PEM file to trust; "" = the system's
	http      *http.Client
	class     string // x-aloft-priority; "" = the key's own
	nobody    string // the data folder that no server serves; "" = base is known
}

const maxReply = 64 << 20

// apiError is an error that the server answered.
type apiError struct {
	status        int
	Message, Code string
}

func (e *apiError) Error() string { return e.Message }

func (c *client) open(ctx context.Context, method, path, contentType string, body io.Reader) (*http.Response, error) {
	if c.nobody != "" {
		return nil, fmt.Errorf("no server serves the data folder %s (start one with `aloft serve --data %[1]s`, or name it with --url)", c.nobody)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return nil, err
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	if c.class != "" {
		req.Header.Set("x-aloft-priority", c.class)
	}
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	if c.http == nil {
		if c.http = http.DefaultClient; c.ca != "" {
			if c.http, err = trusting(c.ca); err != nil {
				return nil, err
			}
		}
	}
	resp, err := c.http.Do(req)
	var untrusted *tls.CertificateVerificationError
	if errors.As(err, &untrusted) {
		return nil, fmt.Errorf("the server at %s shows a certificate that is not trusted (name its CA with --ca or ALOFT_CA): %w", c.base, untrusted.Err)
	}
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err
		}
		return nil, fmt.Errorf("no server at %s (start one with `aloft serve`, or name it with --url): %w", c.base, err)
	}
	if resp.StatusCode < 300 {
		return resp, nil
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	var v struct {
		Error struct{ Message, Code string }
	}
	if json.Unmarshal(text, &v) != nil || v.Error.Message == "" {
		v.Error.Message = strings.TrimSpace(string(text))
	}
	return nil, &apiError{resp.StatusCode, fmt.Sprintf("%s %s: %s: %s", method, path, resp.Status, v.Error.Message), v.Error.Code}
}

// call sends in (nil = nothing) as JSON and decodes the answer into out.
func (c *client) call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	contentType := ""
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body, contentType = bytes.NewReader(b), "application/json"
	}
	resp, err := c.open(ctx, method, path, contentType, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxReply)).Decode(out); err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	return nil
}

// upload streams a file into the files API and returns its id.
func (c *client) upload(ctx context.Context, name string, r io.Reader) (string, error) {
	pipe, w := io.Pipe()
	form := multipart.NewWriter(w)
	go func() { // ends when the request has read or dropped the pipe
		err := form.WriteField("purpose", "batch")
		if err == nil {
			var part io.Writer
			if part, err = form.CreateFormFile("file", name); err == nil {
				_, err = io.Copy(part, r)
			}
		}
		w.CloseWithError(errors.Join(err, form.Close()))
	}()
	defer pipe.Close()
	resp, err := c.open(ctx, http.MethodPost, "/v1/files", form.FormDataContentType(), pipe)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var v struct{ ID string }
	return v.ID, json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&v)
}
