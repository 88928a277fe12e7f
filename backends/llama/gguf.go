package llama

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"os"
	"strings"
)

// GGUF is the head of a model file: metadata and tensor table, no weights.
// Format: ggml's docs/gguf.md, versions 2 and 3 (version 1 had 32-bit lengths
// and is as good as extinct).
type GGUF struct {
	Version uint32
	// Meta holds int64 for every integer, float64, bool, string, []int64,
	// []float64, []bool or []string.
	Meta    map[string]any
	Tensors []Tensor
}

// Tensor is one entry of the tensor table.
type Tensor struct {
	Name   string
	Dims   []uint64
	Type   uint32 // ggml_type
	Offset uint64 // bytes from the start of the data section
}

// Bounds of a head that a sane file keeps; they cap what a hostile one can make
// us allocate. The largest vocabularies have some 260,000 tokens.
const (
	maxGGUFKeys    = 1 << 14
	maxGGUFTensors = 1 << 18
	maxGGUFString  = 1 << 22 // bytes
	maxGGUFArray   = 1 << 24 // elements
)

// ReadGGUF reads the head of the file at path and checks that the file is long
// enough for its tensors, so that llama.cpp never maps a truncated one.
func ReadGGUF(path string) (*GGUF, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("model file %s does not exist", path)
	}
	if err != nil {
		return nil, fmt.Errorf("open model: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("open model: %w", err)
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("model %s is not a regular file", path)
	}
	g, err := parseGGUF(f, st.Size())
	if err != nil {
		return nil, fmt.Errorf("model %s: %w", path, err)
	}
	return g, nil
}

// parseGGUF reads the head of a GGUF file of size bytes.
func parseGGUF(r io.Reader, size int64) (*GGUF, error) {
	in := &ggufReader{r: bufio.NewReaderSize(r, 1<<16), left: uint64(max(size, 0)), size: uint64(max(size, 0))}
	switch magic := string(in.bytes(4)); {
	case in.err != nil:
		return nil, in.err
	case magic == "vers":
		return nil, errors.New("is a Git LFS pointer, not the model: fetch the real file")
	case magic != "GGUF":
		return nil, fmt.Errorf("is not a GGUF file (starts with %q)", magic)
	}
	g := &GGUF{Version: in.u32(), Meta: map[string]any{}}
	if in.err == nil && g.Version != 2 && g.Version != 3 {
		return nil, fmt.Errorf("GGUF version %d is not supported (2 and 3 are)", g.Version)
	}
	tensors, keys := in.u64(), in.u64()
	if in.err == nil && (tensors > maxGGUFTensors || keys > maxGGUFKeys) {
		return nil, fmt.Errorf("head claims %d tensors and %d keys: damaged file", tensors, keys)
	}
	for range keys {
		key := in.str()
		value := in.value(in.u32())
		if in.err != nil {
			return nil, fmt.Errorf("metadata %q: %w", key, in.err)
		}
		g.Meta[key] = value
	}
	for range tensors {
		t := in.tensor()
		if in.err != nil {
			return nil, fmt.Errorf("tensor table: %w", in.err)
		}
		g.Tensors = append(g.Tensors, t)
	}
	if in.err != nil {
		return nil, in.err
	}
	return g, g.checkLength(in.size-in.left, in.size)
}

// checkLength refuses a file of size bytes whose head ends at head when a tensor
// reaches beyond its end.
func (g *GGUF) checkLength(head, size uint64) error {
	align := uint64(32)
	if a, ok := g.Meta["general.alignment"].(int64); ok {
		if a <= 0 || a > 1<<20 || a&(a-1) != 0 {
			return fmt.Errorf("general.alignment is %d, want a power of two", a)
		}
		align = uint64(a)
	}
	start := (head + align - 1) &^ (align - 1)
	for _, t := range g.Tensors {
		n, err := t.bytes()
		if err != nil {
			return err
		}
		if t.Offset%align != 0 {
			return fmt.Errorf("tensor %q is not aligned to %d bytes: damaged file", t.Name, align)
		}
		if start > size || t.Offset > size-start || n > size-start-t.Offset {
			return fmt.Errorf("truncated: tensor %q ends beyond the file's %d bytes", t.Name, size)
		}
	}
	return nil
}

