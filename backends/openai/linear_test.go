package openai

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"aloft/backends"
)

// counting wraps the reads of a large event, which move its bytes in the buffer.
type counting struct {
	io.Reader
	reads int
}

func (c *counting) Read(p []byte) (int, error) {
	c.reads++
	return c.Reader.Read(p)
}

// underRace is set in a race build, where allocations of the detector's own
// count too.
var underRace bool

func skipUnderRace(t *testing.T) {
	t.Helper()
	if underRace {
		t.Skip("allocations are not counted under the race detector: it makes some of its own")
	}
}

// The buffer doubles: an event of 8 times the size takes 3 more allocations,
// however small the reads are.
func TestEventsGrowthIsLinear(t *testing.T) {
	skipUnderRace(t)
	for how, wrap := range map[string]func(io.Reader) io.Reader{
		"64 KiB": func(r io.Reader) io.Reader { return r }, "1 byte": iotest.OneByteReader,
	} {
		allocs := func(size int) float64 {
			event := AppendEvent(nil, bytes.Repeat([]byte{'x'}, size))
			return testing.AllocsPerRun(1, func() {
				r := &counting{Reader: wrap(bytes.NewReader(event))}
				got, err := NewEvents(r, 2<<20).Next()
				if err != nil || !bytes.Equal(got, event) || how == "64 KiB" && r.reads > 30 {
					t.Fatalf("%s: %d bytes in %d reads, %v", how, len(got), r.reads, err)
				}
			})
		}
		if one, eight := allocs(128<<10), allocs(1<<20); eight > one+4 {
			t.Errorf("%s reads: %v allocations for 128 KiB, %v for 1 MiB, want at most 4 more", how, one, eight)
		}
	}
}

// A body of 32 MiB and a form of 1 MiB cost no more allocations than small ones.
func TestScanAllocsDoNotGrow(t *testing.T) {
	skipUnderRace(t)
	chat := []byte(`{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat(`a\n\"`, 32<<20/5) + `"}]}`)
	if n := testing.AllocsPerRun(1, func() { _, _ = ScanRequest(backends.Chat, chat) }); n > 2 {
		t.Errorf("32 MiB chat: %v allocations, want at most 2", n)
	}
	form := func(size int) float64 {
		body := formOf(strings.Replace(filePart, "\x00", strings.Repeat("\r\n--X", size/5), 1) + modelPart)
		return testing.AllocsPerRun(1, func() {
			if _, err := ScanForm(formType, body); err != nil {
				t.Fatal(err)
			}
		})
	}
	if small, large := form(1<<10), form(1<<20); large > small {
		t.Errorf("form: %v allocations for 1 KiB, %v for 1 MiB", small, large)
	}
}
