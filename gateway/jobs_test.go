package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/textproto"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"aloft/backends"
	"aloft/jobs"
	"aloft/jobs/boltstore"

	"gocloud.dev/blob/memblob"
)

// noExecutor starts nothing: these jobs only wait.
type noExecutor struct{}

func (noExecutor) Start(context.Context, jobs.Launch) (jobs.Run, error) {
	return nil, errors.New("nothing starts here")
}
func (noExecutor) Reap(context.Context) error { return nil }

// lateCaller is the knot between the manager and the gateway, as in cmd/aloft.
type lateCaller struct{ jobs.Caller }

// withJobs serves with a real job manager behind; its rows go through the gateway.
func withJobs(t *testing.T, play script, change ...func(*Options, *Deps)) *edge {
	t.Helper()
	dir := t.TempDir()
	store, err := boltstore.Open(filepath.Join(dir, "jobs.db"))
	if err != nil {
		t.Fatal(err)
	}
	bucket := memblob.OpenBucket(nil)
	knot := &lateCaller{}
	m, err := jobs.NewManager(jobs.Options{
		Store: store, Files: store, Blobs: bucket, Caller: knot, Executor: noExecutor{}, DataDir: dir,
		Templates: []jobs.Template{tuner, {Name: "train", Kind: jobs.KindTrain, Priority: 5, Command: []string{"/bin/true", "{steps}"},
			Params: []jobs.Param{{Name: "steps", Type: jobs.ParamInt, Default: "10", Min: 1, Max: 100}}}},
		Retry: jobs.Retry{First: time.Millisecond, Most: 10 * time.Millisecond},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := m.Close(ctx); err != nil {
			t.Errorf("close jobs: %v", err)
		}
		bucket.Close()
		store.Close()
	})
	e := start(t, play, append(change, func(_ *Options, d *Deps) { d.Files, d.Batches, d.Jobs, d.FineTunes = m, m, m, m })...)
	e.blobs = bucket
	knot.Caller = e.Server
	if err := m.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	return e
}

// form is a multipart body: pairs of name and value; "file" is the file.
func form(t *testing.T, pairs ...string) (body, contentType string) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for i := 0; i+1 < len(pairs); i += 2 {
		h := textproto.MIMEHeader{}
		h.Set("Content-Disposition", fmt.Sprintf(`form-data; name="%s"`, pairs[i]))
		if pairs[i] == "file" {
			h.Set("Content-Disposition", `form-data; name="file"; filename="rows é.jsonl"`)
		}
		p, err := w.CreatePart(h)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(p, pairs[i+1])
	}
	w.Close()
	return b.String(), w.FormDataContentType()
}

func (e *edge) upload(t *testing.T, pairs ...string) (status int, reply map[string]any) {
	t.Helper()
	body, kind := form(t, pairs...)
	resp, text := e.do(t, "POST", "/v1/files", body, "Content-Type", kind)
	return resp.StatusCode, object(t, text)
}

func object(t *testing.T, text string) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return m
}

