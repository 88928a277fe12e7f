package openai

import (
	"bytes"
	"fmt"
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

// A changed form reads, by mime/multipart, with the new model and otherwise as before.
func FuzzSetFormModel(f *testing.F) {
	f.Add(formOf(filePart+modelPart), "other/name:1")
	f.Add(formOf(modelPart+filePart), "--XX")
	f.Add(formOf("--XX\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n\r\n"+modelPart), "")
	f.Fuzz(func(t *testing.T, body []byte, model string) {
		got, err := SetFormModel(nil, body, formType, model)
		if err != nil {
			return
		}
		before, after := partsOf(t, body), partsOf(t, got)
		if len(before) != len(after) {
			t.Fatalf("%q became %q: %d parts, want %d", body, got, len(after), len(before))
		}
		for i, want := range before {
			if want.name == "model" {
				want.value = model
			}
			if after[i] != want {
				t.Fatalf("%q became %q: part %d is %+v, want %+v", body, got, i, after[i], want)
			}
		}
		if s, err := ScanForm(formType, got); err != nil || s.Model != model {
			t.Fatalf("%q scans to %+v, %v, want model %q", got, s, err, model)
		}
	})
}

type formPart struct{ name, header, value string }

func partsOf(t *testing.T, body []byte) (out []formPart) {
	r := multipart.NewReader(bytes.NewReader(body), "XX")
	for {
		p, err := r.NextRawPart()
		if err == io.EOF {
			return out
		}
		if err != nil {
			t.Fatalf("%q: part %d: %v", body, len(out), err)
		}
		value, err := io.ReadAll(p)
		if err != nil {
			t.Fatalf("%q: part %d: %v", body, len(out), err)
		}
		out = append(out, formPart{p.FormName(), fmt.Sprint(p.Header), string(value)})
	}
}
