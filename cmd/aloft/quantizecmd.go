package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"aloft/backends/llama"
	"aloft/configs"
	"aloft/gateway/keys"
	"aloft/jobs"
)

type quantizeCmd struct {
	Lib        string `help:"Folder of llama.cpp's shared libraries; default: beside the binary or in .engine." env:"ALOFT_ENGINE_LIB" placeholder:"DIR"`
	Type       string `help:"What to quantize to: q8_0, q6_k, q5_k_m, q4_k_m, q4_0, f16 …; a wrong one lists all." default:"q8_0"`
	Threads    int    `help:"Threads of the quantizer." default:"1"`
	Requantize bool   `help:"Take a file that is quantized already; the losses add up."`
	Replace    bool   `help:"Also where OUT is there already and is another file."`
	Folder     string `help:"IN and OUT are names of files in this folder, not paths. For job templates: a user's value then stays in it." placeholder:"DIR"`
	In         string `arg:"" help:"GGUF file to read, or builtin:NAME."`
	Out        string `arg:"" help:"GGUF file to write; it appears when it is whole."`
}

// quantized is what a quantization reports as its result.
type quantized struct {
	Version int    `json:"version"` // 1
	Kind    string `json:"kind"`    // "quantization"
	Model   string `json:"model"`
	File    string `json:"file"`
	llama.Quantized
}

// Run implements kong's command; as a job's program it reports each tensor.
func (c *quantizeCmd) Run(ctx context.Context) error {
	out, err := openProgress()
	if err != nil {
		return err
	}
	defer out.Close()
	if err := (llama.QuantizeOptions{Type: c.Type, In: c.In, Out: c.Out, Threads: c.Threads}).Validate(); err != nil {
		return err
	}
	in, to, done, err := c.paths()
	if err != nil {
		return err
	}
	defer done()
	lib, err := engineLibrary(c.Lib)
	if err != nil {
		return err
	}
	enc := json.NewEncoder(out)
	var last reportLine
	q, err := llama.Quantize(ctx, llama.QuantizeOptions{Lib: lib, Type: c.Type, In: in, Out: to, Threads: c.Threads, Requantize: c.Requantize, Replace: c.Replace,
		Tensor: func(number, of int, name string) {
			last = reportLine{Step: int64(number), Total: int64(of), Unit: "tensors"}
			line := last
			line.Step--
			line.Message = name
			_ = enc.Encode(line) // nobody reads: no reason to stop
		}})
	if err != nil && ctx.Err() != nil {
		fmt.Fprintln(os.Stderr, "aloft:", err)
		return exitCode(jobs.ExitRequeue) // from the start: it takes seconds
	}
	if err != nil {
		return err
	}
	last.Result = quantized{Version: 1, Kind: "quantization", Model: c.In, File: to, Quantized: q}
	return enc.Encode(last)
}

// paths are those of the two files. A built-in one is written out for the time.
func (c *quantizeCmd) paths() (in, out string, done func(), err error) {
	done = func() {}
	if out, err = inFolder(c.Folder, c.Out); err != nil {
		return "", "", done, err
	}
	name, builtin := strings.CutPrefix(c.In, "builtin:")
	if !builtin {
		in, err = inFolder(c.Folder, c.In)
		return in, out, done, err
	}
	dir, err := os.MkdirTemp("", "aloft-quantize-")
	if err != nil {
		return "", "", done, err
	}
	done = func() { os.RemoveAll(dir) }
	if in, err = unpackModel(name, dir); err != nil {
		done()
	}
	return in, out, done, err
}

// unpackModel writes a built-in model into a folder and returns its path.
func unpackModel(name, dir string) (string, error) {
	b, err := configs.Models.ReadFile("models/" + name)
	if err != nil {
		return "", fmt.Errorf("there is no built-in model %q", name)
	}
	path := filepath.Join(dir, name)
	return path, keys.WriteFile(path, b)
}

// inFolder is the path of a file that is named by somebody who may reach no
// other folder: a plain name. Without a folder every path is as good.
func inFolder(folder, name string) (string, error) {
	if folder == "" {
		return name, nil
	}
	if name == "" || name != filepath.Base(name) || !filepath.IsLocal(name) || strings.HasPrefix(name, ".") {
		return "", fmt.Errorf("%q: want the name of a file in %s, without a folder", name, folder)
	}
	return filepath.Join(folder, name), nil
}

// engineLibrary is where the engine library was said to be, else where serve
// looks for it.
func engineLibrary(dir string) (string, error) {
	c := Config{}
	if c.Engine.Library = dir; dir != "" {
		return llama.LibraryFolder(dir)
	}
	return c.library()
}

// reportLine is one line of progress (jobs.Report).
type reportLine struct {
	Step       int64              `json:"step"`
	Total      int64              `json:"total,omitempty"`
	Unit       string             `json:"unit"`
	Message    string             `json:"message,omitempty"`
	Checkpoint string             `json:"checkpoint,omitempty"`
	Metrics    map[string]float64 `json:"metrics,omitempty"`
	Result     any                `json:"result,omitempty"`
}

// openProgress is where a program says how far it is: the descriptor or file
// that a job was given, else standard output.
func openProgress() (io.WriteCloser, error) {
	if path := os.Getenv("ALOFT_PROGRESS_FILE"); path != "" {
		return os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	}
	fd := os.Getenv("ALOFT_PROGRESS_FD")
	if fd == "" {
		return nopCloser{os.Stdout}, nil
	}
	n, err := strconv.Atoi(fd)
	if err != nil || n < 3 {
		return nil, errors.New("ALOFT_PROGRESS_FD is " + strconv.Quote(fd) + ", want a descriptor from 3 on")
	}
	return os.NewFile(uintptr(n), "progress"), nil
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }
