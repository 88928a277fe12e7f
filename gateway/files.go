package gateway

import (
	"context"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"aloft/backends/openai"
	"aloft/jobs"
)

// Files is what the files API needs of the job manager. Whose a file is, is
// checked here: ids of others are not found.
type Files interface {
	CreateFile(ctx context.Context, spec func() (jobs.FileSpec, error), r io.Reader) (jobs.File, error)
	File(ctx context.Context, id string) (jobs.File, error)
	Files(ctx context.Context, f jobs.FileFilter) ([]jobs.File, error)
	OpenFile(ctx context.Context, id string) (io.ReadCloser, error)
	DeleteFile(ctx context.Context, id string) error
}

// uploadPath is where files come in.
const uploadPath = "/v1/files"

// OpenAI's bounds of an expiry, in seconds.
const minExpiry, maxExpiry = 3600, 2592000

const (
	maxParts = 16      // of an upload; OpenAI's have four at most
	maxField = 4 << 10 // bytes of a part that is not the file
	maxFiles = 10000   // of one page
)

// uploadPurposes are those a client may upload with; only batch means something
// here, the others are stored for whoever asks for them.
var uploadPurposes = []string{jobs.PurposeBatch, jobs.PurposeFineTune, "assistants", "vision", "user_data", "evals"}

// fileObject is OpenAI's file.
type fileObject struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Bytes   int64  `json:"bytes"`
	Created int64  `json:"created_at"`
	Expires int64  `json:"expires_at,omitempty"`
	Name    string `json:"filename"`
	Purpose string `json:"purpose"`
	Status  string `json:"status"` // deprecated, but expected
}

func fileOf(f jobs.File) fileObject {
	o := fileObject{
		ID: f.ID, Object: "file", Bytes: f.Bytes, Created: f.Created.Unix(), Name: f.Name, Purpose: f.Purpose, Status: "processed",
	}
	if !f.Expires.IsZero() {
		o.Expires = f.Expires.Unix()
	}
	return o
}

func (s *Server) createFile(x *exchange) {
	c := x.c
	boundary := c.Request.Header.MultipartFormBoundary()
	stream := c.RequestBodyStream()
	if s.oversized(&c.Request.Header) {
		c.SetConnectionClose()
		s.fail(x, tooLarge(int(s.opt.MaxFile)))
		return
	}
	if len(boundary) == 0 || stream == nil {
		s.fail(x, unsupported("content type %q is not supported, want multipart/form-data with a boundary", c.Request.Header.ContentType()))
		return
	}
	body := &io.LimitedReader{R: stream, N: s.opt.MaxFile + uploadSlack}
	up, err := openUpload(body, string(boundary), s.opt.MaxFile)
	var f jobs.File
	if err == nil {
		up.tenant = x.tenant
		f, err = s.deps.Files.CreateFile(s.base, up.spec, up)
	}
	if err != nil { // the rest of the body stays unread
		c.SetConnectionClose()
		s.fail(x, err)
		return
	}
	s.json(x, fileOf(f))
}

// upload is a multipart body. It reads as the file in it, which ends only when
// all of the body was read: the parts that describe a file may follow it, and it
// should not have to lie on disk twice for that.
type upload struct {
	body   *io.LimitedReader
	parts  *multipart.Reader
	n      int // parts read
	most   int64
	tenant string
	file   *multipart.Part // nil = not found yet
	size   int64           // bytes read of it
	fields map[string]string
}

// openUpload reads up to the file.
func openUpload(body *io.LimitedReader, boundary string, most int64) (*upload, error) {
	u := &upload{body: body, parts: multipart.NewReader(body, boundary), most: most, fields: map[string]string{}}
	switch file, err := u.next(); {
	case err == io.EOF:
		return nil, invalid("file", openai.CodeMissing, "there is no part named file")
	case err != nil:
		return nil, err
	default:
		u.file = file
		return u, nil
	}
}

