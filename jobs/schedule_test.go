package jobs

import (
	"testing"
	"time"
)

// hourly is every full hour.
func hourly(after time.Time) time.Time { return after.Truncate(time.Hour).Add(time.Hour) }

func TestScheduleDecides(t *testing.T) {
	at := func(h, m int) time.Time { return time.Date(2027, 1, 1, h, m, 0, 0, time.UTC) }
	s := Schedule{Name: "n", Spec: "@hourly", Next: hourly}
	known := ScheduleState{Name: "n", Spec: "@hourly", Next: at(5, 0), Last: "job_1"}
	for _, c := range []struct {
		name string
		st   ScheduleState
		now  time.Time
		run  bool
		next time.Time
	}{
		{"new", ScheduleState{}, at(4, 30), false, at(5, 0)},
		{"too early", known, at(4, 59), false, at(5, 0)},
		{"at its moment", known, at(5, 0), true, at(6, 0)},
		{"missed many", known, at(17, 20), true, at(18, 0)},
		{"changed", ScheduleState{Name: "n", Spec: "@daily", Next: at(3, 0), Last: "job_1"}, at(4, 30), false, at(5, 0)},
		{"never again", ScheduleState{Name: "n", Spec: "@hourly"}, at(4, 30), false, time.Time{}},
	} {
		run, after := s.decide(c.st, c.now)
		if run != c.run || !after.Next.Equal(c.next) || after.Last != c.st.Last || after.Spec != s.Spec {
			t.Errorf("%s: run %v, then %+v; want %v, next %v", c.name, run, after, c.run, c.next)
		}
	}
}
