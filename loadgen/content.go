package loadgen

import (
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"

	"aloft/loadgen/arrivals"
)

// The bounds of what requests are made of.
const (
	maxInputs   = 8192
	maxRows     = 50_000 // of a batch, as OpenAI's
	maxTexts    = 1_000_000
	maxPrefixes = 10_000
	maxRequest  = 64 << 20 // bytes of one body
)

// hasInputs reports whether a request holds several texts.
func (w *Workload) hasInputs() bool {
	return w.Kind == Embeddings || w.Kind == Rerank || w.Kind == Batch
}

// streams reports whether the kind can be answered by a stream.
func (k Kind) streams() bool { return k == Chat || k == Completions || k == Responses }

// rowKind is the kind of the requests: of a batch, that of its rows.
func (w *Workload) rowKind() Kind {
	if w.Kind == Batch {
		return cmp.Or(w.Rows, Embeddings)
	}
	return w.Kind
}

// kinds are all that a workload can be.
var kinds = []Kind{Embeddings, Chat, Completions, Responses, Rerank, Batch, Job}

// validateRequest checks where the requests go and what is asked for.
func (w Workload) validateRequest() error {
	if !slices.Contains(kinds, w.Kind) {
		return fmt.Errorf("unknown kind %q, want one of %q", w.Kind, kinds)
	}
	if w.Stream && !w.Kind.streams() {
		return fmt.Errorf("stream does not belong to kind %s", w.Kind)
	}
	if w.MaxTokens != 0 && !w.rowKind().streams() {
		return fmt.Errorf("max_tokens does not belong to kind %s", w.rowKind())
	}
	if w.MaxTokens < 0 {
		return fmt.Errorf("max_tokens is %d, want 0 or more", w.MaxTokens)
	}
	u, err := url.Parse(w.URL)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return fmt.Errorf("url is %q, want http://HOST:PORT or https://HOST", w.URL)
	}
	if u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		// The report shows the URL, so that it must not hold a secret.
		return errors.New("url has a user, a query or a fragment; a bearer token belongs into key")
	}
	if w.CA != "" && w.Insecure {
		return errors.New("ca and insecure: want one of them")
	}
	if (w.CA != "" || w.Insecure) && u.Scheme != "https" {
		return fmt.Errorf("ca and insecure belong to https, and url is %q", w.URL)
	}
	switch {
	case w.Kind == Job && w.Model != "":
		return fmt.Errorf("model does not belong to kind %s", Job)
	case w.Kind != Job && w.Model == "":
		return errors.New("model is missing")
	}
	return nil
}

// validateContent checks what the requests are made of.
func (w Workload) validateContent() error {
	rows := w.rowKind()
	most := maxInputs
	if w.Kind == Batch {
		most = maxRows
	}
	switch {
	case w.Inputs != 0 && !w.hasInputs():
		return fmt.Errorf("inputs belongs to %s, %s and %s, not to %s", Embeddings, Rerank, Batch, w.Kind)
	case w.Inputs < 0 || w.Inputs > most:
		return fmt.Errorf("inputs is %d, want 0 to %d", w.Inputs, most)
	case w.Encoding != "" && rows != Embeddings:
		return fmt.Errorf("encoding belongs to %s, not to %s", Embeddings, rows)
	case !slices.Contains([]string{"", "float", "base64"}, w.Encoding):
		return fmt.Errorf("encoding is %q, want float or base64", w.Encoding)
	case w.Rows != "" && w.Kind != Batch:
		return fmt.Errorf("rows belongs to %s, not to %s", Batch, w.Kind)
	case w.Kind == Batch && !slices.Contains(batchKinds, rows):
		return fmt.Errorf("rows is %q, want one of %q", w.Rows, batchKinds)
	case w.Kind == Job && (w.Template == "") == (w.Requests == ""):
		return errors.New("a job needs template, or a file of requests")
	case w.Kind != Job && (w.Template != "" || w.Params != nil):
		return fmt.Errorf("template and params belong to %s, not to %s", Job, w.Kind)
	}
	return w.validateTexts()
}

// batchKinds are what a batch can be made of.
var batchKinds = []Kind{Embeddings, Chat, Completions, Responses}

