package arbiter

import (
	"math"
	"time"
)

// Forecast bounds a level from above by what it mostly is: its average with the
// error that the average has made, and the 95th percentile of that hour of the
// week in the weeks before. Rises are the third bound (Rise); the largest holds.
type Forecast struct {
	mean, spread float64 // exponentially weighted, over about a minute
	n            int
	late         []float64 // averages whose errors are not known yet
	season       season
}

// Memory of the average: what is a minute old counts a third.
const averageOver = 60

// errorMark is z: how many standard errors above the average the bound lies. The
// rises have the say in the tail; two catch a level that dips for a moment.
const errorMark = 2

// Add records one second. h is how far ahead the average has to hold.
func (f *Forecast) Add(now time.Time, level float64, h time.Duration) {
	f.n++
	w := 1 / min(float64(f.n), averageOver)
	if f.late = append(f.late, f.mean); len(f.late) > max(1, wholeSeconds(h)) {
		if wrong := level - f.late[0]; f.n > averageOver { // before that it is an average of nothing
			f.spread += w * (wrong*wrong - f.spread)
		}
		f.late = f.late[:copy(f.late, f.late[1:])]
	}
	f.mean += w * (level - f.mean)
	f.season.add(now, level)
}

// Upper is the bound; 0 while nothing is known.
func (f *Forecast) Upper(now time.Time) float64 {
	up := f.season.high(now)
	if f.n > averageOver {
		up = max(up, f.mean+errorMark*math.Sqrt(f.spread))
	}
	return up
}

// season counts levels by hour of the week. Classes are 10 % apart, which is
// finer than one replica up to ten of them.
type season struct {
	hours [24 * 7]hour
}

type hour struct {
	week  int64 // the last one that was counted
	weeks int   // how many before it
	old   classes
	new   classes // of the week under way: an hour must not forecast itself
}

type classes [64]uint32

const (
	classLeast = 0.25 // the upper edge of the first class
	classRatio = 1.1  // so the last one ends at 0.25 × 1.1^63 = 101
	seasonMark = 0.95
)

func classOf(level float64) int {
	if level <= classLeast {
		return 0
	}
	return min(len(classes{})-1, int(math.Ceil(math.Log(level/classLeast)/math.Log(classRatio)-1e-9)))
}

// slot is the hour of the week and the number of the week, in UTC.
func slot(now time.Time) (hourOfWeek int, week int64) {
	h := now.Unix() / 3600
	return int(h % (24 * 7)), h / (24 * 7)
}

func (s *season) add(now time.Time, level float64) {
	i, week := slot(now)
	h := &s.hours[i]
	if h.week != week {
		if h.week != 0 {
			h.weeks++
		}
		for k := range h.old {
			// Half of what was before counts: three weeks back an eighth.
			h.old[k] = h.old[k]/2 + h.new[k]
		}
		h.new, h.week = classes{}, week
	}
	h.new[classOf(level)]++
}

// high is the 95th percentile of this hour in the weeks before; 0 before there
// are two of them, since one week is an accident.
func (s *season) high(now time.Time) float64 {
	i, week := slot(now)
	h := &s.hours[i]
	old, weeks := h.old, h.weeks
	if h.week != week && h.week != 0 {
		weeks++
		for k := range old {
			old[k] = old[k]/2 + h.new[k]
		}
	}
	if weeks < 2 {
		return 0
	}
	total, sum := 0.0, 0.0
	for _, n := range old {
		total += float64(n)
	}
	for k, n := range old {
		if sum += float64(n); total > 0 && sum >= seasonMark*total {
			return classLeast * math.Pow(classRatio, float64(k))
		}
	}
	return 0
}
