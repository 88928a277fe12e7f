//go:build linux

package proc

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// A nice level only orders processes; a cgroup v2 CPU weight also keeps a group
// of many processes from outvoting one. Where the machine lets us, each process
// we start gets a group of its own with the weight of its nice level.
//
// We look no further than our own cgroup and its parent, and only use one that
// hands the cpu controller down already (systemd's Delegate= with
// DelegateSubgroup= makes such a pair): moving ourselves, or switching
// controllers on for others, is not ours to do.
var weightRoot = sync.OnceValue(func() string { return findWeightRoot("/sys/fs/cgroup", "/proc/self/cgroup") })

// findWeightRoot returns the folder in which groups with weights can be made; "" = none.
func findWeightRoot(mount, self string) string {
	text, err := os.ReadFile(self)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		own, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !ok {
			continue
		}
		for _, dir := range []string{filepath.Join(mount, own), filepath.Join(mount, filepath.Dir(own))} {
			if !handsDown(dir, "cpu") {
				continue
			}
			probe := filepath.Join(dir, fmt.Sprintf("aloft-probe-%d", os.Getpid()))
			if os.Mkdir(probe, 0o755) == nil && os.Remove(probe) == nil {
				return dir
			}
		}
	}
	return ""
}

// weightOf turns a nice level into a CPU weight with the kernel's own ratio:
// each level is a quarter more or less, and level 0 is 100.
func weightOf(nice int) int {
	return max(1, int(math.Round(100*math.Pow(1.25, -float64(nice)))))
}

// weigh has cmd start in a group of its own below root. It returns the group's
// folder, "" when there is none; the nice level holds either way.
func weigh(root, mark string, nice int, cmd *exec.Cmd) (dir string, started func()) {
	none := func() {}
	if root == "" {
		return "", none
	}
	dir = filepath.Join(root, "aloft-"+mark)
	if os.Mkdir(dir, 0o755) != nil {
		return "", none
	}
	fd, err := os.Open(dir)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "cpu.weight"), fmt.Appendf(nil, "%d\n", weightOf(nice)), 0o644)
	}
	if err != nil {
		fd.Close()
		os.Remove(dir)
		return "", none
	}
	cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(fd.Fd())
	return dir, func() { fd.Close() }
}
