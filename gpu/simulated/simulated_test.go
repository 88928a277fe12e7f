package simulated

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"aloft/gpu"
)

func node(t *testing.T, gpus ...GPU) *Node {
	t.Helper()
	n, err := New(Options{GPUs: gpus})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func list(t *testing.T, n *Node) []gpu.Device {
	t.Helper()
	devices, err := n.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return devices
}

func TestNode(t *testing.T) {
	n := node(t,
		GPU{Family: "A100-80GB", Layout: []string{"1g.10gb", "2g.20gb", "3g.40gb@0"}},
		GPU{Family: "H100-80GB", Layout: []string{"full"}},
		GPU{Model: "NVIDIA L40S", Bytes: 48 << 30},
	)
	var got strings.Builder
	for _, d := range list(t, n) {
		fmt.Fprintf(&got, "%d %s %q mig=%v modelled=%v ok=%v %dMiB\n", d.Index, d.Model, d.Family, d.MIG, d.Modeled, d.Health.OK, d.Bytes>>20)
		for _, s := range d.Slices {
			fmt.Fprintf(&got, "  %s %s at %d of gpu %d %dMiB\n", s.ID, s.Shape.Profile, s.Start, s.GPU, s.Shape.Bytes>>20)
		}
	}
	want := `0 A100-80GB "A100-80GB" mig=true modelled=true ok=true 80384MiB
  g0/s0 3g.40gb at 0 of gpu 0 40192MiB
  g0/s1 2g.20gb at 4 of gpu 0 19968MiB
  g0/s2 1g.10gb at 6 of gpu 0 9728MiB
1 H100-80GB "H100-80GB" mig=false modelled=true ok=true 81152MiB
  g1/s0 full at 0 of gpu 1 81152MiB
2 NVIDIA L40S "" mig=false modelled=true ok=true 49152MiB
  g2/s0 full at 0 of gpu 2 49152MiB
`
	if got.String() != want {
		t.Errorf("got\n%swant\n%s", got.String(), want)
	}
}

func TestUUIDsAreStableAndDistinct(t *testing.T) {
	g := GPU{Family: "A100-80GB", Layout: []string{"1g.10gb", "1g.10gb", "3g.40gb"}}
	a, b := list(t, node(t, g, g)), list(t, node(t, g, g))
	form := regexp.MustCompile(`^(MIG|GPU)-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)
	seen := map[string]bool{}
	check := func(x, y string) {
		if x != y || !form.MatchString(x) || seen[x] {
			t.Errorf("uuid %s, on another run %s; seen before: %v", x, y, seen[x])
		}
		seen[x] = true
	}
	for i := range a {
		check(a[i].UUID, b[i].UUID)
		for j := range a[i].Slices {
			check(a[i].Slices[j].UUID, b[i].Slices[j].UUID)
		}
	}
}

func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		gpu  GPU
		want string
	}{
		{GPU{Family: "A100-80GB", Layout: []string{"4g.40gb", "4g.40gb"}}, "4g.40gb does not fit on A100-80GB beside 4g.40gb@0"},
		{GPU{Family: "A100-80GB", Layout: []string{"3g.40gb@0", "2g.20gb@2"}}, "2g.20gb at 2 overlaps 3g.40gb at 0"},
		{GPU{Family: "A100-80GB", Layout: []string{"5g.50gb"}}, `unknown MIG profile "5g.50gb"`},
		{GPU{Family: "A100-80GB", Layout: []string{"3g.40gb@-4"}}, "want a start"},
		{GPU{Family: "A100-80GB", Layout: []string{"full", "1g.10gb"}}, `"full" is the whole GPU`},
		{GPU{Family: "V100"}, `unknown MIG family "V100"`},
		{GPU{Family: "A100-80GB", Bytes: -1}, "memory is -1 bytes"},
		{GPU{Model: "L40S"}, "needs a model and its memory"},
		{GPU{Model: "L40S", Bytes: 1, Layout: []string{"1g.10gb"}}, "layout 1g.10gb needs a MIG family"},
	} {
		o := Options{GPUs: []GPU{{Family: "A30-24GB"}, c.gpu}}
		_, err := New(o)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "simulated node: gpu 1: ") {
			t.Errorf("%+v: %v, want %q", c.gpu, err, c.want)
		}
		if v := o.Validate(); fmt.Sprint(v) != fmt.Sprint(err) {
			t.Errorf("Validate says %v, New %v", v, err)
		}
	}
	for _, count := range []int{0, maxGPUs + 1} {
		if _, err := New(Options{GPUs: make([]GPU, count)}); err == nil || !strings.Contains(err.Error(), "want 1 to 64") {
			t.Errorf("%d GPUs: %v", count, err)
		}
	}
}

func TestUsage(t *testing.T) {
	n := node(t, GPU{Family: "A30-24GB", Layout: []string{"2g.12gb", "1g.6gb"}})
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	want := gpu.Usage{At: at, UsedBytes: 5 << 30, Processes: 2}
	if err := n.SetUsage("g0/s1", want); err != nil {
		t.Fatal(err)
	}
	if got, err := n.Usage(t.Context(), "g0/s1"); got != want || err != nil {
		t.Errorf("got %+v, %v", got, err)
	}
	if got, err := n.Usage(t.Context(), "g0/s0"); got.At.IsZero() || got.Processes != 0 || err != nil {
		t.Errorf("untouched slice: %+v, %v", got, err)
	}
	if _, err := n.Usage(t.Context(), "g0/s2"); !errors.Is(err, gpu.ErrUnknownSlice) {
		t.Errorf("unknown slice: %v", err)
	}
	if err := n.SetUsage("g1/s0", want); !errors.Is(err, gpu.ErrUnknownSlice) {
		t.Errorf("unknown slice: %v", err)
	}
}

func TestXID(t *testing.T) {
	n := node(t, GPU{Family: "A30-24GB"}, GPU{Family: "A30-24GB"})
	for _, step := range []struct {
		xid  int
		want gpu.Health
	}{
		{31, gpu.Health{OK: true}},
		{79, gpu.Health{Reason: "XID 79: GPU fell off the bus"}},
		{13, gpu.Health{Reason: "XID 79: GPU fell off the bus"}}, // an application's fault cures nothing
		{0, gpu.Health{OK: true}},
	} {
		if err := n.InjectXID(1, step.xid); err != nil {
			t.Fatal(err)
		}
		devices := list(t, n)
		if devices[1].Health != step.want || !devices[0].Health.OK {
			t.Errorf("after XID %d: %+v", step.xid, devices)
		}
	}
	if err := n.InjectXID(2, 79); err == nil {
		t.Error("a third gpu of two took an XID")
	}
}

func TestListIsACopyAndObeysItsContext(t *testing.T) {
	n := node(t, GPU{Family: "A30-24GB"})
	d := list(t, n)
	d[0].Slices[0].ID, d[0].Health.OK = "changed", false
	if again := list(t, n); again[0].Slices[0].ID != "g0/s0" || !again[0].Health.OK {
		t.Error("a caller's change reached the node")
	}
	why := errors.New("shutting down")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if _, err := n.List(ctx); !errors.Is(err, why) {
		t.Errorf("list: %v", err)
	}
	if _, err := n.Usage(ctx, "g0/s0"); !errors.Is(err, why) {
		t.Errorf("usage: %v", err)
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
}

func TestNice(t *testing.T) {
	for _, c := range []struct {
		family, profile string
		serving, job    int
	}{
		{"A100-80GB", gpu.Full, 0, 10},
		{"A100-80GB", "3g.40gb", 1, 11},
		{"A100-80GB", "2g.20gb", 2, 12},
		{"A100-80GB", "1g.10gb", 3, 13},
		{"A30-24GB", "2g.12gb", 1, 11},
	} {
		s, err := gpu.ShapeOf(c.family, c.profile)
		if err != nil {
			t.Fatal(err)
		}
		if NiceFor(s) != c.serving || NiceForJob(s) != c.job {
			t.Errorf("%s: nice %d and %d, want %d and %d", c.profile, NiceFor(s), NiceForJob(s), c.serving, c.job)
		}
	}
	for _, name := range gpu.Families() {
		f, _ := gpu.Lookup(name)
		for _, p := range f.Profiles {
			s, _ := gpu.ShapeOf(name, p.Name)
			if s := NiceFor(s); s < 0 || s > 3 {
				t.Errorf("%s %s: serving at nice %d", name, p.Name, s)
			}
		}
	}
}
