package batcher

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"aloft/backends"
)

// record is a Backend that keeps its calls and answers after took.
type record struct {
	took  time.Duration
	mu    sync.Mutex
	calls []backends.Call
}

func (r *record) Do(ctx context.Context, call *backends.Call) (*backends.Reply, error) {
	r.mu.Lock()
	r.calls = append(r.calls, *call)
	r.mu.Unlock()
	select {
	case <-time.After(r.took):
		a := reply(200, "{}")
		a.Timing = backends.Timing{Network: time.Millisecond, Engine: 7 * time.Millisecond, Replica: "liar", Queue: time.Hour}
		return a, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// What is not merged goes raw, alone and beside merged calls; what the adapter
// measured stays.
func TestUnmergedInAMergingModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &record{took: 10 * time.Millisecond}
		b := start(t, Options{Model: "m", Merge: true}, rep("a", e))
		defer stop(t, b)
		var wg sync.WaitGroup
		for _, r := range []*backends.Request{
			{ID: "1", Endpoint: backends.Tokenize, Body: []byte("raw tokenize"), Tokens: 5, Header: backends.Header{{Name: "Traceparent", Value: "x"}}},
			{ID: "2", Endpoint: backends.Rerank, Path: "/v2/rerank", Body: []byte("raw rerank"), ContentType: "application/x", Tokens: 7},
		} {
			wg.Go(func() {
				got, err := b.Submit(t.Context(), r)
				if err != nil {
					t.Fatal(err)
				}
				got.Body.Close()
				if tm := got.Timing; tm.Network != time.Millisecond || tm.Engine != 7*time.Millisecond || tm.Replica != "a" ||
					tm.BatchRows != 1 || tm.PromptTokens != r.Tokens || tm.Queue > 10*time.Millisecond || tm.Hedged {
					t.Errorf("timing %+v", tm)
				}
			})
			synctest.Wait()
		}
		wg.Wait()
		want := []backends.Call{
			{Path: "/tokenize", Body: []byte("raw tokenize"), ID: "1", Header: backends.Header{{Name: "Traceparent", Value: "x"}}},
			{Path: "/v2/rerank", Body: []byte("raw rerank"), ID: "2", ContentType: "application/x"},
		}
		if fmt.Sprint(e.calls) != fmt.Sprint(want) {
			t.Errorf("calls %+v, want %+v", e.calls, want)
		}
		if s := b.Signals(time.Now()); s.BusySlots != 0 || s.Class[0].Done != 2 || s.Fits[0].Samples != 1 || s.First.Samples != 1 {
			t.Errorf("%+v, want both done, and the rerank alone to count as merged calls do", s)
		}
	})
}

func TestMergedTimingKeepsTheAdapters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{alpha: 10 * time.Millisecond}
		e.fault = func(int, []string) (*backends.Reply, error) {
			r := reply(200, `{"data":[{"index":0,"embedding":[1,2]}],"usage":{"prompt_tokens":1}}`)
			r.Timing = backends.Timing{Network: 2 * time.Millisecond}
			return r, nil
		}
		b := start(t, Options{Model: "m", Merge: true}, rep("a", e))
		defer stop(t, b)
		got, err := b.Submit(t.Context(), embedding("x"))
		if err != nil {
			t.Fatal(err)
		}
		want := backends.Timing{Network: 2 * time.Millisecond, Engine: 8 * time.Millisecond, Replica: "a", BatchRows: 1, PromptTokens: 1}
		if got.Timing != want {
			t.Errorf("timing %+v, want %+v", got.Timing, want)
		}
	})
}

