package llama

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	yzma "github.com/hybridgroup/yzma/pkg/llama"
	"golang.org/x/sys/unix"
)

// QuantizeOptions say what to make of what.
type QuantizeOptions struct {
	Lib        string // as Options.Lib
	Type       string // one of QuantizeTypes
	In, Out    string // GGUF files
	Threads    int    // default 1
	Requantize bool   // also of a file that is quantized already, whose losses then add up
	Replace    bool   // an Out that is there already and is otherwise; else that is an error
	// Tensor is told as each tensor's turn comes, first = 1; nil = nobody listens.
	// It is called from the quantizer's thread.
	Tensor func(number, of int, name string)
}

// Quantized is what came of it.
type Quantized struct {
	Type     string         `json:"type"`
	Tensors  int            `json:"tensors"`
	Types    map[string]int `json:"tensor_types"` // how many tensors have which type
	BytesIn  int64          `json:"bytes_in"`
	BytesOut int64          `json:"bytes_out"`
	SHA256   string         `json:"sha256"` // of the new file
}

// quantizeTypes are those of llama.cpp that need no importance matrix: the
// smaller ones are worth nothing without.
var quantizeTypes = map[string]yzma.Ftype{
	"f16": yzma.FtypeMostlyF16, "bf16": yzma.FtypeMostlyBF16, "q8_0": yzma.FtypeMostlyQ8_0,
	"q4_0": yzma.FtypeMostlyQ4_0, "q4_1": yzma.FtypeMostlyQ4_1, "q5_0": yzma.FtypeMostlyQ5_0, "q5_1": yzma.FtypeMostlyQ5_1,
	"q2_k": yzma.FtypeMostlyQ2_K, "q3_k_s": yzma.FtypeMostlyQ3_K_S, "q3_k_m": yzma.FtypeMostlyQ3_K_M, "q3_k_l": yzma.FtypeMostlyQ3_K_L,
	"q4_k_s": yzma.FtypeMostlyQ4_K_S, "q4_k_m": yzma.FtypeMostlyQ4_K_M, "q5_k_s": yzma.FtypeMostlyQ5_K_S, "q5_k_m": yzma.FtypeMostlyQ5_K_M,
	"q6_k": yzma.FtypeMostlyQ6_K, "iq4_nl": yzma.FtypeMostlyIQ4_NL, "iq4_xs": yzma.FtypeMostlyIQ4_XS,
}

// QuantizeTypes lists the types that Quantize makes, sorted.
func QuantizeTypes() []string { return slices.Sorted(maps.Keys(quantizeTypes)) }

// tensorTypes names the types that a tensor may have, by ggml_type.
var tensorTypes = map[uint32]string{
	0: "f32", 1: "f16", 30: "bf16", 2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 8: "q8_0",
	10: "q2_k", 11: "q3_k", 12: "q4_k", 13: "q5_k", 14: "q6_k", 20: "iq4_nl", 23: "iq4_xs",
}

// TypeName is a tensor's type in words, or its number when it has none here.
func (t Tensor) TypeName() string {
	if name, ok := tensorTypes[t.Type]; ok {
		return name
	}
	return "type " + strconv.Itoa(int(t.Type))
}

// Validate checks the options.
func (o QuantizeOptions) Validate() error {
	_, known := quantizeTypes[o.Type]
	switch {
	case !known:
		return fmt.Errorf("quantize: type is %q, want one of %s", o.Type, strings.Join(QuantizeTypes(), ", "))
	case o.In == "" || o.Out == "":
		return errors.New("quantize: want a GGUF file to read and one to write")
	case o.Threads < 0 || o.Threads > 256:
		return fmt.Errorf("quantize: threads is %d, want 1 to 256", o.Threads)
	}
	return nil
}

