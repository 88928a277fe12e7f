package openai

import (
	"bytes"
	"io"
	"mime/multipart"
	"testing"
)

const formType = "multipart/form-data; boundary=XX"

func formOf(parts string) []byte { return []byte(parts + "--XX--\r\n") }

const (
	filePart  = "--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n\x00\r\n--XY\r\n"
	modelPart = "--XX\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n"
)

func TestForm(t *testing.T) {
	body := formOf(filePart + modelPart)
	s, err := ScanForm(formType, body)
	if err != nil || s.Model != "m" {
		t.Fatalf("%+v, %v", s, err)
	}
	got, err := SetFormModel(nil, body, formType, "other")
	if want := bytes.Replace(body, []byte("\r\n\r\nm\r\n"), []byte("\r\n\r\nother\r\n"), 1); err != nil || !bytes.Equal(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	for _, bad := range []string{"", filePart + modelPart, string(formOf(filePart)), string(formOf(modelPart + modelPart)), "x" + string(body)} {
		if _, err := ScanForm(formType, []byte(bad)); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

// Whatever is accepted, mime/multipart reads the same model from.
func FuzzScanForm(f *testing.F) {
	f.Add(formOf(filePart + modelPart))
	f.Add(formOf(modelPart + filePart))
	f.Fuzz(func(t *testing.T, body []byte) {
		s, err := ScanForm(formType, body)
		if err != nil {
			return
		}
		r := multipart.NewReader(bytes.NewReader(body), "XX")
		for {
			p, err := r.NextRawPart()
			if err != nil {
				t.Fatalf("%q has model %q for us, none for mime/multipart: %v", body, s.Model, err)
			}
			if p.FormName() == "model" {
				if v, _ := io.ReadAll(p); string(v) != s.Model {
					t.Fatalf("%q: model %q, want %q", body, s.Model, v)
				}
				return
			}
		}
	})
}