// bytes returns the size of the tensor's data; 0 for a type this table does not
// know (then llama.cpp, which knows more, is the judge).
func (t Tensor) bytes() (uint64, error) {
	elements := uint64(1)
	for _, d := range t.Dims {
		hi, lo := bits.Mul64(elements, d)
		if hi != 0 || lo > math.MaxInt64 {
			return 0, fmt.Errorf("tensor %q has impossible dimensions %v", t.Name, t.Dims)
		}
		elements = lo
	}
	layout, ok := ggmlTypes[t.Type]
	if !ok {
		return 0, nil
	}
	if len(t.Dims) > 0 && t.Dims[0]%layout.block != 0 {
		return 0, fmt.Errorf("tensor %q: rows of %d elements in blocks of %d: damaged file", t.Name, t.Dims[0], layout.block)
	}
	hi, n := bits.Mul64(elements/layout.block, layout.bytes)
	if hi != 0 {
		return 0, fmt.Errorf("tensor %q has impossible dimensions %v", t.Name, t.Dims)
	}
	return n, nil
}

// ggmlTypes says how many elements make a block and how many bytes a block has
// (ggml.c, type_traits); a test compares the table with the loaded library.
var ggmlTypes = map[uint32]struct{ block, bytes uint64 }{
	0: {1, 4}, 1: {1, 2}, 30: {1, 2}, // F32 F16 BF16
	2: {32, 18}, 3: {32, 20}, 6: {32, 22}, 7: {32, 24}, 8: {32, 34}, 9: {32, 36}, // Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q8_1
	10: {256, 84}, 11: {256, 110}, 12: {256, 144}, 13: {256, 176}, 14: {256, 210}, 15: {256, 292}, // Q2_K to Q8_K
	16: {256, 66}, 17: {256, 74}, 18: {256, 98}, 19: {256, 50}, 20: {32, 18}, // IQ2_XXS IQ2_XS IQ3_XXS IQ1_S IQ4_NL
	21: {256, 110}, 22: {256, 82}, 23: {256, 136}, 29: {256, 56}, // IQ3_S IQ2_S IQ4_XS IQ1_M
	24: {1, 1}, 25: {1, 2}, 26: {1, 4}, 27: {1, 8}, 28: {1, 8}, // I8 I16 I32 I64 F64
	34: {256, 54}, 35: {256, 66}, 39: {32, 17}, // TQ1_0 TQ2_0 MXFP4
}

// ggufReader reads little-endian values; after the first error every read
// returns zero, so callers check once per item.
type ggufReader struct {
	r          *bufio.Reader
	left, size uint64 // bytes
	err        error
}

func (in *ggufReader) fail(format string, args ...any) {
	if in.err == nil {
		in.err = fmt.Errorf(format, args...)
	}
}