// Quantize writes a quantized copy of a model through llama.cpp's own quantizer.
// The new file appears whole or not at all: it is written as Out.partial, read
// back, and renamed. When ctx ends first, what there was of it is removed; the
// quantizer itself cannot be stopped and runs on until the process ends, which
// is soon in a program that does nothing else.
func Quantize(ctx context.Context, o QuantizeOptions) (Quantized, error) {
	if err := o.Validate(); err != nil {
		return Quantized{}, err
	}
	in, err := quantizable(o)
	if err != nil {
		return Quantized{}, err
	}
	if err := loadLibrary(o.Lib); err != nil {
		return Quantized{}, err
	}
	partial, err := openPartial(o.Out)
	if err != nil {
		return Quantized{}, err
	}
	defer partial.Close()
	ended := make(chan error, 1) // the goroutine's end is not waited for when ctx ends, see above
	go func() { ended <- callQuantizer(o, partial.Name()) }()
	select {
	case err = <-ended:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	var q Quantized
	if err == nil {
		q, err = o.check(in, partial)
	}
	if err == nil && !o.Replace {
		err = free(o.Out, q)
	}
	if err == nil {
		err = os.Rename(partial.Name(), o.Out)
	}
	if err != nil {
		os.Remove(partial.Name())
		return Quantized{}, fmt.Errorf("quantize %s to %s: %w", o.In, o.Type, err)
	}
	return q, syncFolder(filepath.Dir(o.Out))
}

// free reports whether nothing is lost by putting q's file in out's place: a model
// that is served or was made by somebody else may lie there. The same bytes may
// come again, from a job that was killed between its last two steps.
func free(out string, q Quantized) error {
	f, err := os.Open(out)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	sum := sha256.New()
	if st, err := f.Stat(); err == nil && st.Size() == q.BytesOut {
		if _, err := io.Copy(sum, f); err != nil {
			return err
		}
	}
	if hex.EncodeToString(sum.Sum(nil)) != q.SHA256 {
		return fmt.Errorf("%s is there already and is another file, which stays: want a new name", out)
	}
	return nil
}

// quantizable reads the head of the model and says what speaks against it.
func quantizable(o QuantizeOptions) (*GGUF, error) {
	g, err := ReadGGUF(o.In)
	if err != nil {
		return nil, err
	}
	if a, err := os.Stat(o.In); err == nil {
		if b, err := os.Stat(o.Out); err == nil && os.SameFile(a, b) {
			return nil, fmt.Errorf("quantize: %s is both what is read and what is written", o.In)
		}
	}
	if len(g.Tensors) == 0 {
		return nil, fmt.Errorf("model %s has no tensors: nothing to quantize", o.In)
	}
	for _, t := range g.Tensors {
		switch name := t.TypeName(); {
		case name == "f32" || name == "f16" || name == "bf16" || o.Requantize:
		default:
			return nil, fmt.Errorf("model %s is quantized already (tensor %q is %s), want one in f32, f16 or bf16; --requantize takes it anyway, and the losses add up",
				o.In, t.Name, name)
		}
	}
	return g, nil
}

// openPartial makes the file that is written to, locked against another
// quantizer with the same aim; the lock ends with the process that holds it.
func openPartial(out string) (*os.File, error) {
	f, err := os.OpenFile(out+".partial", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("quantize: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("quantize: another process is writing %s", f.Name())
	}
	return f, nil
}

func callQuantizer(o QuantizeOptions, out string) error {
	p := yzma.ModelQuantizeDefaultParams()
	if p.NThread != 0 || p.QuantizeOutputTensor != 1 || p.AllowRequantize|p.OnlyCopy|p.Pure|p.KeepSplit|p.DryRun != 0 ||
		p.IMatrix != nil || p.KvOverrides != nil || p.TensorTypes != nil || p.PruneLayers != nil {
		return errors.New("the engine library's quantizer is not that of llama.cpp v0.5.0, which this build needs")
	}
	p.NThread, p.Ftype = int32(max(o.Threads, 1)), quantizeTypes[o.Type]
	if o.Requantize {
		p.AllowRequantize = 1
	}
	takeComplaint()
	if o.Tensor != nil {
		listen(func(line string) {
			if number, of, name, ok := tensorLine(line); ok {
				o.Tensor(number, of, name)
			}
		})
		defer listen(nil)
	}
	if code := yzma.ModelQuantize(o.In, out, &p); code != 0 {
		return fmt.Errorf("llama.cpp could not: %s (code %d)", takeComplaint(), code)
	}
	return nil
}

// tensorLine reads the beginning of a line of the quantizer's log,
// "[  12/ 138] blk.1.attn_q.weight - [192, 192, 1, 1], type = f32, ".
func tensorLine(line string) (number, of int, name string, ok bool) {
	head, rest, ok := strings.Cut(strings.TrimPrefix(line, "["), "]")
	if !ok || !strings.HasPrefix(line, "[") {
		return 0, 0, "", false
	}
	a, b, _ := strings.Cut(head, "/")
	number, bad := strconv.Atoi(strings.TrimSpace(a))
	of, worse := strconv.Atoi(strings.TrimSpace(b))
	words := strings.Fields(rest)
	if bad != nil || worse != nil || len(words) == 0 {
		return 0, 0, "", false
	}
	return number, of, words[0], true
}

// check reads the new file back: it is a model of the same tensors, whole, and
// on the disk.
func (o QuantizeOptions) check(in *GGUF, f *os.File) (Quantized, error) {
	g, err := ReadGGUF(f.Name())
	if err != nil {
		return Quantized{}, fmt.Errorf("what was written is no model: %w", err)
	}
	if len(g.Tensors) != len(in.Tensors) || g.Architecture() != in.Architecture() {
		return Quantized{}, fmt.Errorf("what was written has %d tensors of architecture %q, want %d of %q",
			len(g.Tensors), g.Architecture(), len(in.Tensors), in.Architecture())
	}
	q := Quantized{Type: o.Type, Tensors: len(g.Tensors), Types: map[string]int{}}
	for _, t := range g.Tensors {
		q.Types[t.TypeName()]++
	}
	st, err := os.Stat(o.In)
	if err != nil {
		return Quantized{}, err
	}
	q.BytesIn = st.Size()
	sum := sha256.New()
	if q.BytesOut, err = io.Copy(sum, f); err != nil {
		return Quantized{}, err
	}
	q.SHA256 = hex.EncodeToString(sum.Sum(nil))
	return q, f.Sync()
}

func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
