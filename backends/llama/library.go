package llama

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/ebitengine/purego"
	yzma "github.com/hybridgroup/yzma/pkg/llama"
	"golang.org/x/sys/unix"
)

// library is the loaded llama.cpp: one per process, since yzma keeps the
// function pointers in package variables. It is never unloaded.
var library struct {
	sync.Mutex
	dir string
}

// packaged is where npm puts the library inside the cache folder that
// configs/engine/fetch.sh fills.
const packaged = "node_modules/@node-llama-cpp/linux-x64/bins/linux-x64"

// LibraryFolder returns the folder that holds libllama.so: dir itself, or the
// one inside dir when dir is the cache folder of configs/engine/fetch.sh.
func LibraryFolder(dir string) (string, error) {
	for _, d := range []string{dir, filepath.Join(dir, packaged)} {
		if _, err := os.Stat(filepath.Join(d, "libllama.so")); dir != "" && err == nil {
			return d, nil
		}
	}
	return "", fmt.Errorf("engine library not found in %q: run `make engine` or set ALOFT_ENGINE_LIB", dir)
}

// loadLibrary loads llama.cpp from dir, once.
func loadLibrary(dir string) error {
	dir, err := LibraryFolder(dir)
	if err != nil {
		return err
	}
	library.Lock()
	defer library.Unlock()
	switch library.dir {
	case dir:
		return nil
	case "":
	default:
		return fmt.Errorf("engine library %s: this process already runs the one in %s", dir, library.dir)
	}
	for _, name := range []string{"libggml.so", "libggml-base.so", "libllama.so"} {
		if err := checkELF(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("engine library: %w: run `make engine` or set ALOFT_ENGINE_LIB", err)
		}
	}
	if err := yzma.Load(dir); err != nil {
		return fmt.Errorf("load engine library in %s (is libstdc++ installed, is it llama.cpp v0.5.0?): %w", dir, err)
	}
	if err := checkLayout(); err != nil {
		return fmt.Errorf("engine library in %s: %w", dir, err)
	}
	yzma.LogSet(purego.NewCallback(onLog)) // or llama.cpp fills stderr
	yzma.Init()
	if yzma.GGMLBackendDeviceCount() == 0 {
		return fmt.Errorf("engine library in %s has no backend for this CPU: libggml-cpu-*.so are missing", dir)
	}
	library.dir = dir
	return nil
}

// complaint is the first error llama.cpp logged since it was last emptied. It
// is the cause; what follows repeats that loading failed.
var complaint struct {
	sync.Mutex
	text string
}

// onLog is called by llama.cpp on whatever thread logs.
func onLog(level int32, text *byte, _ uintptr) uintptr {
	if text == nil {
		return 0
	}
	if level == int32(yzma.LogLevelInfo) {
		listener.Lock()
		defer listener.Unlock()
		if listener.take != nil {
			listener.take(unix.BytePtrToString(text))
		}
		return 0
	}
	if level != int32(yzma.LogLevelError) {
		return 0
	}
	complaint.Lock()
	defer complaint.Unlock()
	if complaint.text == "" {
		complaint.text = strings.Join(strings.Fields(unix.BytePtrToString(text)), " ")
	}
	return 0
}

// listener hears what llama.cpp says in passing; nil = nobody does.
var listener struct {
	sync.Mutex
	take func(text string)
}

func listen(take func(text string)) {
	listener.Lock()
	defer listener.Unlock()
	listener.take = take
}

// takeComplaint empties and returns it.
func takeComplaint() string {
	complaint.Lock()
	defer complaint.Unlock()
	text := complaint.text
	complaint.text = ""
	return text
}

// checkELF refuses a file that the loader would refuse less clearly.
func checkELF(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	var magic [4]byte
	if _, err := io.ReadFull(f, magic[:]); err != nil || !bytes.Equal(magic[:], []byte("\x7fELF")) {
		return fmt.Errorf("%s is not a shared library", path)
	}
	return nil
}

// checkLayout compares llama.cpp's default parameters with what v0.5.0 has:
// structs are passed by value, so another version's layout would not fail but
// read garbage.
func checkLayout() error {
	c, m := yzma.ContextDefaultParams(), yzma.ModelDefaultParams()
	if c.NCtx != 512 || c.NBatch != 2048 || c.NUbatch != 512 || c.NSeqMax != 1 ||
		c.PoolingType != yzma.PoolingTypeUnspecified || c.KVUnified > 1 || c.Offload_kqv != 1 || m.VocabOnly != 0 || m.UseExtraBufts > 1 {
		return fmt.Errorf("its parameters are not those of llama.cpp v0.5.0, which this build needs")
	}
	return nil
}

// devices lists what llama.cpp computes on, for the log.
func devices() slog.Value {
	var names []string
	for i := range yzma.GGMLBackendDeviceCount() {
		names = append(names, yzma.GGMLBackendDeviceName(yzma.GGMLBackendDeviceGet(i)))
	}
	return slog.AnyValue(names)
}