// TestSimultaneous is F14: choice and reservation are one step.
func TestSimultaneous(t *testing.T) {
	for _, o := range []Options{{Model: "m", MaxQueue: 100}, {Model: "m", Merge: true, MaxQueue: 100}} {
		synctest.Test(t, func(t *testing.T) {
			var rs []Replica
			var engines []*record
			for i := range 4 {
				engines = append(engines, &record{took: time.Second})
				rs = append(rs, Replica{ID: fmt.Sprint("r", i), Slots: 8, Shape: "s", Index: i, Backend: engines[i]})
			}
			b := start(t, o, rs...)
			defer stop(t, b)
			var wg sync.WaitGroup
			var full, done atomic.Int64
			for range 200 {
				wg.Go(func() {
					got, err := b.Submit(t.Context(), &backends.Request{ID: "g", Endpoint: backends.Tokenize, Body: []byte(`{}`), Tokens: 10})
					var retry *backends.RetryError
					switch {
					case err == nil:
						done.Add(1)
						got.Body.Close()
					case errors.As(err, &retry) && retry.Reason == "queue_full" && errors.Is(err, backends.ErrOverloaded) && retry.After >= time.Second:
						full.Add(1)
					default:
						t.Error(err)
					}
				})
			}
			synctest.Wait()
			for i, e := range engines {
				if len(e.calls) != 8 {
					t.Errorf("merge %v: replica %d got %d calls, want 8", o.Merge, i, len(e.calls))
				}
			}
			if q := b.Signals(time.Now()).Class[0].Queue; q != 100 || full.Load() != 200-32-100 {
				t.Errorf("merge %v: %d wait and %d were refused, want 100 and 68", o.Merge, q, full.Load())
			}
			wg.Wait()
			if done.Load() != 132 {
				t.Errorf("%d answered, want 132", done.Load())
			}
		})
	}
}

// alone is a generation as the core sees it.
func alone(at time.Time, tokens int, p backends.Placement) *Work {
	return &Work{Alone: true, RowTokens: []int{tokens}, Arrival: at, Place: p}
}

func TestAdapters(t *testing.T) {
	lora := backends.Placement{Adapter: "lora"}
	c := NewCore(Options{Model: "m", MaxQueue: 100, QueueTimeout: time.Second})
	c.SetReplicas(t0, []Replica{{ID: "a", Slots: 2, Index: 0}, {ID: "b", Slots: 1, Index: 1, Adapters: []string{"x", "lora"}}})
	for n, step := range []struct {
		place backends.Placement
		want  string
	}{
		{lora, "b:1/5 idle"},
		{lora, ""},
		{backends.Placement{Adapter: "unknown"}, "fail no_replica"},
		{backends.Placement{}, "a:1/5 idle"}, // whoever waits for an adapter holds up nobody else
	} {
		if got := script(c.Arrive(t0, alone(t0, 5, step.place))); got != step.want {
			t.Errorf("step %d: %q, want %q", n, got, step.want)
		}
	}
	for range 40 { // more than a walk past misfits would reach
		c.Arrive(t0, alone(t0, 5, lora))
	}
	if got := script(c.Arrive(t0, alone(t0, 6, backends.Placement{}))); got != "a:1/6 idle" {
		t.Errorf("behind 41 that wait for an adapter: %q", got)
	}
	acts := c.Tick(t0.Add(time.Second))
	for _, a := range acts {
		if !errors.Is(a.Err, backends.ErrOverloaded) {
			t.Errorf("%v", a.Err)
		}
	}
	if len(acts) != 41 {
		t.Errorf("%d failed, want 41", len(acts))
	}
}

// Nobody waits for an adapter that the ready replicas do not have.
func TestMissingAdapter(t *testing.T) {
	up := func(offline bool, adapters ...string) Replica {
		return Replica{ID: "a", Slots: 1, Shape: "s", Offline: offline, Adapters: adapters}
	}
	old := Replica{ID: "o", Slots: 1, Shape: "s", Index: 1, Old: true}
	for _, tc := range []struct {
		name     string
		class    backends.Class
		before   []Replica
		arriving string
		after    []Replica
		then     string
	}{
		{"ready without it", 0, []Replica{up(false, "other")}, "fail no_replica", nil, ""},
		{"on its way, with it", 0, nil, "", []Replica{up(false, "lora")}, "a:1/5 idle"},
		{"on its way, without it", 0, nil, "", []Replica{up(false)}, "fail no_replica"},
		{"all gone for a moment", 0, nil, "", nil, ""},
		{"only a lent one is ready", 0, []Replica{up(true)}, "", []Replica{up(true)}, ""},
		{"of a reload, with it", 0, []Replica{old}, "", []Replica{up(false, "lora"), old}, "a:1/5 idle"},
		{"of a reload under way", 0, []Replica{old}, "", []Replica{up(false), old}, ""},
		{"of a reload, without it", 0, []Replica{old}, "", []Replica{up(false)}, "fail no_replica"},
		{"of a batch job", backends.Offline, []Replica{up(false)}, "", []Replica{up(false, "lora")}, "a:1/5 idle"},
	} {
		c := NewCore(Options{Model: "m"})
		c.SetReplicas(t0, tc.before)
		w := alone(t0, 5, backends.Placement{Adapter: "lora"})
		w.Class = tc.class
		acts := c.Arrive(t0, w)
		if got := script(acts); got != tc.arriving {
			t.Errorf("%s: arrives: %q, want %q", tc.name, got, tc.arriving)
		}
		if len(acts) > 0 && !strings.Contains(acts[0].Err.Error(), `"lora"`) {
			t.Errorf("%s: %v does not name the adapter", tc.name, acts[0].Err)
		}
		if got := script(c.SetReplicas(t0, tc.after)); got != tc.then {
			t.Errorf("%s: then %q, want %q", tc.name, got, tc.then)
		}
	}
}