// validateTexts checks where texts come from and how long they are made.
func (w Workload) validateTexts() error {
	if len(w.Texts) > maxTexts || slices.Contains(w.Texts, "") {
		return fmt.Errorf("texts has %d entries, want at most %d and none empty", len(w.Texts), maxTexts)
	}
	if w.Texts != nil && w.Corpus != "" {
		return errors.New("texts and corpus: want one of them")
	}
	if w.Requests != "" || w.Kind == Job {
		for key, set := range map[string]bool{
			"texts": w.Texts != nil, "corpus": w.Corpus != "", "prefix": w.Prefix != nil, "input_tokens": w.InputTokens != nil,
			"output_tokens": w.OutputTokens != nil, "max_tokens": w.MaxTokens != 0, "bytes_per_token": w.BytesPerToken != 0,
			"inputs": w.Inputs != 0 && w.Kind != Batch, "encoding": w.Encoding != "",
		} {
			if set {
				return fmt.Errorf("%s does not go with whole requests", key)
			}
		}
		return nil
	}
	for key, d := range map[string]*Dist{"input_tokens": w.InputTokens, "output_tokens": w.OutputTokens} {
		if d == nil {
			continue
		}
		if err := d.Validate(); err != nil {
			return arrivals.Keyed(key, fmt.Errorf("%s: %w", key, err))
		}
	}
	if w.OutputTokens != nil && !w.rowKind().streams() {
		return fmt.Errorf("output_tokens does not belong to kind %s", w.rowKind())
	}
	perToken := cmp.Or(w.BytesPerToken, defaultBytesPerToken)
	if d := w.InputTokens; d != nil && max(d.Mean, float64(d.Max))*perToken*float64(max(1, w.Inputs)) > maxRequest {
		return fmt.Errorf("input_tokens: %d such texts can be more than %d bytes together", max(1, w.Inputs), maxRequest)
	}
	// Below 1/8 byte or above 64 there is no tokenizer.
	if b := w.BytesPerToken; b != 0 && !(b >= 0.125 && b <= 64) {
		return fmt.Errorf("bytes_per_token is %v, want 0.125 to 64, or 0 for %d", b, defaultBytesPerToken)
	}
	if p := w.Prefix; p != nil {
		if n := max(1, w.Inputs); float64(p.Tokens)*perToken*float64(n) > maxRequest {
			return fmt.Errorf("prefix: %d texts that each begin with %d tokens are more than %d bytes together", n, p.Tokens, maxRequest)
		}
		return p.validate(perToken)
	}
	return nil
}

func (p *Prefix) validate(perToken float64) error {
	switch {
	case p.Pool < 1 || p.Pool > maxPrefixes:
		return fmt.Errorf("prefix.pool is %d, want 1 to %d", p.Pool, maxPrefixes)
	case p.Tokens < 1 || p.Tokens > maxTextTokens:
		return fmt.Errorf("prefix.tokens is %d, want 1 to %d", p.Tokens, maxTextTokens)
	case !(p.Share > 0 && p.Share <= 1):
		return fmt.Errorf("prefix.share is %v, want more than 0 and at most 1", p.Share)
	case float64(p.Pool)*float64(p.Tokens)*perToken > maxCorpus:
		return fmt.Errorf("prefix: %d of %d tokens are more than %d bytes together", p.Pool, p.Tokens, maxCorpus)
	}
	return nil
}

// stocks makes what the requests of each workload are made of.
func (o Options) stocks() ([]*stock, error) {
	out := make([]*stock, len(o.Workloads))
	for i := range out {
		w := &o.Workloads[i]
		src, err := o.read(w)
		if err != nil {
			return nil, err
		}
		out[i] = newStock(w, arrivals.Scramble(o.Seed)^arrivals.Scramble(textStream(i)), src)
	}
	return out, nil
}

// read reads the files that a workload names.
func (o Options) read(w *Workload) (src sources, err error) {
	if w.Corpus != "" {
		err = o.with(w.Corpus, func(r io.Reader) (err error) {
			src.corpus, err = readCorpus(w.Corpus, r)
			return err
		})
	}
	if w.Requests != "" {
		err = o.with(w.Requests, func(r io.Reader) (err error) {
			src.given, err = readRequests(w.Requests, r, w.rowKind())
			return err
		})
	}
	if w.CA != "" && err == nil {
		err = o.with(w.CA, func(r io.Reader) (err error) {
			src.roots, err = readRoots(w.CA, r)
			return err
		})
	}
	if err != nil {
		return sources{}, fmt.Errorf("loadgen: workload %q: %w", w.Name, err)
	}
	return src, nil
}

// maxRoots bounds a file of certificates, in bytes; the system's has some 200 KB.
const maxRoots = 4 << 20

// readRoots reads the certificates that are trusted.
func readRoots(name string, r io.Reader) (*x509.CertPool, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxRoots))
	if err != nil {
		return nil, fmt.Errorf("ca: %s: %w", name, err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("ca: %s: no certificate in it, want PEM", name)
	}
	return roots, nil
}

// with opens a file of the profile for read.
func (o Options) with(name string, read func(io.Reader) error) error {
	if o.Open == nil {
		return fmt.Errorf("nothing here opens files: %s", name)
	}
	f, err := o.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	return read(f)
}
