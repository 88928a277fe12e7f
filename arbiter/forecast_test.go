package arbiter

import (
	"math"
	"testing"
	"time"
)

func TestForecastAverage(t *testing.T) {
	var f Forecast
	for i := range 60 {
		if f.Add(noon.Add(time.Duration(i)*time.Second), 4, 2*time.Second); f.Upper(noon) != 0 {
			t.Fatalf("a bound after %d s", i+1)
		}
	}
	f.Add(noon, 4, 2*time.Second)
	// Always 4: the average is 4 and was never wrong.
	if got := f.Upper(noon); math.Abs(got-4) > 1e-9 {
		t.Errorf("bound %v, want 4", got)
	}
	f.Add(noon, 10, 2*time.Second)
	// Average 4 + 6/60 = 4.1; wrong by 6, squared 36/60 = 0.6: 4.1 + 2 × √0.6.
	if got, want := f.Upper(noon), 4.1+2*math.Sqrt(0.6); math.Abs(got-want) > 1e-9 {
		t.Errorf("bound %v after a jump, want %v", got, want)
	}
}

func TestSeason(t *testing.T) {
	const week = 7 * 24 * time.Hour
	var s season
	fill := func(at time.Time, level float64) {
		for range 100 {
			s.add(at, level)
		}
	}
	fill(noon, 3)
	fill(noon.Add(time.Hour), 50) // another hour of the week
	if got := s.high(noon.Add(week)); got != 0 {
		t.Errorf("%v after one week, want nothing yet", got)
	}
	fill(noon.Add(week), 9)
	if got := s.high(noon.Add(week + time.Minute)); got != 0 {
		t.Errorf("%v: the hour under way forecasts itself", got)
	}
	// Old counts half: 50 at 3 and 100 at 9, so 95 % lie below 9's class. Classes
	// end at 0.25 × 1.1^k: 9 is in that of k = 38, since 0.25 × 1.1^38 = 9.35.
	if got, want := s.high(noon.Add(2*week)), 0.25*math.Pow(1.1, 38); math.Abs(got-want) > 1e-9 {
		t.Errorf("%v, want %v", got, want)
	}
	if got := s.high(noon.Add(2*week + 2*time.Hour)); got != 0 {
		t.Errorf("%v in an hour that was never seen", got)
	}
}

func TestClassOf(t *testing.T) {
	// Up to 0.25 class 0; 0.25 × 1.1 = 0.275 ends class 1; all beyond the last in it.
	for level, want := range map[float64]int{0: 0, 0.25: 0, 0.26: 1, 0.275: 1, 0.28: 2, 1e6: 63} {
		if got := classOf(level); got != want {
			t.Errorf("level %v in class %d, want %d", level, got, want)
		}
	}
}