// next reads fields until the file comes. io.EOF: it does not come.
func (u *upload) next() (*multipart.Part, error) {
	for ; ; u.n++ {
		part, err := u.parts.NextRawPart()
		if err == io.EOF {
			return nil, err
		}
		if err != nil {
			return nil, u.bad(err)
		}
		name := part.FormName()
		_, seen := u.fields[name]
		switch {
		case u.n >= maxParts:
			return nil, invalid("", "", "the upload has more than %d parts", maxParts)
		case seen || name == "file" && u.file != nil:
			return nil, invalid(name, openai.CodeValue, "part %.40q is there twice", name)
		case name == "file":
			u.n++
			return part, nil
		}
		if u.fields[name], err = u.field(part); err != nil {
			return nil, err
		}
	}
}

// Read reads the file.
func (u *upload) Read(p []byte) (int, error) {
	n, err := u.file.Read(p)
	switch u.size += int64(n); {
	case u.size > u.most:
		err = tooLarge(int(u.most))
	case err == io.EOF:
		err = u.finish()
	case err != nil:
		err = u.bad(err)
	}
	return n, err
}

// finish reads what follows the file. io.EOF: it is whole.
func (u *upload) finish() error {
	if _, err := u.next(); err != io.EOF {
		return err
	}
	if _, err := io.Copy(io.Discard, u.body); err != nil { // the epilogue
		return readFault(err)
	}
	if u.body.N <= 0 {
		return tooLarge(int(u.most))
	}
	return io.EOF
}

// bad is the answer to a body that cannot be read.
func (u *upload) bad(err error) error {
	if u.body.N <= 0 {
		return tooLarge(int(u.most))
	}
	if f := readFault(err); f.(*openai.Error).Status != 400 {
		return f
	}
	return invalid("", "", "the multipart body is damaged or broke off")
}

// maxName is the longest file name kept, in bytes.
const maxName = 255