func TestFiles(t *testing.T) {
	e := withJobs(t, answer(200, "{}"), func(o *Options, _ *Deps) { o.MaxFile = 1 << 20 })
	content := strings.Repeat("line of a file\r\n", 1000)
	var ids []string
	for _, order := range [][]string{{"purpose", "batch", "file", content}, {"file", content, "purpose", "batch"}} {
		status, f := e.upload(t, order...)
		if status != 200 || f["object"] != "file" || f["bytes"] != float64(len(content)) || f["purpose"] != "batch" ||
			f["filename"] != "rows é.jsonl" || f["status"] != "processed" || f["created_at"].(float64) < 1.7e9 {
			t.Fatalf("upload %q: %d %v", order[0], status, f)
		}
		ids = append(ids, f["id"].(string))
		resp, got := e.get(t, "/v1/files/"+ids[len(ids)-1]+"/content")
		if resp.StatusCode != 200 || got != content || resp.ContentLength != int64(len(content)) {
			t.Errorf("content: %d, %d bytes, want %d", resp.StatusCode, len(got), len(content))
		}
	}
	if _, f := e.upload(t, "purpose", "assistants", "file", "x", "expires_after[anchor]", "created_at", "expires_after[seconds]", "3600"); f["expires_at"] == nil {
		t.Errorf("expiring file: %v", f)
	}
	_, text := e.get(t, "/v1/files?purpose=batch&limit=1&order=asc")
	if page := object(t, text); page["first_id"] != ids[0] || page["has_more"] != true || len(page["data"].([]any)) != 1 {
		t.Errorf("first page %s", text)
	}
	_, text = e.get(t, "/v1/files?purpose=batch&after="+ids[0]+"&order=asc")
	if page := object(t, text); page["last_id"] != ids[1] || page["has_more"] != false {
		t.Errorf("second page %s", text)
	}
	resp, text := e.do(t, "DELETE", "/v1/files/"+ids[0], "")
	if resp.StatusCode != 200 || object(t, text)["deleted"] != true {
		t.Errorf("delete: %d %s", resp.StatusCode, text)
	}
	for _, path := range []string{"/v1/files/" + ids[0], "/v1/files/" + ids[0] + "/content", "/v1/files/nope"} {
		if resp, text := e.get(t, path); resp.StatusCode != 404 || object(t, text)["error"] == nil {
			t.Errorf("%s: %d %s, want 404", path, resp.StatusCode, text)
		}
	}
}

func TestBadUploads(t *testing.T) {
	e := withJobs(t, answer(200, "{}"), func(o *Options, _ *Deps) { o.MaxFile = 1000 })
	many := []string{"file", "x", "purpose", "batch"}
	for i := range 20 {
		many = append(many, fmt.Sprint("x", i), "")
	}
	for _, tt := range []struct {
		name   string
		parts  []string
		status int
		param  any
	}{
		{"no file", []string{"purpose", "batch"}, 400, "file"},
		{"no purpose", []string{"file", "x"}, 400, "purpose"},
		{"our own purpose", []string{"file", "x", "purpose", "batch_output"}, 400, "purpose"},
		{"two files", []string{"file", "x", "file", "y", "purpose", "batch"}, 400, "file"},
		{"two purposes", []string{"file", "x", "purpose", "batch", "purpose", "evals"}, 400, "purpose"},
		{"too large", []string{"file", strings.Repeat("x", 1001), "purpose", "batch"}, 413, nil},
		{"far too large", []string{"file", strings.Repeat("x", 3<<20), "purpose", "batch"}, 413, nil},
		{"long field", []string{"file", "x", "purpose", strings.Repeat("x", 5000)}, 400, "purpose"},
		{"expires too soon", []string{"file", "x", "purpose", "batch", "expires_after[anchor]", "created_at", "expires_after[seconds]", "5"}, 400, "expires_after.seconds"},
		{"many parts", many, 400, nil},
		{"no parts", nil, 400, "file"},
	} {
		status, reply := e.upload(t, tt.parts...)
		fault, _ := reply["error"].(map[string]any)
		if status != tt.status || fault == nil || fault["param"] != tt.param {
			t.Errorf("%s: %d %v, want %d about %v", tt.name, status, reply, tt.status, tt.param)
		}
	}
	for name, kind := range map[string]string{"no form": "application/json", "no boundary": "multipart/form-data"} {
		if resp, text := e.do(t, "POST", "/v1/files", "x", "Content-Type", kind); resp.StatusCode != 415 {
			t.Errorf("%s: %d %s, want 415", name, resp.StatusCode, text)
		}
	}
	if resp, text := e.do(t, "POST", "/v1/files", "--b\r\nbroken", "Content-Type", "multipart/form-data; boundary=b"); resp.StatusCode != 400 {
		t.Errorf("broken form: %d %s, want 400", resp.StatusCode, text)
	}
}

