package sim

import "testing"

// Two words of arrivals, 2 to 66 judged: bit 1 and bit 67 are not.
func TestCaused(t *testing.T) {
	static := &Result{Models: []ModelResult{{Name: "m", Judged: [2]int{2, 67}, GoodBits: []uint64{^uint64(0), 0b1101}}}}
	run := &Result{Models: []ModelResult{{Name: "m", Judged: [2]int{2, 67}, GoodBits: []uint64{^uint64(0) &^ 0b10111, 0b0010}}}}
	rows, err := Caused(run, static)
	if err != nil {
		t.Fatal(err)
	}
	// Worse: bits 2 and 4 (0 and 1 are before), 64 and 66 (67 is after) = 4. Better: 65.
	want := Cause{Model: "m", Requests: 65, Gross: 4, Net: 3, GrossPer: 1e5 * 4 / 65.0, NetPer: 1e5 * 3 / 65.0}
	if rows[0] != want {
		t.Errorf("caused %+v, want %+v", rows[0], want)
	}
	want.Model = ""
	if rows[1] != want {
		t.Errorf("all %+v, want %+v", rows[1], want)
	}
	static.Seed = 2
	if _, err := Caused(run, static); err == nil {
		t.Error("runs of two worlds were compared")
	}
}
