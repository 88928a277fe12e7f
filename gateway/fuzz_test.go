package gateway

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"aloft/backends"
	"aloft/jobs"

	"github.com/valyala/fasthttp"
)

func FuzzUpload(f *testing.F) {
	part := func(name, value string) string {
		return "--b\r\nContent-Disposition: form-data; name=\"" + name + "\"\r\n\r\n" + value + "\r\n"
	}
	f.Add([]byte(part("purpose", "batch") + part("file", "x") + "--b--\r\n"))
	f.Add([]byte(part("file", "x") + part("expires_after[seconds]", "3600") + "--b--"))
	f.Add([]byte("--b\r\n\r\n\r\n--b"))
	f.Add([]byte("preamble\r\n--b\r\nContent-Disposition: form-data; name=file; filename*=utf-8''%c3%a9\r\n\r\n--b--"))
	f.Add([]byte("--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"../a\\b\r\n c\"\r\n\r\nx\r\n" + part("purpose", "evals") + "--b--"))
	f.Fuzz(func(t *testing.T, body []byte) {
		const most = 1000
		var got []byte
		var spec jobs.FileSpec
		up, err := openUpload(&io.LimitedReader{R: bytes.NewReader(body), N: 1 << 20}, "b", most)
		if err == nil {
			got, err = io.ReadAll(up)
		}
		if err == nil {
			spec, err = up.spec()
		}
		if err != nil {
			if status := faultOf(err).Status; status != 400 && status != 413 {
				t.Errorf("%v answers %d", err, status)
			}
			return
		}
		if len(got) > most || !bytes.Contains(body, got) || spec.Purpose == "" {
			t.Errorf("accepted %q of purpose %q", got, spec.Purpose)
		}
		if name := spec.Name; name == "" || len(name) > maxName || name != fileName(name) {
			t.Errorf("named %q, which is %q", name, fileName(name))
		}
	})
}

func FuzzHeaders(f *testing.F) {
	f.Add("interactive", "100", "id-1")
	f.Add("offline", "99999999999999999999", "a b")
	f.Add("none", "-1", strings.Repeat("x", 129))
	s := &Server{opt: Defaults()}
	f.Fuzz(func(t *testing.T, class, deadline, id string) {
		var c fasthttp.RequestCtx
		c.Request.Header.Set("X-Aloft-Priority", class)
		c.Request.Header.Set("X-Aloft-Deadline-Ms", deadline)
		who := caller{class: backends.Standard, arrival: time.Unix(1e9, 0)}
		if err := s.wishes(&exchange{c: &c}, &who); err == nil {
			if who.class != backends.Standard && who.class != backends.Offline {
				t.Errorf("%q gave class %v to a standard caller", class, who.class)
			}
			if d := who.deadline; !d.IsZero() && (!d.After(who.arrival) || d.Sub(who.arrival) > s.opt.RequestTimeout) {
				t.Errorf("%q gave the deadline %v", deadline, d.Sub(who.arrival))
			}
		}
		if got := requestID([]byte(id)); len(got) == 0 || len(got) > 128 || !visible([]byte(got)) {
			t.Errorf("%q gave the id %q", id, got)
		}
	})
}

func FuzzRoute(f *testing.F) {
	for _, path := range []string{"/v1/models/a%2fb", "/v1/models/", "/v1/models//content", "/v1/models/%zz", "/healthz", ""} {
		f.Add([]byte(path))
	}
	s := &Server{opt: Defaults(), log: slog.New(slog.DiscardHandler)}
	r := s.newRouter()
	f.Fuzz(func(t *testing.T, path []byte) {
		rt, id := r.find(path)
		if rt == nil {
			return
		}
		if !bytes.HasPrefix(path, []byte(rt.path)) || strings.HasSuffix(rt.path, "/") == (id == "") {
			t.Errorf("%q is taken for %q with id %q", path, rt.path, id)
		}
	})
}

func FuzzEngineFault(f *testing.F) {
	f.Add(400, []byte(`{"error":{"message":"m","code":7}}`))
	f.Add(500, []byte(`{"message":1}`))
	f.Add(422, []byte("{\"detail\":\"\xff\"}"))
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		fault := faultOf(engineFault(status, body))
		var got struct{ Error *struct{ Message string } }
		if err := json.Unmarshal(fault.body(""), &got); err != nil || got.Error == nil {
			t.Errorf("%d %q became %q (%v)", status, body, fault.body(""), err)
		}
		if fault.Status < 400 || fault.Status > 599 {
			t.Errorf("status %d became %d", status, fault.Status)
		}
	})
}
