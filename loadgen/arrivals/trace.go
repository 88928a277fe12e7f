package arrivals

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"
)

// Format names the format of a trace.
type Format string

// The formats of traces. RecordFormat is Aloft's own (type Record).
const (
	AzureFormat    Format = "azure"
	MooncakeFormat Format = "mooncake"
	RecordFormat   Format = "record"
)

// maxSpeed bounds how far time may be shrunk or, inverted, stretched.
const maxSpeed = 1e4

// maxCopies bounds how often a trace is laid over itself.
const maxCopies = 256

// Trace is the replay of recorded traffic. Arrivals come as they were recorded,
// with the sizes that they had; a phase may be shorter than the trace, and one
// without a duration lasts to its end.
type Trace struct {
	File   string `yaml:"file,omitempty"`
	Format Format `yaml:"format,omitempty"`
	// Speed is how many times as fast as recorded the arrivals come; 0 means 1.
	// It shrinks the bursts along with all else, which changes what is asked of a
	// server: lay copies over each other to have more load of the same kind.
	Speed float64 `yaml:"speed,omitempty"`
	// Copies lays the trace so many times over itself, all but the first turned to
	// begin at a row drawn at random; 0 means 1.
	Copies int `yaml:"copies,omitempty"`
	// From is where in the trace to begin, and Most how many of its rows to use; 0
	// means all.
	From time.Duration `yaml:"from,omitempty"`
	Most int           `yaml:"most,omitempty"`
	// Endpoint and Model pick the requests of a recording that had them.
	Endpoint string `yaml:"endpoint,omitempty"`
	Model    string `yaml:"of_model,omitempty"`
}

func (t Trace) validate() error {
	switch {
	case t.File == "":
		return errors.New("file is missing")
	case t.Format != AzureFormat && t.Format != MooncakeFormat && t.Format != RecordFormat:
		return fmt.Errorf("format is %q, want %s, %s or %s", t.Format, AzureFormat, MooncakeFormat, RecordFormat)
	case t.Speed != 0 && !(t.Speed >= 1/maxSpeed && t.Speed <= maxSpeed):
		return fmt.Errorf("speed is %v, want %v to %v", t.Speed, 1/maxSpeed, maxSpeed)
	case t.Copies < 0 || t.Copies > maxCopies:
		return fmt.Errorf("copies is %d, want 0 to %d", t.Copies, maxCopies)
	case t.From < 0 || t.From > maxOffset:
		return fmt.Errorf("from is %v, want 0 to %v", t.From, maxOffset)
	case t.Most < 0 || t.Most > MaxPlan:
		return fmt.Errorf("most is %d, want 0 to %d", t.Most, MaxPlan)
	case t.Format != RecordFormat && (t.Endpoint != "" || t.Model != ""):
		return fmt.Errorf("endpoint and of_model belong to format %s: format %s has neither", RecordFormat, t.Format)
	}
	return nil
}

// fast is the time in the plan of a time in the trace.
func (t Trace) fast(at time.Duration) time.Duration {
	if t.Speed == 0 || t.Speed == 1 {
		return at
	}
	return time.Duration(float64(at) / t.Speed)
}

// read reads the whole trace, in order of time. The note says what was done to
// its times, and texts which requests begin alike.
func (t Trace) read(in io.Reader, r *rand.Rand) (records []Record, texts []Text, note string, err error) {
	switch t.Format {
	case AzureFormat:
		records, err = ReadAzure(in, 0)
	case MooncakeFormat:
		records, texts, note, err = readMooncake(in, r, 0)
	default:
		records, err = Read(in, 0)
	}
	return records, texts, note, err
}

// unmarked skips the byte order mark that some editors put before UTF-8.
func unmarked(in io.Reader) io.Reader {
	r := bufio.NewReader(in)
	if mark, _ := r.Peek(3); string(mark) == "\ufeff" {
		_, _ = r.Discard(3)
	}
	return r
}

