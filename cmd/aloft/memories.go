package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"aloft/arbiter"
	"aloft/gateway/keys"
)

const (
	// memorySave is how much of the histories that laws are learned from a crash can
	// cost. They are written whole, 0.7 MB a model and day.
	memorySave = 10 * time.Minute
	// memoryDays is how long the history of a model that is served no more is kept.
	memoryDays = 30
	// maxMemory bounds a file that is read: a day of seconds, and its head.
	maxMemory = 1 << 20
)

// memories are the histories and laws of the models, a file each in a folder: one
// line of JSON, then level and work of each second, as little-endian float32.
type memories struct {
	dir  string
	past map[string]arbiter.Memory // what earlier servers left
}

// memoryHead is the first line of such a file.
type memoryHead struct {
	Model   string        `json:"model"`
	Seconds int           `json:"seconds"`
	Risk    arbiter.Risk  `json:"risk,omitempty"`
	Trial   arbiter.Trial `json:"law"`
}

// openMemories reads what earlier runs have left. A damaged file is put aside.
func openMemories(dir string, now time.Time, log *slog.Logger) (*memories, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.past"))
	if err != nil {
		return nil, err
	}
	m := &memories{dir: dir, past: map[string]arbiter.Memory{}}
	for _, f := range files {
		st, err := os.Stat(f)
		if err != nil {
			return nil, fmt.Errorf("read a model's history: %w", err)
		}
		if st.ModTime().AddDate(0, 0, memoryDays).Before(now) {
			if err := os.Remove(f); err != nil && !errors.Is(err, fs.ErrNotExist) {
				log.Warn("an old history is not removed", "file", f, "error", err)
			}
			continue
		}
		text, err := readTail(f, maxMemory)
		if err != nil {
			return nil, fmt.Errorf("read a model's history: %w", err)
		}
		model, one, err := parseMemory(text)
		if err != nil {
			log.Warn("a model's history is damaged and put aside: it is learned anew", "file", f, "error", err)
			if err := os.Rename(f, f+".damaged"); err != nil {
				return nil, err
			}
			continue
		}
		m.past[model] = one
	}
	return m, nil
}

func parseMemory(text []byte) (model string, m arbiter.Memory, err error) {
	line, rest, _ := bytes.Cut(text, []byte("\n"))
	var h memoryHead
	if err := json.Unmarshal(line, &h); err != nil {
		return "", m, err
	}
	if h.Model == "" || h.Seconds < 0 || len(rest) != 8*h.Seconds {
		return "", m, fmt.Errorf("%d bytes of %d s of %q, want 8 a second", len(rest), h.Seconds, h.Model)
	}
	m = arbiter.Memory{Past: arbiter.Past{Level: make([]float32, h.Seconds), Work: make([]float32, h.Seconds)}, Trial: h.Trial, Risk: h.Risk}
	r := bytes.NewReader(rest)
	if err := errors.Join(binary.Read(r, binary.LittleEndian, m.Past.Level), binary.Read(r, binary.LittleEndian, m.Past.Work)); err != nil {
		return "", m, err
	}
	for i := range h.Seconds {
		if l, w := m.Past.Level[i], m.Past.Work[i]; !(l >= 0 && w >= 0) { // NaN too
			return "", m, fmt.Errorf("level %v and work %v, want 0 or more", l, w)
		}
	}
	return h.Model, m, nil
}

func formatMemory(model string, m arbiter.Memory) ([]byte, error) {
	var b bytes.Buffer
	head, err := json.Marshal(memoryHead{Model: model, Seconds: len(m.Past.Level), Risk: m.Risk, Trial: m.Trial})
	if err != nil {
		return nil, err
	}
	b.Write(append(head, '\n'))
	err = errors.Join(binary.Write(&b, binary.LittleEndian, m.Past.Level), binary.Write(&b, binary.LittleEndian, m.Past.Work))
	return b.Bytes(), err
}

// save writes the histories of the models that have one, each whole or not at all.
func (m *memories) save(all map[string]arbiter.Memory) error {
	var errs []error
	for model, one := range all {
		if len(one.Past.Level) == 0 {
			continue
		}
		text, err := formatMemory(model, one)
		if err == nil {
			err = keys.WriteFile(filepath.Join(m.dir, url.PathEscape(model)+".past"), text)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("save the history of %s: %w", model, err))
		}
	}
	return errors.Join(errs...)
}

// keepMemories saves what the arbiter knows of the models now and then until ctx
// ends, and once more then.
func (s *server) keepMemories(ctx context.Context) {
	tick := time.NewTicker(memorySave)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
		if err := s.memories.save(s.arbiter.Memories()); err != nil {
			s.log.Warn("what laws are learned from is not saved", "error", err)
		}
	}
}
