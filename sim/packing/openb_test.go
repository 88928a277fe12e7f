package packing

import (
	"math"
	"math/rand"
	"os"
	"strings"
	"testing"
)

func trace(t testing.TB) Trace {
	t.Helper()
	shared := os.Getenv("ALOFT_SHARED")
	if shared == "" {
		t.Skip("ALOFT_SHARED is not set: no traces")
	}
	tr, err := Load(shared + "/traces")
	if err != nil {
		t.Skipf("no openb trace: %v", err)
	}
	return tr
}

// TestPublished holds every cell of the default row within half a point of the
// artifact's own mean over the same seeds.
func TestPublished(t *testing.T) {
	if testing.Short() {
		t.Skip("with -short: 60 runs take too long; the plain pass of make test does them")
	}
	o, err := trace(t).Openb(t.Context(), DefaultSeeds)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range o.Rows {
		for i, e := range []Estimate{r.At130, r.At100, r.Fragment} {
			if math.Abs(e.Mean-r.Published[i]) > 0.5 || e.Low > e.Mean || e.High < e.Mean {
				t.Errorf("%s: %s %.2f (%.2f to %.2f), published %.2f", r.Policy, []string{"at 130 %", "at 100 %", "fragment"}[i], e.Mean, e.Low, e.High, r.Published[i])
			}
		}
	}
}

func TestTrace(t *testing.T) {
	tr := trace(t)
	if tr.capacity() != 6212*milli || len(tr.Nodes) != 1213 || len(tr.Pods) != 8152 {
		t.Errorf("%d milli on %d nodes, %d pods", tr.capacity(), len(tr.Nodes), len(tr.Pods))
	}
	kinds := map[string]int{}
	for _, p := range tr.Pods {
		switch {
		case p.GPUs == 0:
			kinds["cpu"]++
		case p.GPUs > 1:
			kinds["multi"]++
		case p.Milli < milli:
			kinds["share"]++
		default:
			kinds["one"]++
		}
	}
	if kinds["cpu"] != 1088 || kinds["share"] != 3078 || kinds["one"] != 3911 || kinds["multi"] != 75 {
		t.Errorf("%v", kinds)
	}
	pods, nodes := tr.Draw(42)
	again, _ := tr.Draw(42)
	if len(pods) != len(again) || pods[5000].CPU != again[5000].CPU || len(nodes) != 1213 {
		t.Error("a seed gives other arrivals the second time")
	}
}

// TestUnitOracles repeats those of the artifact's tests. Its list of typical pods
// asks for 2 cores at least, so that with one core left all that is free is a
// fragment; the list's shares sum to 0.9506.
func TestUnitOracles(t *testing.T) {
	shares := []float64{9.33, 9.15, 8.76, 8.72, 8.68, 8.65, 8.43, 8.36, 8.29, 8.11, 0.54, 0.43, 0.43, 0.40, 0.40, 0.40, 0.36, 0.36, 0.36, 0.36,
		0.36, 0.32, 0.32, 0.32, 0.32, 0.32, 0.32, 0.32, 0.32, 0.29, 0.29, 0.29, 0.25, 0.25, 0.25}
	var list typical
	sum := 0.0
	for i, s := range shares {
		list = append(list, share{kind{CPU: 2000 + 1000*int64(i%7), GPUs: 1 + i%2, Milli: milli}, s / 100})
		sum += s / 100
	}
	for _, c := range []struct {
		left []int32
		want float64
	}{
		{[]int32{200, 1000, 1000, 500}, 2566.62},   // 2700 · 0.9506
		{[]int32{1000, 1000, 1000, 1000}, 3802.40}, // 4000 · 0.9506
		{[]int32{1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000}, 7604.80},
	} {
		// Ours takes shares that sum to 1; theirs leaves the missing pods content.
		if got := sum * list.classes().frag(1000, c.left); math.Abs(got-c.want) > 0.01 {
			t.Errorf("%v: %.2f, want %.2f", c.left, got, c.want)
		}
	}
	one := typical{{kind{6000, 1, 465}, 1}}.classes()
	if got := 0.0933 * one.frag(1000, []int32{200, 1000, 1000, 500}); math.Abs(got-251.91) > 0.01 { // 2700 · 0.0933
		t.Errorf("%.2f, want 251.91", got)
	}
	if got := one.frag(6000, []int32{200, 1000, 1000, 500}); got != 200 { // enough CPU: only the 200 is too little
		t.Errorf("%.2f, want 200", got)
	}
}