// A file goes on while its upload is still coming: it waits nowhere else.
func TestUploadsAreStreamed(t *testing.T) {
	came := make(chan string, 1)
	e := withJobs(t, answer(200, "{}"))
	e.deps.Files = spyFiles{e.deps.Files, came}
	body, kind := form(t, "file", strings.Repeat("x", 200_000), "purpose", "batch")
	at := len(body) / 2
	c := e.dial(t)
	fmt.Fprintf(c, "POST /v1/files HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s", kind, len(body), body[:at])
	select {
	case got := <-came:
		if got != "x" {
			t.Errorf("%q came first", got)
		}
	case <-time.After(patience):
		t.Fatal("nothing of the file went on")
	}
	io.WriteString(c, body[at:])
	if reply, err := io.ReadAll(c); err != nil || !strings.Contains(string(reply), `"bytes":200000`) {
		t.Errorf("%s, %v", reply, err)
	}
}

// spyFiles tells of the first bytes of a file.
type spyFiles struct {
	theFiles
	came chan string
}

func (s spyFiles) CreateFile(ctx context.Context, spec func() (jobs.FileSpec, error), r io.Reader) (jobs.File, error) {
	b := make([]byte, 1)
	n, err := io.ReadFull(r, b)
	if err != nil {
		return jobs.File{}, err
	}
	s.came <- string(b[:n])
	return s.theFiles.CreateFile(ctx, spec, io.MultiReader(strings.NewReader(string(b[:n])), r))
}

// An upload that breaks off, or is refused after its file has come, leaves nothing.
func TestBrokenUploadsLeaveNothing(t *testing.T) {
	e := withJobs(t, answer(200, "{}"), func(o *Options, _ *Deps) { o.MaxFile = 1 << 20 })
	rows := strings.Repeat("row\n", 50_000)
	whole, _ := form(t, "file", rows, "purpose", "batch")
	none, _ := form(t, "file", rows, "purpose", "nonsense")
	for name, tt := range map[string]struct{ body, want string }{
		"in the file":    {whole[:len(whole)/2], ""},
		"after the file": {whole[:len(whole)-20], ""},
		"damaged end":    {strings.Replace(whole, "batch\r\n--", "batch\r\n==", 1), "400"},
		"refused":        {none, "400"},
	} {
		boundary := strings.TrimPrefix(strings.SplitN(tt.body, "\r\n", 2)[0], "--")
		length := len(tt.body)
		if tt.want == "" {
			length = len(whole)
		}
		c := e.dial(t)
		fmt.Fprintf(c, "POST /v1/files HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=%s\r\nContent-Length: %d\r\n\r\n%s", boundary, length, tt.body)
		if tt.want != "" {
			answer := make([]byte, 12)
			if _, err := io.ReadFull(c, answer); err != nil || string(answer) != "HTTP/1.1 "+tt.want {
				t.Errorf("%s: %q, %v; want %s", name, answer, err, tt.want)
			}
		}
		c.(*net.TCPConn).CloseWrite()
		io.Copy(io.Discard, c) // until the server is done with it
	}
	for list := e.blobs.List(nil); ; {
		o, err := list.Next(t.Context())
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Errorf("left: %s, %d bytes", o.Key, o.Size)
	}
	if _, text := e.get(t, "/v1/files"); len(object(t, text)["data"].([]any)) != 0 {
		t.Errorf("files: %s", text)
	}
}