// A reload that does not come to its end holds nobody longer than the queue does.
func TestAdapterOfAReloadThatHangs(t *testing.T) {
	c := NewCore(Options{Model: "m", QueueTimeout: ms(500)})
	c.SetReplicas(t0, []Replica{{ID: "o", Slots: 1, Old: true}})
	c.Arrive(t0, alone(t0, 5, backends.Placement{Adapter: "lora"}))
	if !c.Wake().Equal(t0.Add(ms(500))) {
		t.Errorf("wakes at %v, want the end of the queue's patience", c.Wake().Sub(t0))
	}
	acts := c.Tick(t0.Add(ms(500)))
	if got := script(acts); got != "fail no_replica" || !strings.Contains(acts[0].Err.Error(), `"lora"`) {
		t.Errorf("then %q, want no_replica, by its name", got)
	}
}

// The end of an answer that is no stream stands for its beginning, once.
func TestDoneStandsForFirst(t *testing.T) {
	for _, first := range []bool{false, true} {
		c := NewCore(Options{Model: "m", Target: ms(100)})
		c.fits["s"] = NewFit(0.040, 0.001)
		c.SetReplicas(t0, shared("a"))
		w := alone(t0.Add(-ms(80)), 10, backends.Placement{})
		b := c.Arrive(t0, w)[0].Batch
		if first {
			c.First(t0.Add(ms(60)), b, 0)
		}
		c.Done(t0.Add(ms(70)), b, Result{Output: 3})
		s := c.Signals(t0.Add(ms(70)))
		if got := s.Class[w.Class]; got.Late != 1 || got.Done != 1 {
			t.Errorf("first %v: %+v, want it late, once", first, got)
		}
		if s.First.Samples != 1 || s.First.P50 != ms(130) || s.Rest.P50 != ms(20) || s.SlotSeconds != 0.07 {
			t.Errorf("first %v: first %+v, rest %+v, slot %v s; want 80 + 50 ms, 20 ms and 0.07 s", first, s.First, s.Rest, s.SlotSeconds)
		}
	}
}

// Rows of different adapters share no call, and go where their adapter is.
func TestAdaptersAreNotMerged(t *testing.T) {
	c := NewCore(Options{Model: "m", Merge: true})
	for n := range 6 {
		w := work(0, "", t0.Add(time.Duration(n)), 1)
		if n%2 == 1 {
			w.Place.Adapter = "lora"
		}
		c.Arrive(t0, w)
	}
	rs := shared("a", "b")
	rs[1].Adapters = []string{"lora"}
	acts := c.SetReplicas(t0, rs)
	if got := script(acts); got != "a:3/3 idle, b:3/3 idle" {
		t.Fatalf("%q, want a call for each", got)
	}
	for _, a := range acts {
		for _, s := range a.Batch.Segs {
			if s.Work.Place.Adapter != a.Batch.Adapter {
				t.Errorf("a row of %q in a call of %q", s.Work.Place.Adapter, a.Batch.Adapter)
			}
		}
	}
}

