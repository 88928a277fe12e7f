package simulated

import "aloft/gpu"

// jobNice is added for jobs, so that the best job yields to the worst replica.
const jobNice = 10

// NiceFor is the nice level of a serving replica of a real engine on a CPU. A
// shape cannot confine it there: the shape is a label, and its weight only
// orders replicas when cores are short: 0 for a whole GPU, 1 from a half, 2 from a
// quarter, else 3.
func NiceFor(s gpu.Shape) int {
	switch w := s.Weight(); {
	case w >= 1:
		return 0
	case w >= 0.5:
		return 1
	case w >= 0.25:
		return 2
	}
	return 3
}

// NiceForJob is the same for a job: 10 to 13, always behind every replica.
func NiceForJob(s gpu.Shape) int { return jobNice + NiceFor(s) }