// pick returns the rows to use, from time 0 on.
func (t Trace) pick(records []Record) []Record {
	var out []Record
	for _, rec := range records {
		if rec.Offset < t.From || t.Endpoint != "" && rec.Endpoint != t.Endpoint || t.Model != "" && rec.Model != t.Model {
			continue
		}
		if t.Most > 0 && len(out) == t.Most {
			break
		}
		rec.Offset -= t.From
		out = append(out, rec)
	}
	return out
}

// replay plans a trace within d, or to its end where d is 0; it returns how long
// that is.
func (b *builder) replay(r *rand.Rand, t Trace, d time.Duration) ([]arrival, time.Duration, error) {
	if b.spec.Open == nil {
		return nil, 0, errors.New("file: traces cannot be read here")
	}
	in, err := b.spec.Open(t.File)
	if err != nil {
		return nil, 0, fmt.Errorf("file: %w", err)
	}
	defer in.Close()
	records, texts, note, err := t.read(in, r)
	if err != nil {
		return nil, 0, fmt.Errorf("file %s: %w", t.File, err)
	}
	total := len(records)
	if records = t.pick(records); len(records) == 0 {
		return nil, 0, fmt.Errorf("file %s: none of its %d rows is meant", t.File, total)
	}
	copies := max(t.Copies, 1)
	end := records[len(records)-1].Offset + 1
	if d == 0 {
		if records[0].Offset == end-1 {
			return nil, 0, fmt.Errorf("file %s: its rows (%d) all have one time, so that they have no rate: give the phase a duration to send them all at once", t.File, len(records))
		}
		if d = t.fast(end); d > maxPhase || d <= 0 {
			return nil, 0, fmt.Errorf("file %s: the rows last %v, at most %v are planned: give the phase a duration", t.File, d, maxPhase)
		}
		d++ // the last row is inside, however its time was rounded
	}
	var out []arrival
	for c := range copies {
		turn, length := time.Duration(0), end
		if c > 0 { // the ring closes with a mean gap
			turn = records[r.IntN(len(records))].Offset
			length += end / time.Duration(len(records))
		}
		for _, rec := range records {
			at := rec.Offset - turn
			if at < 0 {
				at += length
			}
			if at = t.fast(at); at >= d {
				continue
			}
			if len(out) >= b.left {
				return nil, 0, errFull
			}
			out = append(out, arrival{at, b.shape(rec, c)})
		}
	}
	sortArrivals(out)
	if len(b.texts)+len(texts) > maxTexts {
		return nil, 0, fmt.Errorf("file %s: more than %d different prompts in the plan", t.File, maxTexts)
	}
	b.addTexts(texts)
	b.note("trace %s (%s): %d arrivals from %d of its %d rows%s", t.File, t.Format, len(out), len(records), total, said(note))
	if len(texts) > 0 {
		b.note("trace %s: prompts that began alike begin alike again, %d blocks of %d tokens in all", t.File, sharedBlocks(out), Block)
	}
	if t.Speed != 0 && t.Speed != 1 {
		b.note("trace %s: time runs %v times as fast as it did, bursts with it", t.File, t.Speed)
	}
	if copies > 1 {
		b.note("trace %s: %d copies laid over each other, each turned to a start of its own", t.File, copies)
	}
	if last := t.fast(end); last < d-d/100 && copies == 1 {
		b.note("trace %s: ends after %v; the rest of %v is quiet", t.File, last.Round(time.Millisecond), d)
	}
	return out, d, nil
}

func said(note string) string {
	if note == "" {
		return ""
	}
	return "; " + note
}

// shape is what a recorded request says of its size and sender. Who has no name
// among the tenants is drawn like the others. Each copy of a trace has texts of its
// own, as further users would.
func (b *builder) shape(rec Record, c int) Shape {
	s := Shape{Input: uint32(rec.InputTokens), Output: uint32(rec.OutputTokens), Shared: uint32(rec.SharedTokens), Tenant: anyone}
	if i, ok := b.tenants[rec.Tenant]; ok && rec.Tenant != "" {
		s.Tenant = i
	}
	if rec.text > 0 {
		s.Text, s.Copy = uint32(len(b.texts))+rec.text, uint16(c)
	}
	return s
}