// A replica that drains takes no calls; what it declined waits for another, and
// still has its retry.
func TestDeclined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := scripted(func(context.Context) (*backends.Reply, error) { return nil, backends.ErrUnavailable })
		broken := scripted(func(context.Context) (*backends.Reply, error) { return nil, backends.ErrConnect })
		fine := &record{}
		req := &backends.Request{ID: "g", Endpoint: backends.Chat, Body: []byte(`{}`)}
		for _, tc := range []struct {
			name  string
			first []Replica
			then  []Replica
			want  string
			after time.Duration
		}{
			{"another comes", []Replica{rep("a", down)}, []Replica{rep("b", fine)}, "<nil>", 50 * time.Millisecond},
			{"another, broken, and one more", []Replica{rep("a", down)}, []Replica{rep("b", broken), rep("c", fine)}, "<nil>", 50 * time.Millisecond},
			{"none comes", []Replica{rep("a", down)}, nil, "no_replica", time.Second},
			{"it stays shut", []Replica{rep("a", down), rep("b", down)}, []Replica{rep("a", down), rep("b", down)}, "queue_timeout", time.Second},
		} {
			for _, merge := range []bool{false, true} {
				b := start(t, Options{Model: "m", Merge: merge, QueueTimeout: time.Second}, tc.first...)
				begin := time.Now()
				time.AfterFunc(50*time.Millisecond, func() { b.SetReplicas(tc.then) })
				got, err := b.Submit(t.Context(), req)
				end := fmt.Sprint(err)
				var retry *backends.RetryError
				if errors.As(err, &retry) {
					end = retry.Reason
				}
				if end != tc.want || time.Since(begin) != tc.after {
					t.Errorf("%s: %s after %v, want %s after %v", tc.name, end, time.Since(begin), tc.want, tc.after)
				}
				if err == nil {
					got.Body.Close()
				}
				stop(t, b)
			}
		}
	})
}

func TestWait(t *testing.T) {
	o := Options{Model: "m"}
	c := NewCore(o)
	c.fits["s"] = NewFit(0.1, 0.001)
	b := &Batcher{}
	at := func(c *Core) time.Duration { b.wait.set(c.outlook()); return b.Wait(100) }
	if got := at(c); got != -1 {
		t.Errorf("without a replica: %v, want -1", got)
	}
	c.SetReplicas(t0, shared("a", "b"))
	if got := at(c); got != 200*time.Millisecond {
		t.Errorf("idle: %v, want alpha and 100 betas", got)
	}
	one := c.Arrive(t0, alone(t0, 10, backends.Placement{}))[0].Batch
	c.Done(t0.Add(4*time.Second), one, Result{Took: 4 * time.Second})
	for range 5 { // two run, three wait; a slot comes free every 2 s
		c.Arrive(t0, alone(t0, 10, backends.Placement{}))
	}
	if got := at(c); got != 8*time.Second+200*time.Millisecond {
		t.Errorf("three wait: %v, want four slots' waits of 2 s and 200 ms", got)
	}
	o.Merge, o.MaxBatchTokens = true, 100 // 200 ms a whole call: 500 tokens a second
	c = NewCore(o)
	c.fits["s"] = NewFit(0.1, 0.001)
	c.SetReplicas(t0, shared("a"))
	c.Arrive(t0, work(0, "", t0, 100))
	c.Arrive(t0, work(0, "", t0, 100))
	if got := at(c); got != 500*time.Millisecond {
		t.Errorf("merged: %v, want 50 + 100 tokens at 500 a second and 200 ms", got)
	}
}

// prebuilt answers with one Reply again and again.
type prebuilt struct {
	reply backends.Reply
	body  []byte
	text  body
}

func (p *prebuilt) Do(context.Context, *backends.Call) (*backends.Reply, error) {
	p.text.Reset(p.body)
	p.reply = backends.Reply{Status: 200, ContentType: "application/json", Body: &p.text}
	return &p.reply, nil
}