// fileName is the name as the client gave it, without folders of any system and
// without what could break a header or a terminal.
func fileName(given string) string {
	name := given[strings.LastIndexAny(given, `/\`)+1:]
	name = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, name)
	for len(name) > maxName {
		_, last := utf8.DecodeLastRuneInString(name)
		name = name[:len(name)-last]
	}
	if name = strings.TrimSpace(name); strings.Trim(name, ".") == "" {
		return "upload"
	}
	return name
}

// givenName is the filename parameter as sent: Part.FileName drops folders by
// the rules of the system that we run on.
func givenName(p *multipart.Part) string {
	_, params, err := mime.ParseMediaType(p.Header.Get("Content-Disposition"))
	if err != nil {
		return ""
	}
	return params["filename"]
}

func (u *upload) field(part *multipart.Part) (string, error) {
	value, err := io.ReadAll(io.LimitReader(part, maxField+1))
	if err != nil {
		return "", u.bad(err)
	}
	if len(value) > maxField {
		return "", invalid(part.FormName(), openai.CodeValue, "part %.40q has more than %d bytes", part.FormName(), maxField)
	}
	return string(value), nil
}

// spec takes the specification from the parts, once they are read.
func (u *upload) spec() (spec jobs.FileSpec, err error) {
	purpose, given := u.fields["purpose"]
	if !given {
		return spec, invalid("purpose", openai.CodeMissing, "there is no part named purpose")
	}
	if !slices.Contains(uploadPurposes, purpose) {
		return spec, invalid("purpose", openai.CodeValue, "%.40q is not one of %v", purpose, uploadPurposes)
	}
	spec = jobs.FileSpec{Name: fileName(givenName(u.file)), Purpose: purpose, Tenant: u.tenant}
	seconds, expires := u.fields["expires_after[seconds]"]
	anchor, anchored := u.fields["expires_after[anchor]"]
	if !expires && !anchored {
		return spec, nil
	}
	n, err := strconv.Atoi(seconds)
	if err != nil {
		return spec, invalid("expires_after[seconds]", openai.CodeType, "%.40q is not a number", seconds)
	}
	spec.TTL, err = expiry("expires_after", anchor, n)
	return spec, err
}

// expiry checks OpenAI's {anchor, seconds}.
func expiry(param, anchor string, seconds int) (time.Duration, error) {
	if anchor != "created_at" {
		return 0, invalid(param+".anchor", openai.CodeValue, "%.40q is not created_at", anchor)
	}
	if seconds < minExpiry || seconds > maxExpiry {
		return 0, invalid(param+".seconds", openai.CodeValue, "%d is not from %d to %d", seconds, minExpiry, maxExpiry)
	}
	return time.Duration(seconds) * time.Second, nil
}

// file finds the caller's file; those of others are not found.
func (s *Server) file(x *exchange) (jobs.File, error) {
	f, err := s.deps.Files.File(s.base, x.path)
	if err == nil && f.Tenant != x.tenant {
		err = fmt.Errorf("file %.100s: %w", x.path, jobs.ErrNotFound)
	}
	return f, err
}

func (s *Server) getFile(x *exchange) {
	f, err := s.file(x)
	if err != nil {
		s.fail(x, err)
		return
	}
	s.json(x, fileOf(f))
}

func (s *Server) deleteFile(x *exchange) {
	f, err := s.file(x)
	if err == nil {
		err = s.deps.Files.DeleteFile(s.base, f.ID)
	}
	if err != nil {
		s.fail(x, err)
		return
	}
	s.json(x, map[string]any{"id": f.ID, "object": "file", "deleted": true})
}

// fileContent streams a file as it was uploaded.
func (s *Server) fileContent(x *exchange) {
	f, err := s.file(x)
	if err != nil {
		s.fail(x, err)
		return
	}
	r, err := s.deps.Files.OpenFile(s.base, f.ID)
	if err != nil {
		s.fail(x, err)
		return
	}
	x.c.SetContentType("application/octet-stream")
	x.c.Response.Header.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": f.Name}))
	s.active.Add(1)
	x.c.SetBodyStream(&download{r, s}, int(f.Bytes))
}

// download is a file on its way out, which a drain waits for.
type download struct {
	io.ReadCloser
	s *Server
}

// Close is called by fasthttp, once, also when nothing was read.
func (d *download) Close() error {
	d.s.active.Add(-1)
	return d.ReadCloser.Close()
}

func (s *Server) listFiles(x *exchange) {
	q := x.c.QueryArgs()
	limit, err := pageLimit(q.Peek("limit"), maxFiles, maxFiles)
	order := string(q.Peek("order"))
	if err == nil && order != "" && order != "asc" && order != "desc" {
		err = invalid("order", openai.CodeValue, "%.40q is neither asc nor desc", order)
	}
	var list []jobs.File
	if err == nil {
		list, err = s.deps.Files.Files(s.base, jobs.FileFilter{
			Purpose: string(q.Peek("purpose")), Tenant: x.tenant, After: string(q.Peek("after")),
			Limit: limit + 1, OldestFirst: order == "asc", Now: time.Now(),
		})
	}
	if err != nil {
		s.fail(x, err)
		return
	}
	page := newPage[fileObject](len(list) > limit)
	for _, f := range list[:min(limit, len(list))] {
		page.add(f.ID, fileOf(f))
	}
	s.json(x, page)
}

// page is OpenAI's list.
type page[T any] struct {
	Object string  `json:"object"`
	Data   []T     `json:"data"`
	First  *string `json:"first_id"`
	Last   *string `json:"last_id"`
	More   bool    `json:"has_more"`
}

func newPage[T any](more bool) *page[T] { return &page[T]{Object: "list", Data: []T{}, More: more} }

func (p *page[T]) add(id string, item T) {
	if p.First == nil {
		p.First = &id
	}
	p.Last = &id
	p.Data = append(p.Data, item)
}