func (in *ggufReader) bytes(n uint64) []byte {
	if in.err != nil {
		return nil
	}
	if n > in.left {
		in.fail("truncated: the head ends beyond the file's %d bytes", in.size)
		return nil
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(in.r, b); err != nil {
		in.fail("read: %w", err)
		return nil
	}
	in.left -= n
	return b
}

// uint reads an unsigned integer of n bytes, at most 8.
func (in *ggufReader) uint(n uint64) uint64 {
	var b [8]byte
	copy(b[:], in.bytes(n))
	return binary.LittleEndian.Uint64(b[:])
}

func (in *ggufReader) u32() uint32 { return uint32(in.uint(4)) }
func (in *ggufReader) u64() uint64 { return in.uint(8) }

func (in *ggufReader) str() string {
	n := in.u64()
	if n > maxGGUFString {
		in.fail("a string of %d bytes: damaged file", n)
	}
	return string(in.bytes(n))
}

// The value types of gguf.md that need a name here.
const (
	ggufFloat32 = 6
	ggufBool    = 7
	ggufString  = 8
	ggufArray   = 9
	ggufFloat64 = 12
)

// value reads one metadata value of the given type.
func (in *ggufReader) value(kind uint32) any {
	switch kind {
	case ggufBool:
		return in.uint(1) != 0
	case ggufString:
		return in.str()
	case ggufFloat32:
		return float64(math.Float32frombits(in.u32()))
	case ggufFloat64:
		return math.Float64frombits(in.u64())
	case ggufArray:
		return in.array()
	}
	return in.integer(kind)
}

func (in *ggufReader) integer(kind uint32) int64 {
	switch kind {
	case 0:
		return int64(uint8(in.uint(1)))
	case 1:
		return int64(int8(in.uint(1)))
	case 2:
		return int64(uint16(in.uint(2)))
	case 3:
		return int64(int16(in.uint(2)))
	case 4:
		return int64(in.u32())
	case 5:
		return int64(int32(in.u32()))
	case 10, 11:
		return int64(in.u64())
	}
	in.fail("unknown value type %d: damaged file", kind)
	return 0
}

func (in *ggufReader) array() any {
	kind, n := in.u32(), in.u64()
	if n > maxGGUFArray {
		in.fail("an array of %d elements: damaged file", n)
		return nil
	}
	switch kind {
	case ggufString:
		return elements(in, n, in.str)
	case ggufBool:
		return elements(in, n, func() bool { return in.uint(1) != 0 })
	case ggufFloat32, ggufFloat64:
		return elements(in, n, func() float64 { return in.value(kind).(float64) })
	case ggufArray:
		in.fail("an array of arrays, which no model has: damaged file")
		return nil
	}
	return elements(in, n, func() int64 { return in.integer(kind) })
}

// elements reads n values; the slice grows with what the file really holds.
func elements[T any](in *ggufReader, n uint64, next func() T) []T {
	var out []T
	for range n {
		v := next()
		if in.err != nil {
			return nil
		}
		out = append(out, v)
	}
	return out
}

func (in *ggufReader) tensor() Tensor {
	t := Tensor{Name: in.str()}
	dims := in.u32()
	if dims > 4 { // GGML_MAX_DIMS
		in.fail("tensor %q has %d dimensions: damaged file", t.Name, dims)
		return t
	}
	for range dims {
		t.Dims = append(t.Dims, in.u64())
	}
	t.Type, t.Offset = in.u32(), in.u64()
	return t
}

// Text returns a string of the metadata, "" when it is absent or something else.
func (g *GGUF) Text(key string) string {
	s, _ := g.Meta[key].(string)
	return s
}

// Architecture returns general.architecture, for example "llama" or "bert".
func (g *GGUF) Architecture() string { return g.Text("general.architecture") }

// archInt returns "<architecture>.<key>", or def when it is absent.
func (g *GGUF) archInt(key string, def int64) int64 {
	if v, ok := g.Meta[g.Architecture()+"."+key].(int64); ok {
		return v
	}
	return def
}

// encoderOnly reports whether the model only embeds: it says so itself by
// attention.causal, and the BERT family has no way to generate.
func (g *GGUF) encoderOnly() bool {
	causal, said := g.Meta[g.Architecture()+".attention.causal"].(bool)
	return said && !causal || strings.Contains(g.Architecture(), "bert")
}

// checkServable refuses what would end in an abort inside llama.cpp rather than
// in an error: a C++ exception cannot cross into Go.
func (g *GGUF) checkServable() error {
	arch := g.Architecture()
	tokens, _ := g.Meta["tokenizer.ggml.tokens"].([]string)
	switch {
	case arch == "":
		return errors.New("no general.architecture: not a model llama.cpp can run")
	case len(g.Tensors) == 0:
		return errors.New("no tensors: a vocabulary or an adapter, not a model")
	case len(tokens) == 0:
		return errors.New("no tokenizer.ggml.tokens: a model without a vocabulary cannot be served")
	}
	// LLAMA_MAX_LAYERS and sizes that llama.cpp divides by or asserts on.
	for key, most := range map[string]int64{"block_count": 512, "embedding_length": 1 << 20, "context_length": 1 << 30, "attention.head_count": 1 << 16} {
		if n, ok := g.Meta[arch+"."+key].(int64); ok && (n < 1 || n > most) {
			return fmt.Errorf("%s.%s is %d, want 1 to %d: damaged file", arch, key, n, most)
		}
	}
	if g.Text("tokenizer.ggml.model") != "llama" {
		return nil
	}
	// SentencePiece falls back to <0x00>..<0xFF> and throws when one is missing.
	have := make(map[string]bool, len(tokens))
	for _, t := range tokens {
		have[t] = true
	}
	for b := range 256 {
		if !have[fmt.Sprintf("<0x%02X>", b)] && !have[string([]byte{byte(b)})] {
			return fmt.Errorf("the vocabulary lacks the byte token <0x%02X>: some texts would crash the engine", b)
		}
	}
	return nil
}