// The gateway may allocate 12 times a request, batcher included.
func TestAllocations(t *testing.T) {
	for _, tc := range []struct {
		name string
		o    Options
		req  *backends.Request
		body string
		most float64
	}{
		{"chat", Options{Model: "m"}, &backends.Request{ID: "g", Endpoint: backends.Chat, Body: []byte(`{}`), Tokens: 10}, `{}`, 1},
		{"embedding", Options{Model: "m", Merge: true}, embedding("text"), `{"data":[{"index":0,"embedding":[1.5,2.5]}],"usage":{"prompt_tokens":4}}`, 6}, // 5; under -race a sync.Pool forgets
	} {
		b, err := New(tc.o, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		b.SetReplicas([]Replica{{ID: "a", Slots: 8, Shape: "s", Backend: &prebuilt{body: []byte(tc.body)}}})
		var buf bytes.Buffer
		once := func() {
			got, err := b.Submit(t.Context(), tc.req)
			if err != nil {
				t.Fatal(err)
			}
			buf.Reset()
			if _, err := buf.ReadFrom(got.Body); err != nil || got.Status != 200 {
				t.Fatal(got.Status, err)
			}
			got.Body.Close()
		}
		for range 2 * windowSize { // the sample windows are full then
			once()
		}
		if n := testing.AllocsPerRun(1000, once); n > tc.most {
			t.Errorf("%s: %v allocations a request, want at most %v", tc.name, n, tc.most)
		} else {
			t.Logf("%s: %v allocations", tc.name, n)
		}
		stop(t, b)
	}
}

// events is a body that hands out events and knows its length.
type events struct {
	io.ReadCloser
	left []string
}

func (e *events) Len() int { return len(e.left) }

func (e *events) NextEvent() ([]byte, bool, error) {
	if len(e.left) == 0 {
		return nil, false, io.EOF
	}
	event := e.left[0]
	e.left = e.left[1:]
	return []byte(event), len(e.left) > 0, nil
}

// What an engine's body offers besides Read reaches the relay, and its end frees
// the slot all the same.
func TestBodyKeepsWhatItOffers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var body io.ReadCloser
		b := start(t, Options{Model: "m"}, rep("a", scripted(func(context.Context) (*backends.Reply, error) {
			return &backends.Reply{Status: 200, ContentType: "text/event-stream", Body: body}, nil
		})))
		defer stop(t, b)
		req := &backends.Request{ID: "g", Endpoint: backends.Chat, Body: []byte(`{}`), Stream: true}
		body = io.NopCloser(bytes.NewReader(nil))
		got, err := b.Submit(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := got.Body.(backends.EventReader); ok || got.Body.(backends.Sized).Len() != -1 {
			t.Error("a plain body is said to have events or a size")
		}
		got.Body.Close()
		body = &events{io.NopCloser(nil), []string{"a", "b"}}
		if got, err = b.Submit(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		if n := got.Body.(backends.Sized).Len(); n != 2 {
			t.Errorf("%d to come, want 2", n)
		}
		var seen string
		for r := got.Body.(backends.EventReader); err == nil; {
			var event []byte
			var more bool
			event, more, err = r.NextEvent()
			seen += fmt.Sprintf("%s %v %v, ", event, more, err)
		}
		if s := b.Signals(time.Now()); seen != "a true <nil>, b false <nil>,  false EOF, " || s.BusySlots != 0 || s.OutputTokens != 1 {
			t.Errorf("%s %d slots busy, mean output %v; want none and (0+2)/2", seen, s.BusySlots, s.OutputTokens)
		}
		got.Body.Close()
	})
}

// Clients that leave together cost no engine call: the slot that one frees goes
// to nobody who has left too.
func TestNoCallForWhoHasLeft(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			e := &record{}
			b := start(t, Options{Model: "m"}, rep("a", e))
			defer stop(t, b)
			ctx, leave := context.WithCancelCause(t.Context())
			req := &backends.Request{ID: "g", Endpoint: backends.Chat, Body: []byte(`{}`), Stream: true}
			got, err := b.Submit(ctx, req)
			if err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			for range 5 {
				wg.Go(func() {
					if _, err := b.Submit(ctx, req); !errors.Is(err, errLeft) {
						t.Errorf("%v, want that the caller left", err)
					}
				})
			}
			synctest.Wait()
			leave(errLeft)
			got.Body.Close()
			wg.Wait()
			s := b.Signals(time.Now())
			if n := len(e.calls); n != 1 || s.Class[0].Cancelled != 5 || s.Class[0].Done != 1 || s.BusySlots != 0 {
				t.Errorf("%d calls, %+v; want one call, five cancelled", n, s.Class[0])
			}
			if _, err := b.Submit(ctx, req); !errors.Is(err, errLeft) || len(e.calls) != 1 {
				t.Errorf("a caller that has left before: %v, %d calls", err, len(e.calls))
			}
		})
	}
}

