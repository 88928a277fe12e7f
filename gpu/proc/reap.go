//go:build linux

package proc

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
)

// record is a pid file: who was started, by whom, on which boot.
type record struct {
	Name        string `json:"name"`
	PID         int    `json:"pid"` // 0 between the file's and the process's start
	Start       uint64 `json:"start_ticks"`
	Mark        string `json:"mark"`
	Parent      int    `json:"parent_pid"`
	ParentStart uint64 `json:"parent_start_ticks"`
	Boot        string `json:"boot_id"` // pids and ticks mean nothing on another boot
}

const (
	filePrefix = "aloft-"
	fileSuffix = ".pid"
	newSuffix  = ".new" // of a pid file that is being written; an owner killed then leaves it
	// maxRecord bounds what Reap reads of one file, in bytes.
	maxRecord = 64 << 10
)

func newMark() string { return strings.ToLower(rand.Text()) }

func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	return string(bytes.TrimSpace(b)), nil
}

// record writes p's pid file, whole or not at all.
func (p *Process) record(runDir string) error {
	if runDir == "" {
		return nil
	}
	self, err := readStat(os.Getpid())
	if err != nil {
		return err
	}
	boot, err := bootID()
	if err != nil {
		return err
	}
	b, err := json.Marshal(record{
		Name: p.name, PID: p.id.pid, Start: p.id.start, Mark: p.id.mark,
		Parent: self.pid, ParentStart: self.start, Boot: boot,
	})
	if err != nil {
		return fmt.Errorf("encode pid file: %w", err)
	}
	if err := os.MkdirAll(runDir, 0o700); err != nil {
		return fmt.Errorf("make run folder: %w", err)
	}
	file := filepath.Join(runDir, filePrefix+p.id.mark+fileSuffix)
	if err := os.WriteFile(file+newSuffix, b, 0o600); err != nil {
		return fmt.Errorf("write pid file: %w", err)
	}
	p.file = file
	if err := os.Rename(file+newSuffix, file); err != nil {
		return fmt.Errorf("write pid file: %w", err)
	}
	return nil
}

func (p *Process) forget() {
	if p.file != "" {
		os.Remove(p.file)
	}
}

// parseRecord reads a pid file and refuses what could make Reap hit a stranger.
func parseRecord(b []byte) (record, error) {
	var r record
	if err := json.Unmarshal(b, &r); err != nil {
		return r, fmt.Errorf("decode pid file: %w", err)
	}
	if r.PID < 0 || r.PID == 1 || len(r.Mark) < 16 || r.Boot == "" {
		return r, errors.New("decode pid file: fields are missing or out of range")
	}
	return r, nil
}

// Reap kills what dead owners of runDir left behind and returns the number of
// processes killed. Call it before the first Start. Files whose owner lives are
// left alone, and so is every process that is not certainly ours: the leader
// must have its recorded start time on the same boot, the others belong to its
// group or carry its mark in their environment.
func Reap(runDir string, log *slog.Logger) (killed int, err error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	var files []string
	for _, end := range []string{fileSuffix, fileSuffix + newSuffix} {
		found, err := filepath.Glob(filepath.Join(escapeGlob(runDir), filePrefix+"*"+end))
		if err != nil {
			return 0, fmt.Errorf("list run folder %s: %w", runDir, err)
		}
		files = append(files, found...)
	}
	if len(files) == 0 {
		return 0, nil
	}
	boot, err := bootID()
	if err != nil {
		return 0, err
	}
	var errs []error
	for _, file := range files {
		n, err := reapFile(file, boot, log)
		killed += n
		if err != nil {
			errs = append(errs, fmt.Errorf("reap %s: %w", file, err))
		}
	}
	return killed, errors.Join(errs...)
}

func reapFile(file, boot string, log *slog.Logger) (killed int, err error) {
	st, err := os.Stat(file)
	if err != nil {
		return 0, err
	}
	if st.Size() > maxRecord {
		return 0, fmt.Errorf("%d bytes are no pid file", st.Size())
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	r, err := parseRecord(b)
	switch {
	case err != nil:
		log.Warn("pid file dropped", "file", file, "error", err)
	case r.Boot != boot:
		// An earlier boot: nothing of it can live.
	case alive(r.Parent, r.ParentStart):
		return 0, nil
	default:
		killed, err = identity{pid: r.PID, start: r.Start, mark: r.Mark}.kill(killBound)
		if killed > 0 {
			log.Info("leftover killed", "name", r.Name, "pid", r.PID, "processes", killed)
		}
		if err != nil {
			return killed, err // keep the file: the next start tries again
		}
	}
	return killed, os.Remove(file)
}

// escapeGlob makes a folder's name match only itself.
func escapeGlob(dir string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(dir)
}
