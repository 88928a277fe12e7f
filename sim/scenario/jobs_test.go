package scenario

import (
	"math"
	"strings"
	"testing"
	"time"
)

// The work of every kind is its share of the offered load, to half a job: bursty
// offers 0.8 x 28 slices x 8 h = 645,120 slice-seconds.
func TestJobWork(t *testing.T) {
	const total = 0.8 * 28 * 8 * 3600
	for seed := uint64(1); seed <= 10; seed++ {
		w := draw(t, "bursty-8gpu-code", seed, DrawOptions{})
		sum, largest, last := map[Kind]float64{}, map[Kind]float64{}, map[Kind]time.Duration{}
		for i, j := range w.Jobs {
			sum[j.Kind] += j.Work()
			largest[j.Kind] = max(largest[j.Kind], j.Work())
			last[j.Kind] = max(last[j.Kind], j.At)
			if i > 0 && j.At < w.Jobs[i-1].At || j.At < 0 || j.At >= w.Horizon || j.Run <= 0 || (j.Slices > 0) == (j.GPUs > 0) {
				t.Errorf("seed %d: job %+v", seed, j)
			}
		}
		for kind, share := range map[Kind]float64{TrainJob: 0.55, EmbedJob: 0.35, QuantizeJob: 0.10} {
			if off := math.Abs(sum[kind] - share*total); off > largest[kind]/2+1 {
				t.Errorf("seed %d: %s has %.0f slice-seconds, want %.0f and no job to spare (%.0f)", seed, kind, sum[kind], share*total, largest[kind])
			}
		}
		if largest[TrainJob] > 0.08*0.55*total {
			t.Errorf("seed %d: a training job has %.0f slice-seconds, more than 8 %%", seed, largest[TrainJob])
		}
		if want := time.Duration(0.85 * float64(w.Horizon)); (last[TrainJob] - want).Abs() > time.Millisecond {
			t.Errorf("seed %d: the last training job comes at %v, want %v", seed, last[TrainJob], want)
		}
		if last[EmbedJob] > time.Duration(0.92*float64(w.Horizon)) {
			t.Errorf("seed %d: an embedding job comes at %v, after 92 %%", seed, last[EmbedJob])
		}
	}
}

func TestJobsOfAKind(t *testing.T) {
	w := draw(t, "bursty-8gpu-code", 4, DrawOptions{})
	burst, bursts := 0, 0
	var began time.Duration
	runs, n := 0.0, 0.0
	for _, j := range w.Jobs {
		switch j.Kind {
		case TrainJob:
			if j.Run < time.Minute || j.Run > 4*time.Hour || j.Grace != 30*time.Second || j.Save.Every != 10*time.Minute || !j.Save.Pauses {
				t.Errorf("%+v", j)
			}
			if w := j.Width(); w != 1 && w != 2 && w != 7 && w != 14 || (w >= 7) != (j.GPUs > 0) {
				t.Errorf("%s has %d slices and %d GPUs", j.ID, j.Slices, j.GPUs)
			}
		case QuantizeJob:
			if j.Run < 150*time.Second || j.Run > 450*time.Second || !j.LosesAll || j.Stop != 500*time.Millisecond {
				t.Errorf("%+v", j)
			}
			if j.At-began > burstSpread {
				began, burst = j.At, 0
				bursts++
			}
			burst++
		case EmbedJob:
			runs += j.Run.Seconds()
			n++
			if j.Slices != 1 || j.Loses != 5*time.Second || j.Start != 10*time.Second {
				t.Errorf("%+v", j)
			}
		}
	}
	// 64,512 slice-seconds of 300 s are 215 jobs, in bursts of 6.
	if bursts < 25 || bursts > 50 {
		t.Errorf("%d bursts of quantization, want about 36", bursts)
	}
	// A log-normal of mean 600 s and sigma 1 has a standard deviation of 786 s: of
	// some 376 jobs the mean is within 600 ± 122 s, three standard errors.
	if mean := runs / n; math.Abs(mean-600) > 122 {
		t.Errorf("embedding jobs run %.0f s in the mean, want about 600", mean)
	}
	if w.Backlog == nil || w.Backlog.Slices != 1 || w.Backlog.Loses != 5*time.Second {
		t.Errorf("backlog %+v", w.Backlog)
	}
}

// By hand: 100 slice-seconds wanted, durations divided by 10 and at least 2 s,
// nothing above half of it. The row of 8 GPUs makes 40 s x 14 = 560 and is left
// out; 20 s + 2 s (of 0.5) + 30 s x 2 = 82, and the next, 20 s, comes nearer
// than without. Rows at 0, 100, 300, 400 s become 0 to 800 of 1,000 s.
func TestTrainByHand(t *testing.T) {
	rows, err := jobRows([]byte("vc,arrival_s,gpus,duration_s_v100,job_type\na,0,1,200,x\na,50,8,400,x\na,100,1,5,x\na,300,2,300,x\na,400,1,200,x\n"), "rows")
	if err != nil {
		t.Fatal(err)
	}
	tr := Train{DurationDivisor: 10, DurationMinS: 2, DurationMaxS: 1000, LargestShare: 0.61, OverHorizon: 0.8, WidthSlices: map[int]int{1: 1, 2: 2, 8: 14}}
	seed := uint64(0)
	for stream(seed, "train", 0).IntN(len(rows)) != 0 {
		seed++ // one that begins at the first row
	}
	jobs, err := tr.draw(rows, seed, 100, 1000)
	if err != nil {
		t.Fatal(err)
	}
	type row struct {
		at, run time.Duration
		slices  int
	}
	want := []row{{0, 20 * time.Second, 1}, {200 * time.Second, 2 * time.Second, 1}, {600 * time.Second, 30 * time.Second, 2}, {800 * time.Second, 20 * time.Second, 1}}
	if len(jobs) != len(want) {
		t.Fatalf("jobs %+v, want %d", jobs, len(want))
	}
	for i, j := range jobs {
		if (row{j.At, j.Run, j.Slices}) != want[i] {
			t.Errorf("job %d: at %v for %v on %d, want %+v", i, j.At, j.Run, j.Slices, want[i])
		}
	}
	tr.LargestShare = 0.001
	if _, err := tr.draw(rows, seed, 100, 1000); err == nil || !strings.Contains(err.Error(), "largest_job_share") {
		t.Errorf("error %v, want one that says that all rows are too large", err)
	}
	tr.LargestShare, tr.WidthSlices = 1, map[int]int{1: 1}
	if _, err := tr.draw(rows, seed, 100, 1000); err == nil || !strings.Contains(err.Error(), "8 GPUs") {
		t.Errorf("error %v, want one that names the missing width", err)
	}
}

// openb's pods as jobs: fractions of a GPU become some of its slices.
func TestOpenb(t *testing.T) {
	dir := shared(t)
	s := load(t, "bursty-8gpu-code")
	s.Jobs.Train.Trace = "openb-gpu-v2023/openb_pod_list_default.csv"
	s.Jobs.Train.WidthSlices = map[int]int{1: 7, 2: 14, 4: 28, 8: 56}
	w, err := s.Draw(1, DrawOptions{Traces: dir})
	if err != nil {
		t.Fatal(err)
	}
	parts, whole := 0, 0
	for _, j := range w.Jobs {
		if j.Kind != TrainJob {
			continue
		}
		if j.GPUs > 0 {
			whole++
		} else {
			parts++
		}
	}
	if parts == 0 || whole == 0 {
		t.Errorf("%d jobs on slices and %d on whole GPUs, want both", parts, whole)
	}
}
