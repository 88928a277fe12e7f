package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"os"
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
	CreateFile(ctx context.Context, s jobs.FileSpec, r io.Reader) (jobs.File, error)
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
	up, err := readUpload(multipart.NewReader(body, string(boundary)), s.opt.SpoolDir, s.opt.MaxFile)
	if up != nil {
		defer up.content.Close()
	}
	if err == nil {
		_, err = io.Copy(io.Discard, body) // the epilogue
		err = readFault(err)
	}
	if body.N <= 0 {
		err = tooLarge(int(s.opt.MaxFile))
	}
	var f jobs.File
	if err == nil {
		up.spec.Tenant = x.tenant
		f, err = s.deps.Files.CreateFile(s.base, up.spec, up.content)
	}
	if err != nil { // the rest of the body stays unread
		c.SetConnectionClose()
		s.fail(x, err)
		return
	}
	s.json(x, fileOf(f))
}

// upload is a multipart body that was read: its file lies on disk, without a
// name, so that a crash leaves nothing behind.
type upload struct {
	spec    jobs.FileSpec
	content *os.File
}

// readUpload reads all parts, in whatever order they come: the purpose may
// follow the file, which is why the file waits on disk. content is nil only
// when up is.
func readUpload(r *multipart.Reader, dir string, most int64) (up *upload, err error) {
	fields := map[string]string{}
	spool, err := os.CreateTemp(dir, "aloft-upload-")
	if err != nil {
		return nil, fmt.Errorf("spool an upload: %w", err)
	}
	if err := os.Remove(spool.Name()); err != nil {
		spool.Close()
		return nil, fmt.Errorf("spool an upload: %w", err)
	}
	up = &upload{content: spool}
	haveFile := false
	for n := 0; ; n++ {
		part, err := r.NextRawPart()
		if err == io.EOF {
			break
		}
		if err != nil {
			return up, badUpload(err)
		}
		name := part.FormName()
		_, seen := fields[name]
		switch {
		case n == maxParts:
			return up, invalid("", "", "the upload has more than %d parts", maxParts)
		case seen || name == "file" && haveFile:
			return up, invalid(name, openai.CodeValue, "part %.40q is there twice", name)
		case name == "file":
			haveFile, up.spec.Name = true, fileName(givenName(part))
			err = spoolPart(spool, part, most)
		default:
			fields[name], err = field(part)
		}
		if err != nil {
			return up, err
		}
	}
	if !haveFile {
		return up, invalid("file", openai.CodeMissing, "there is no part named file")
	}
	if err := up.describe(fields); err != nil {
		return up, err
	}
	_, err = spool.Seek(0, io.SeekStart)
	return up, err
}

func badUpload(err error) error {
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

func spoolPart(w io.Writer, part *multipart.Part, most int64) error {
	n, err := io.Copy(w, io.LimitReader(part, most+1))
	if n > most {
		return tooLarge(int(most))
	}
	if disk := (*os.PathError)(nil); errors.As(err, &disk) {
		return fmt.Errorf("spool an upload: %w", err)
	}
	if err != nil {
		return badUpload(err)
	}
	return nil
}

func field(part *multipart.Part) (string, error) {
	value, err := io.ReadAll(io.LimitReader(part, maxField+1))
	if err != nil {
		return "", badUpload(err)
	}
	if len(value) > maxField {
		return "", invalid(part.FormName(), openai.CodeValue, "part %.40q has more than %d bytes", part.FormName(), maxField)
	}
	return string(value), nil
}

// describe takes the specification from the parts beside the file.
func (up *upload) describe(fields map[string]string) error {
	purpose, given := fields["purpose"]
	if !given {
		return invalid("purpose", openai.CodeMissing, "there is no part named purpose")
	}
	if !slices.Contains(uploadPurposes, purpose) {
		return invalid("purpose", openai.CodeValue, "%.40q is not one of %v", purpose, uploadPurposes)
	}
	up.spec.Purpose = purpose
	seconds, expires := fields["expires_after[seconds]"]
	anchor, anchored := fields["expires_after[anchor]"]
	if !expires && !anchored {
		return nil
	}
	n, err := strconv.Atoi(seconds)
	if err != nil {
		return invalid("expires_after[seconds]", openai.CodeType, "%.40q is not a number", seconds)
	}
	up.spec.TTL, err = expiry("expires_after", anchor, n)
	return err
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