// A second try's wait counts as queueing.
func TestQueueOfARetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := scripted(func(context.Context) (*backends.Reply, error) {
			time.Sleep(10 * time.Millisecond)
			return nil, backends.ErrConnect
		})
		b := start(t, Options{Model: "m"}, rep("a", broken))
		defer stop(t, b)
		busy := rep("b", &record{})
		busy.Adapters = []string{"lora"}
		b.SetReplicas([]Replica{rep("a", broken), busy})
		lora := &backends.Request{ID: "l", Endpoint: backends.Chat, Body: []byte(`{}`), Place: backends.Placement{Adapter: "lora"}}
		hold, err := b.Submit(t.Context(), lora)
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(50*time.Millisecond, func() { hold.Body.Close() })
		got, err := b.Submit(t.Context(), &backends.Request{ID: "g", Endpoint: backends.Chat, Body: []byte(`{}`)})
		if err != nil {
			t.Fatal(err)
		}
		got.Body.Close()
		if tm := got.Timing; tm.Queue != 50*time.Millisecond || tm.Replica != "b" {
			t.Errorf("%+v, want 50 ms of queueing for b", tm)
		}
	})
}

// What was served elsewhere is demand, but no work of this queue.
func TestMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{Model: "m"})
		defer stop(t, b)
		b.Missed(backends.Standard, 100)
		b.Missed(backends.Offline, 7)
		s := b.Signals(time.Now())
		if last := Seconds - 1; s.Load.Buckets[last] != (Bucket{1, 100}) || s.Offline.Buckets[last] != (Bucket{1, 7}) {
			t.Errorf("load %+v, offline %+v", s.Load.Buckets[last], s.Offline.Buckets[last])
		}
		if c := s.Class[backends.Standard]; c.Missed != 1 || c.Arrived != 0 {
			t.Errorf("%+v, want one missed, none arrived", c)
		}
	})
}

// BenchmarkSubmit is what the batcher adds to a chat request whose engine takes
// no time: one caller, 64 callers with a slot each, 64 callers of 8 slots.
func BenchmarkSubmit(b *testing.B) {
	for _, tc := range []struct{ callers, slots int }{{1, 8}, {64, 64}, {64, 8}} {
		b.Run(fmt.Sprintf("callers=%d/slots=%d", tc.callers, tc.slots), func(b *testing.B) {
			batcher, err := New(Options{Model: "m"}, slog.New(slog.DiscardHandler))
			if err != nil {
				b.Fatal(err)
			}
			defer batcher.Close(context.Background())
			batcher.SetReplicas([]Replica{{ID: "a", Slots: tc.slots, Shape: "s", Backend: scripted(func(context.Context) (*backends.Reply, error) {
				return &backends.Reply{Status: 200, Body: io.NopCloser(bytes.NewReader(nil))}, nil
			})}})
			req := &backends.Request{ID: "g", Endpoint: backends.Chat, Body: []byte(`{}`), Tokens: 10}
			var left atomic.Int64
			left.Store(int64(b.N))
			ctx, cancel := context.WithCancel(context.Background()) // as a server's is
			defer cancel()
			b.ReportAllocs()
			b.ResetTimer()
			var wg sync.WaitGroup
			for range tc.callers {
				wg.Go(func() {
					for left.Add(-1) >= 0 {
						got, err := batcher.Submit(ctx, req)
						if err != nil {
							b.Error(err)
							return
						}
						got.Body.Close()
					}
				})
			}
			wg.Wait()
		})
	}
}

// A deadline that passes is too much demand only where there is a replica.
func TestDeadlineWithoutAReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy := scripted(func(ctx context.Context) (*backends.Reply, error) { <-ctx.Done(); return nil, context.Cause(ctx) })
		for name, tc := range map[string]struct {
			replicas []Replica
			want     string
			is       error
		}{
			"none": {nil, "no_replica", backends.ErrUnavailable},
			"busy": {[]Replica{rep("a", busy)}, "queue_timeout", backends.ErrDeadline},
		} {
			b := start(t, Options{Model: "m"}, tc.replicas...)
			ctx, cancel := context.WithCancel(t.Context())
			go b.Submit(ctx, &backends.Request{ID: "first", Endpoint: backends.Chat, Body: []byte(`{}`)})
			synctest.Wait()
			_, err := b.Submit(t.Context(), &backends.Request{ID: "late", Endpoint: backends.Chat, Body: []byte(`{}`), Deadline: time.Now().Add(50 * time.Millisecond)})
			var retry *backends.RetryError
			if !errors.As(err, &retry) || retry.Reason != tc.want || !errors.Is(err, tc.is) {
				t.Errorf("%s: %v, want %s", name, err, tc.want)
			}
			cancel()
			stop(t, b)
		}
	})
}
