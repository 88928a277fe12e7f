package jobs

import (
	"fmt"
	"os"
	"sync"
)

// cappedLog is a log file that is turned over once: the newest lines are kept, in
// two files of at most half of what is allowed each.
type cappedLog struct {
	path string
	most int64 // bytes of one file

	mu   sync.Mutex
	f    *os.File
	size int64
}

func openLog(path string, most int64) (*cappedLog, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("job log: %w", err)
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("job log: %w", err)
	}
	return &cappedLog{path: path, most: max(1, most), f: f, size: st.Size()}, nil
}

// Write never fails: a full disk must cost log lines, not the job.
func (c *cappedLog) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(b)
	if int64(n) > c.most {
		b = b[int64(n)-c.most:]
	}
	if c.size+int64(len(b)) > c.most && c.size > 0 {
		if os.Rename(c.path, c.path+".1") == nil {
			if f, err := os.OpenFile(c.path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600); err == nil {
				c.f.Close()
				c.f, c.size = f, 0
			}
		}
	}
	wrote, _ := c.f.Write(b)
	c.size += int64(wrote)
	return n, nil
}

// Close closes the file.
func (c *cappedLog) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.f.Close()
}