// TestFragByDefinition compares the arranged sum with the definition, request by
// request.
func TestFragByDefinition(t *testing.T) {
	rng := rand.New(rand.NewSource(3))
	for round := range 300 {
		var mix typical
		n := 1 + rng.Intn(12)
		for range n {
			k := kind{CPU: int64(rng.Intn(9)) * 1000, GPUs: rng.Intn(5), Milli: milli}
			if k.GPUs == 1 {
				k.Milli = int64(1 + rng.Intn(milli))
			} else if k.GPUs == 0 {
				k.Milli = 0
			}
			mix = append(mix, share{k, 1 / float64(n)})
		}
		left := make([]int32, 1+rng.Intn(maxGPUs))
		for i := range left {
			left[i] = int32(rng.Intn(5) * 250)
		}
		cpu := int64(rng.Intn(9)) * 1000
		want := 0.0
		for _, s := range mix {
			total, small, room := int32(0), int32(0), 0
			for _, l := range left {
				total += l
				if int64(l) < s.Milli {
					small += l
				} else {
					room++
				}
			}
			if s.GPUs == 0 || cpu < s.CPU || room < s.GPUs {
				small = total
			}
			want += s.share * float64(small)
		}
		if got := mix.classes().frag(cpu, left); math.Abs(got-want) > 1e-6 {
			t.Fatalf("round %d: %v, want %v (%v, %d cores, %v)", round, got, want, mix, cpu, left)
		}
	}
}

func TestScores(t *testing.T) {
	n := &node{Node: &Node{CPU: 64000, GPUs: 4}, cpu: 32000}
	copy(n.left[:], []int32{1000, 1000, 400, 0})
	n.tags[0], n.tags[1] = 2, 1
	for _, c := range []struct {
		name  string
		score func(classes, *node, kind) int
		k     kind
		want  int
	}{
		// 1 − (32/128 · 16/128 + 2.4/8 · 1/8)/2 = 1 − (0.03125 + 0.0375)/2 = 0.965625
		{"dot", dotProduct, kind{16000, 1, 1000}, 96},
		// 1 − ((32−16)/128 + (2.4−1)/8)/2 = 1 − (0.125 + 0.175)/2 = 0.85
		{"best", bestFit, kind{16000, 1, 1000}, 85},
		{"same size among others", clustering, kind{1000, 1, 1000}, 67}, // 25 · 5600/8000 + 50 = 17 + 50
		{"another size", clustering, kind{1000, 2, 1000}, 17},
		{"no GPU", clustering, kind{1000, 0, 0}, 0},
		{"a shared GPU", packing, kind{1000, 1, 300}, 96},   // 100 − 40/10
		{"two free ones", packing, kind{1000, 2, 1000}, 48}, // 50 − 2
		{"no GPU", packing, kind{1000, 0, 0}, 0},
	} {
		if got := c.score(nil, n, c.k); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
	n.left = [maxGPUs]int32{1000, 1000, 1000, 1000}
	if got := packing(nil, n, kind{1000, 1, 300}); got != 29 { // 33 − 4
		t.Errorf("an empty node: %d, want 29", got)
	}
}

func TestReadRefusals(t *testing.T) {
	for _, c := range []struct{ nodes, pods, want string }{
		{"sn,cpu_milli,memory_mib,gpu\n", "", `no column "model"`},
		{"sn,cpu_milli,memory_mib,gpu,model\nn,1,1,9,T4\n", "", "line 2: 9 GPUs, want 1 to 8"},
		{"", "cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time,gpu_spec\n1,1,2,500,0,1,\n", "line 2: 2 GPUs of 500 milli"},
		{"", "cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time,gpu_spec\nx,1,1,500,0,1,\n", `line 2: strconv.ParseInt: parsing "x"`},
	} {
		var tr Trace
		err := tr.readPods(strings.NewReader(c.pods))
		if c.nodes != "" {
			err = tr.readNodes(strings.NewReader(c.nodes))
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}

func TestEstimate(t *testing.T) {
	// mean 2, deviation 1, t(2) = 4.303: half 4.303/√3 = 2.484
	if e := estimate([]float64{1, 2, 3}); e.Mean != 2 || math.Abs(e.High-4.4843) > 1e-3 || math.Abs(e.Low+0.4843) > 1e-3 {
		t.Errorf("%+v", e)
	}
	if e := estimate([]float64{5}); e != (Estimate{5, 5, 5}) {
		t.Errorf("%+v", e)
	}
}

func TestOpenbIsRepeatable(t *testing.T) {
	tr := trace(t)
	tr.Nodes, tr.Pods = tr.Nodes[:60], tr.Pods[:400]
	for _, p := range Policies() {
		if a, b := tr.Run(p, 7), tr.Run(p, 7); a != b {
			t.Errorf("%s: %+v and then %+v", p.Name, a, b)
		}
	}
	if len(Policies()) != len(published) {
		t.Errorf("%d policies, %d published", len(Policies()), len(published))
	}
}
