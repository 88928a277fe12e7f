package scenario

import (
	"hash/fnv"
	"math/rand/v2"
	"time"

	"aloft/loadgen/arrivals"
)

// World is what one seed draws of a scenario. It is not changed by a run, so
// that all policies of a comparison may share one.
type World struct {
	Scenario *Scenario
	Seed     uint64
	Traffic  []Traffic // one per model, in the scenario's order
	Jobs     []Job     // by time of submission
	// Backlog is the job that never ends, at the lowest class; nil = there is none.
	Backlog *Job
	Rows    bool // batch rows ride in ready replicas
	// From is where in the scenario's horizon the world begins, and Horizon how long
	// it lasts. Times count from the begin of the world.
	From, Horizon time.Duration
	// Notes say how the traffic and jobs were brought to the wanted load.
	Notes []string
}

// Traffic is what one model is asked.
type Traffic struct {
	Model     *Model
	Arrivals  []Arrival // in order of time
	Copies    int       // of the trace, laid over each other
	TimeScale float64   // how many times as fast as recorded the trace runs, day curve apart
	// DecodeBound is the form of knee work that holds for the model.
	DecodeBound bool
}

// Arrival is one request: 16 bytes, since a day of 64 GPUs has 4.3 million.
type Arrival struct {
	At      time.Duration
	In, Out int32 // tokens
}

// Kind is the kind of a job, in the scenario's words.
type Kind string

// The kinds.
const (
	TrainJob    Kind = "train"
	EmbedJob    Kind = "embed" // a batch file
	QuantizeJob Kind = "quantize"
)

// Job is one submitted job.
type Job struct {
	ID   string
	Kind Kind
	At   time.Duration // submitted
	Run  time.Duration // progress that it needs, on its full width; the backlog: 0 = never done
	// Its width: single slices anywhere, or whole GPUs, started together and in one
	// server if they fit one. One of the two is 0.
	Slices, GPUs int
	Start        time.Duration // from the slices to the first progress, each time
	Stop         time.Duration // from the signal to empty slices, without a checkpoint
	// Loses is the progress that a stop takes back; everything: LosesAll. A job that
	// saves loses instead what it did since its last checkpoint, if the one on
	// signal fails or takes longer than Grace.
	Loses    time.Duration
	LosesAll bool
	Grace    time.Duration // 0 = it cannot save
	Save     Save
}

// Save is how a job checkpoints.
type Save struct {
	Every  time.Duration // of progress
	Median time.Duration // log-normal
	Sigma  float64
	Pauses bool // no progress meanwhile
}

// Width is how many slice_shapes the job holds.
func (j Job) Width() int { return j.Slices + SlicesPerGPU*j.GPUs }

// Work is the job's work in slice-seconds.
func (j Job) Work() float64 { return j.Run.Seconds() * float64(j.Width()) }

// Rand is the random stream of one cause and, where it has several, its n-th
// item (the third start of a replica, the second checkpoint of a job): whatever
// a policy does, the others see the same draws.
func (w *World) Rand(cause string, n uint64) *rand.Rand { return stream(w.Seed, cause, n) }

func stream(seed uint64, cause string, n uint64) *rand.Rand {
	h := fnv.New64a()
	h.Write([]byte(cause))
	return rand.New(rand.NewPCG(arrivals.Scramble(seed^h.Sum64()), arrivals.Scramble(n)))
}
