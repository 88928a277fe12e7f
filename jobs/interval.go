package jobs

import (
	"math"
	"time"
)

// CheckpointInterval is the computing time between two checkpoints that loses
// least, when saving takes cost and the program is stopped once in mtbp on
// average: Daly's higher-order estimate (J. Daly, Future Generation Computer
// Systems 22, 2006), whose first term √(2·cost·mtbp) is Young's (1974). When
// saving takes as long as two such stops are apart, nothing better is known than
// to save once in mtbp. 0 = no advice, since one of them is not known.
func CheckpointInterval(cost, mtbp time.Duration) time.Duration {
	if cost <= 0 || mtbp <= 0 {
		return 0
	}
	d, m := cost.Seconds(), mtbp.Seconds()
	if d >= 2*m {
		return mtbp
	}
	x := d / (2 * m)
	s := math.Sqrt(2*d*m)*(1+math.Sqrt(x)/3+x/9) - d
	return time.Duration(s * float64(time.Second))
}

// advice is what a program is told: within bounds that keep a wrong measurement
// from filling the disk or losing hours.
func advice(cost, mtbp time.Duration) time.Duration {
	return min(max(CheckpointInterval(cost, mtbp), time.Second), time.Hour)
}

const (
	// firstMTBP stands for the time between preemptions before any was seen: one
	// in half an hour of running.
	firstMTBP = 30 * time.Minute
	// firstCost stands for the time that saving takes before it was measured.
	firstCost = 2 * time.Second
)

// meanTime is the mean running time between preemptions: what was thought before
// counts as one preemption.
func meanTime(before, ran time.Duration, preemptions int) time.Duration {
	return (before + max(0, ran)) / time.Duration(1+max(0, preemptions))
}

// smooth follows a measurement: a quarter of the way with each.
func smooth(old, is time.Duration) time.Duration {
	if old <= 0 {
		return is
	}
	return old + (is-old)/4
}