// A batch from upload to output, its rows through the gateway itself.
func TestBatches(t *testing.T) {
	e := withJobs(t, func(_ context.Context, req *backends.Request) (*backends.Reply, error) {
		if strings.Contains(string(req.Body), "bad") {
			return whole200(400, `{"error":{"message":"bad","type":"invalid_request_error","param":null,"code":null}}`), nil
		}
		return whole200(200, `{"object":"list","data":[],"usage":{"prompt_tokens":2,"total_tokens":2}}`), nil
	})
	rows := ""
	for i, input := range []string{"one", "bad", "three"} {
		rows += fmt.Sprintf(`{"custom_id":"r%d","method":"POST","url":"/v1/embeddings","body":{"model":"tiny","input":"%s"}}`+"\n", i, input)
	}
	_, f := e.upload(t, "purpose", "batch", "file", rows)
	resp, text := e.post(t, "/v1/batches", fmt.Sprintf(
		`{"input_file_id":"%s","endpoint":"/v1/embeddings","completion_window":"24h","metadata":{"a":"b"}}`, f["id"]))
	b := object(t, text)
	if resp.StatusCode != 200 || b["object"] != "batch" || b["status"] != "validating" || b["errors"] != nil || b["output_file_id"] != nil {
		t.Fatalf("create: %d %s", resp.StatusCode, text)
	}
	id := b["id"].(string)
	text = e.untilBatch(t, id, "completed")
	b = object(t, text)
	counts := b["request_counts"].(map[string]any)
	if counts["total"] != 3.0 || counts["completed"] != 2.0 || counts["failed"] != 1.0 || b["completed_at"] == nil ||
		b["model"] != "tiny" || b["usage"].(map[string]any)["total_tokens"] != 4.0 || b["metadata"].(map[string]any)["a"] != "b" {
		t.Errorf("batch %s", text)
	}
	_, out := e.get(t, "/v1/files/"+b["output_file_id"].(string)+"/content")
	if strings.Count(out, "\n") != 2 || !strings.Contains(out, `"custom_id":"r0"`) || !strings.Contains(out, `"custom_id":"r2"`) {
		t.Errorf("output %s", out)
	}
	_, bad := e.get(t, "/v1/files/"+b["error_file_id"].(string)+"/content")
	if strings.Count(bad, "\n") != 1 || !strings.Contains(bad, `"custom_id":"r1"`) || !strings.Contains(bad, `"status_code":400`) {
		t.Errorf("errors %s", bad)
	}
	if resp, text := e.post(t, "/v1/batches/"+id+"/cancel", ""); resp.StatusCode != 400 {
		t.Errorf("cancel of a finished batch: %d %s, want 400", resp.StatusCode, text)
	}
	if _, text := e.get(t, "/v1/batches"); object(t, text)["first_id"] != id {
		t.Errorf("list %s", text)
	}
}

func TestBatchIsCancelledAndRefused(t *testing.T) {
	e := withJobs(t, holds(make(chan error, 10)))
	_, f := e.upload(t, "purpose", "batch", "file",
		`{"custom_id":"r","method":"POST","url":"/v1/embeddings","body":{"model":"tiny","input":"x"}}`+"\n")
	good := fmt.Sprintf(`{"input_file_id":"%s","endpoint":"/v1/embeddings","completion_window":"24h"}`, f["id"])
	_, text := e.post(t, "/v1/batches", good)
	id := object(t, text)["id"].(string)
	for range 2 { // the second time is no error
		if resp, text := e.post(t, "/v1/batches/"+id+"/cancel", ""); resp.StatusCode != 200 && object(t, text)["error"] == nil {
			t.Errorf("cancel: %d %s", resp.StatusCode, text)
		}
	}
	e.untilBatch(t, id, "cancelled")
	for param, body := range map[string]string{
		"input_file_id":                `{"endpoint":"/v1/embeddings","completion_window":"24h"}`,
		"completion_window":            strings.Replace(good, "24h", "soon", 1),
		"endpoint":                     strings.Replace(good, "/v1/embeddings", "/v1/images", 1),
		"metadata.a":                   strings.Replace(good, "{", `{"metadata":{"a":1},`, 1),
		"output_expires_after.seconds": strings.Replace(good, "{", `{"output_expires_after":{"anchor":"created_at","seconds":1},`, 1),
	} {
		resp, text := e.post(t, "/v1/batches", body)
		fault, _ := object(t, text)["error"].(map[string]any)
		if resp.StatusCode != 400 || fault == nil || !strings.HasPrefix(param, fmt.Sprint(fault["param"])) {
			t.Errorf("%s: %d %s", param, resp.StatusCode, text)
		}
	}
	if resp, _ := e.post(t, "/v1/batches", "["); resp.StatusCode != 400 {
		t.Errorf("no object: %d", resp.StatusCode)
	}
}

