//go:build linux

package proc

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

func TestWeightOf(t *testing.T) {
	// The kernel's table: nice 0 weighs 1024, nice 10 weighs 110, nice 19 weighs 15.
	for nice, want := range map[int]int{0: 100, 1: 80, 3: 51, 10: 11, 13: 5, 19: 1} {
		if got := weightOf(nice); got != want {
			t.Errorf("nice %d weighs %d, want %d", nice, got, want)
		}
	}
}

// tree makes a folder that looks like a cgroup mount: subtree_control by folder.
func tree(t *testing.T, own string, control map[string]string) (mount, self string) {
	t.Helper()
	mount = t.TempDir()
	for dir, text := range control {
		if err := os.MkdirAll(filepath.Join(mount, dir), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(mount, dir, "cgroup.subtree_control"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	self = filepath.Join(mount, "self")
	if err := os.WriteFile(self, []byte("4:memory:/elsewhere\n0::"+own+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return mount, self
}

func TestFindWeightRoot(t *testing.T) {
	for _, tc := range []struct {
		name, own string
		control   map[string]string
		want      string
	}{
		{"own group hands cpu down", "/a/b", map[string]string{"a/b": "cpu memory\n"}, "a/b"},
		{"its parent does", "/a/b", map[string]string{"a": "memory cpu pids\n", "a/b": "\n"}, "a"},
		{"cpuset is not cpu", "/a/b", map[string]string{"a": "cpuset\n", "a/b": "memory\n"}, ""},
		{"the grandparent is none of our business", "/a/b/c", map[string]string{"a": "cpu\n", "a/b": "\n", "a/b/c": "\n"}, ""},
		{"no cgroup v2", "/a", nil, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			mount, self := tree(t, tc.own, tc.control)
			want := tc.want
			if want != "" {
				want = filepath.Join(mount, want)
			}
			if got := findWeightRoot(mount, self); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

func TestWeigh(t *testing.T) {
	mount, _ := tree(t, "/a", map[string]string{"a": "cpu\n"})
	cmd := exec.Command("true")
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	dir, started := weigh(filepath.Join(mount, "a"), "m", 10, cmd)
	defer started()
	text, err := os.ReadFile(filepath.Join(dir, "cpu.weight"))
	if err != nil || string(text) != "11\n" || !cmd.SysProcAttr.UseCgroupFD {
		t.Errorf("weight %q (%v), cgroup used: %v", text, err, cmd.SysProcAttr.UseCgroupFD)
	}
	if dir, _ := weigh("", "m", 10, cmd); dir != "" {
		t.Errorf("a group %q without a root", dir)
	}
	if dir, _ := weigh(filepath.Join(mount, "absent"), "m", 10, cmd); dir != "" {
		t.Errorf("a group %q in a folder that is not there", dir)
	}
	t.Logf("this machine: groups with weights can be made in %q (empty: nice levels alone)", weightRoot())
}
