package llama

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"aloft/backends/serve"
)

func shipped(t testing.TB, name string) string {
	return filepath.Join(repository(t), "configs", "models", name)
}

func TestQuantizeLoadsAndAnswers(t *testing.T) {
	lib := lib(t)
	for _, typ := range []string{"f16", "q8_0", "q4_0", "q4_k_m"} {
		out := filepath.Join(t.TempDir(), typ+".gguf")
		var names []string
		last := 0
		q, err := Quantize(t.Context(), QuantizeOptions{Lib: lib, Type: typ, In: shipped(t, "aloft-lm.gguf"), Out: out,
			Tensor: func(number, of int, name string) {
				if number != last+1 || of < number {
					t.Errorf("%s: tensor %d of %d after %d", typ, number, of, last)
				}
				last, names = number, append(names, name)
			}})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d to %d bytes, %v", typ, q.BytesIn, q.BytesOut, q.Types)
		if q.BytesOut*2 > q.BytesIn*11/10 || q.Tensors != last || len(names) != last {
			t.Errorf("%s: %+v after %d tensors", typ, q, last)
		}
		e := open(t, Options{Model: out, Slots: 1})
		req := story(20)
		req.Prompt = "And God said, Let there be"
		text, f, err := generate(e, req)
		if err != nil || f.CompletionTokens != 20 || !strings.Contains(text, " ") {
			t.Errorf("%s answers %q, %+v, %v", typ, text, f, err)
		}
		if left, _ := filepath.Glob(out + ".*"); len(left) > 0 {
			t.Errorf("%s: %v is left over", typ, left)
		}
	}
}

func TestQuantizeEncoderAgain(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out.gguf")
	opt := QuantizeOptions{Lib: lib(t), Type: "q4_0", In: shipped(t, "aloft-encoder.gguf"), Out: out}
	if _, err := Quantize(t.Context(), opt); err == nil || !strings.Contains(err.Error(), "quantized already") || !strings.Contains(err.Error(), "q8_0") {
		t.Errorf("quantizing Q8_0 again: %v", err)
	}
	opt.Requantize = true
	q, err := Quantize(t.Context(), opt)
	if err != nil || q.BytesOut >= q.BytesIn {
		t.Fatalf("%+v, %v", q, err)
	}
	e := open(t, Options{Model: out})
	r, err := e.Embed(t.Context(), &serve.EmbedRequest{Inputs: []serve.Input{{Text: "a small dog"}, {Text: "a puppy"}, {Text: "the price of steel"}}})
	if err != nil {
		t.Fatal(err)
	}
	if near, far := dot(r.Vectors[0], r.Vectors[1]), dot(r.Vectors[0], r.Vectors[2]); near <= far {
		t.Errorf("a dog is %v from a puppy and %v from steel", near, far)
	}
}

func TestQuantizeRefuses(t *testing.T) {
	lib, dir := lib(t), t.TempDir()
	lm := shipped(t, "aloft-lm.gguf")
	text := filepath.Join(dir, "text.gguf")
	if err := os.WriteFile(text, []byte("no model at all"), 0o600); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "out.gguf")
	held, err := openPartial(filepath.Join(dir, "held.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	for name, c := range map[string]struct {
		opt  QuantizeOptions
		want string
	}{
		"type":       {QuantizeOptions{Type: "q9", In: lm, Out: out}, `type is "q9", want one of bf16, f16,`},
		"no file":    {QuantizeOptions{Type: "q8_0", In: filepath.Join(dir, "none.gguf"), Out: out}, "does not exist"},
		"no model":   {QuantizeOptions{Type: "q8_0", In: text, Out: out}, "is not a GGUF file"},
		"itself":     {QuantizeOptions{Type: "q8_0", In: lm, Out: lm}, "is both what is read and what is written"},
		"no folder":  {QuantizeOptions{Type: "q8_0", In: lm, Out: filepath.Join(dir, "none", "out.gguf")}, "no such file"},
		"in use":     {QuantizeOptions{Type: "q8_0", In: lm, Out: filepath.Join(dir, "held.gguf")}, "another process is writing"},
		"no library": {QuantizeOptions{Lib: dir, Type: "q8_0", In: lm, Out: out}, "engine library not found"},
	} {
		if c.opt.Lib == "" {
			c.opt.Lib = lib
		}
		if _, err := Quantize(t.Context(), c.opt); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// A file that is there already may be served, or be somebody else's: it stays.
// The same bytes may come again, as they do from a job that is run again.
func TestQuantizeKeepsOthers(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out.gguf")
	o := QuantizeOptions{Lib: lib(t), Type: "q8_0", In: shipped(t, "aloft-lm.gguf"), Out: out}
	for range 2 {
		if _, err := Quantize(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	first, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	o.Type = "q4_0"
	if _, err := Quantize(t.Context(), o); err == nil || !strings.Contains(err.Error(), "is there already") {
		t.Errorf("over another file: %v", err)
	}
	if now, err := os.ReadFile(out); err != nil || !bytes.Equal(now, first) {
		t.Errorf("the file that was there is no longer: %v", err)
	}
	if left, _ := filepath.Glob(out + "?*"); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
	o.Replace = true
	if q, err := Quantize(t.Context(), o); err != nil || q.Type != "q4_0" {
		t.Errorf("to be replaced: %+v, %v", q, err)
	}
}

func TestQuantizeStopped(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out.gguf")
	ctx, stop := context.WithCancelCause(t.Context())
	on := make(chan struct{})
	running := make(chan struct{})
	_, err := Quantize(ctx, QuantizeOptions{Lib: lib(t), Type: "q8_0", In: shipped(t, "aloft-lm.gguf"), Out: out,
		Tensor: func(number, of int, _ string) {
			switch number {
			case 1:
				stop(errors.New("told to"))
				<-on // the quantizer holds here until Quantize has returned
			case of:
				close(running)
			}
		}})
	if err == nil || !strings.Contains(err.Error(), "told to") {
		t.Errorf("stopped: %v", err)
	}
	if left, _ := filepath.Glob(out + "*"); len(left) > 0 {
		t.Errorf("stopped, and %v is there", left)
	}
	close(on)
	<-running // it runs on, and what it writes has no name
}

func TestTensorLine(t *testing.T) {
	for in, want := range map[string]string{
		"[   1/ 138] token_embd.weight                   - [  192,  2048,     1,     1], type =    f32, ": "1 138 token_embd.weight",
		"[12/": "", "": "", "llama_model_quantize: quantizing": "", "[a/b] x": "", "[1/2]": "",
	} {
		n, of, name, ok := tensorLine(in)
		if got := fmt.Sprint(n, " ", of, " ", name); ok != (want != "") || ok && got != want {
			t.Errorf("%q: %q, %v", in, got, ok)
		}
	}
}