func TestJobs(t *testing.T) {
	e := withJobs(t, answer(200, "{}"))
	resp, text := e.post(t, "/aloft/v1/jobs", `{"template":"train","params":{"steps":20},"priority":3,"grace_seconds":1.5}`)
	j := object(t, text)
	if resp.StatusCode != 200 || j["state"] != "queued" || j["kind"] != "train" || j["grace_seconds"] != 1.5 ||
		fmt.Sprint(j["command"]) != "[/bin/true 20]" || j["error"] != nil {
		t.Fatalf("submit: %d %s", resp.StatusCode, text)
	}
	id := j["id"].(string)
	if _, text := e.get(t, "/aloft/v1/jobs?state=queued&state=running&kind=train"); object(t, text)["last_id"] != id {
		t.Errorf("list %s", text)
	}
	if _, text := e.get(t, "/aloft/v1/jobs?state=failed"); object(t, text)["first_id"] != nil {
		t.Errorf("list of failed %s", text)
	}
	if _, text := e.post(t, "/aloft/v1/jobs/"+id+"/cancel", ""); object(t, text)["state"] != "cancelled" {
		t.Errorf("cancel %s", text)
	}
	if _, text := e.get(t, "/aloft/v1/jobs/"+id); object(t, text)["finished_at"] == nil {
		t.Errorf("get %s", text)
	}
	for body, status := range map[string]int{
		`{}`: 400, `{"template":"nope"}`: 400, `{"template":"train","params":{"steps":"many"}}`: 400,
		`{"command":["/bin/true"],"kind":"train"}`: 403, `{"command":["/bin/true"]}`: 400, `{"template":"train","grace_seconds":-1}`: 400,
		`{"template":"train","grace_seconds":601}`: 400, `{"template":"train","grace_seconds":1e300}`: 400,
		`{"template":"train","priority":6}`: 400, `{"template":"train","priority":-101}`: 400,
		`{"template":"train","prioritty":1}`: 400,
	} {
		if resp, text := e.post(t, "/aloft/v1/jobs", body); resp.StatusCode != status || object(t, text)["error"] == nil {
			t.Errorf("%s: %d %s, want %d", body, resp.StatusCode, text, status)
		}
	}
	if _, text := e.post(t, "/aloft/v1/jobs", `{"template":"train","prioritty":1}`); !strings.Contains(text, `"param":"prioritty"`) {
		t.Errorf("an unknown key: %s", text)
	}
	for _, path := range []string{"/aloft/v1/jobs", "/v1/batches"} {
		if resp, text := e.post(t, path, "[]"); resp.StatusCode != 400 || strings.Contains(text, "struct") {
			t.Errorf("an array for %s: %d %s, want 400 without Go's types", path, resp.StatusCode, text)
		}
	}
	if resp, _ := e.get(t, "/aloft/v1/jobs?state=happy"); resp.StatusCode != 400 {
		t.Errorf("unknown state: %d", resp.StatusCode)
	}
}

// What belongs to one tenant does not exist for another.
func TestTenantsAreApart(t *testing.T) {
	e := withJobs(t, holds(make(chan error, 10)), func(_ *Options, d *Deps) {
		d.Keys = newRing(t, "k1", &Grant{Tenant: "red"}, "k2", &Grant{Tenant: "blue"})
	})
	red, blue := []string{"Authorization", "Bearer k1"}, []string{"Authorization", "Bearer k2"}
	body, kind := form(t, "purpose", "batch", "file",
		`{"custom_id":"r","method":"POST","url":"/v1/embeddings","body":{"model":"tiny","input":"x"}}`+"\n")
	_, text := e.do(t, "POST", "/v1/files", body, append([]string{"Content-Type", kind}, red...)...)
	file := object(t, text)["id"].(string)
	wish := fmt.Sprintf(`{"input_file_id":"%s","endpoint":"/v1/embeddings","completion_window":"24h"}`, file)
	if resp, _ := e.post(t, "/v1/batches", wish, blue...); resp.StatusCode != 400 {
		t.Errorf("a batch of a foreign file: %d, want 400", resp.StatusCode)
	}
	_, text = e.post(t, "/v1/batches", wish, red...)
	batch := object(t, text)["id"].(string)
	for _, path := range []string{"/v1/files/" + file, "/v1/files/" + file + "/content", "/v1/batches/" + batch, "/aloft/v1/jobs/" + batch} {
		if resp, _ := e.get(t, path, red...); resp.StatusCode != 200 {
			t.Errorf("%s for its owner: %d", path, resp.StatusCode)
		}
		if resp, _ := e.get(t, path, blue...); resp.StatusCode != 404 {
			t.Errorf("%s for another: %d, want 404", path, resp.StatusCode)
		}
	}
	for _, path := range []string{"/v1/files", "/v1/batches", "/aloft/v1/jobs"} {
		if _, text := e.get(t, path, blue...); object(t, text)["first_id"] != nil {
			t.Errorf("%s shows another's: %s", path, text)
		}
	}
	for _, path := range []string{"/v1/batches/" + batch + "/cancel", "/aloft/v1/jobs/" + batch + "/cancel"} {
		if resp, _ := e.post(t, path, "", blue...); resp.StatusCode != 404 {
			t.Errorf("POST %s by another: %d, want 404", path, resp.StatusCode)
		}
	}
	e.post(t, "/v1/batches/"+batch+"/cancel", "", red...)
}

// A bad file fails its batch with the lines at fault; lists come newest first, in pages.
func TestBatchListsAndErrors(t *testing.T) {
	e := withJobs(t, answer(200, "{}"))
	row := func(id, rest string) string {
		return `{"custom_id":"` + id + `","method":"POST","url":"/v1/chat/completions","body":{"model":"tiny"` + rest + "}}"
	}
	_, f := e.upload(t, "purpose", "batch", "file", "\xef\xbb\xbf"+row("a", "")+"\r\n"+row("a", "")+"\r\n"+row("b", `,"stream":true`)+"\r\n{\r\n\r\n")
	var ids []string
	for range 3 {
		_, text := e.post(t, "/v1/batches", fmt.Sprintf(`{"input_file_id":"%s","endpoint":"/v1/chat/completions","completion_window":"24h"}`, f["id"]))
		ids = append(ids, object(t, text)["id"].(string))
	}
	b := object(t, e.untilBatch(t, ids[0], "failed"))
	var lines []string
	for _, d := range b["errors"].(map[string]any)["data"].([]any) {
		d := d.(map[string]any)
		lines = append(lines, fmt.Sprint(d["line"], " ", d["code"], " ", d["param"]))
	}
	want := "2 duplicate_custom_id custom_id, 3 invalid_value body.stream, 4 invalid_json_line <nil>"
	if got := strings.Join(lines, ", "); got != want || b["errors"].(map[string]any)["object"] != "list" {
		t.Errorf("errors %s, want %s", got, want)
	}
	for _, key := range []string{"failed_at", "expires_at", "created_at"} {
		if at, _ := b[key].(float64); at < 1.7e9 {
			t.Errorf("%s is %v, want Unix seconds", key, b[key])
		}
	}
	for _, key := range []string{"in_progress_at", "finalizing_at", "completed_at", "expired_at", "cancelling_at", "cancelled_at", "output_file_id", "error_file_id"} {
		if v, there := b[key]; v != nil || !there {
			t.Errorf("%s is %v, want null", key, v)
		}
	}
	_, text := e.get(t, "/v1/batches?limit=2")
	if p := object(t, text); p["first_id"] != ids[2] || p["last_id"] != ids[1] || p["has_more"] != true {
		t.Errorf("first page %s", text)
	}
	_, text = e.get(t, "/v1/batches?limit=2&after="+ids[1])
	if p := object(t, text); p["first_id"] != ids[0] || p["last_id"] != ids[0] || p["has_more"] != false {
		t.Errorf("second page %s", text)
	}
	for _, q := range []string{"limit=0", "limit=101", "limit=x"} {
		if resp, text := e.get(t, "/v1/batches?"+q); resp.StatusCode != 400 {
			t.Errorf("%s: %d %s, want 400", q, resp.StatusCode, text)
		}
	}
	if resp, text := e.post(t, "/v1/batches/"+ids[0]+"/cancel", ""); resp.StatusCode != 400 {
		t.Errorf("cancel of a failed batch: %d %s, want 400", resp.StatusCode, text)
	}
}
