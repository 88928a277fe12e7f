package loadgen

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"aloft/loadgen/wire"
)

// Asker sends requests one after another, outside of a run: what an evaluation
// needs of the generator's client, with the same clock and the same reading of
// streams. It is for one goroutine.
type Asker struct {
	target  *wire.Target
	headers map[string]string
	start   time.Time
	conn    *wire.Conn
	heads   map[string][]byte // by route
	line    line              // its reading alone
}

// Asked is an answer.
type Asked struct {
	Status int
	Body   []byte // of a plain answer or an error; valid until the next request
	Text   string // of a stream: what it said
	// From when the request was begun, its connection included where it is new.
	First time.Duration // to the first text of a stream; 0 = there was none
	Total time.Duration
	Again time.Duration // when the server wants to be asked again; below 0: it did not say
}

// NewAsker returns the client of a base URL. key "" = none; roots nil = the system's.
func NewAsker(base, key string, roots *x509.CertPool) (*Asker, error) {
	t, err := wire.NewTarget(base, nil)
	if err != nil {
		return nil, err
	}
	t.Trust(roots, false)
	a := &Asker{target: t, headers: map[string]string{"user-agent": "aloft-evaluate/1"}, start: time.Now(), heads: map[string][]byte{}}
	if key != "" {
		a.headers["authorization"] = "Bearer " + key
	}
	a.conn = t.Conn(a.start)
	return a, nil
}

// Close closes the connection.
func (a *Asker) Close() { a.conn.Close() }

// Ask sends one request, whose answer is a stream if the body asks for one. An
// answer with an error's status is no error here. ctx must have a deadline.
func (a *Asker) Ask(ctx context.Context, route string, body []byte, stream bool) (Asked, error) {
	until, ok := ctx.Deadline()
	if !ok {
		panic("BUG: a request without a deadline")
	}
	if a.heads[route] == nil {
		head, err := a.target.Head(route, a.headers)
		if err != nil {
			return Asked{}, err
		}
		a.heads[route] = head
	}
	stop := context.AfterFunc(ctx, a.conn.Abort)
	defer func() {
		if stop() {
			a.conn.Done()
			return
		}
		a.conn.Close() // aborted for good
		a.conn = a.target.Conn(a.start)
	}()
	began := time.Since(a.start)
	head, err := a.send(ctx, a.heads[route], body, until)
	if err != nil && a.conn.Unseen() {
		a.conn.Close()
		head, err = a.send(ctx, a.heads[route], body, until)
	}
	if err != nil {
		return Asked{}, err
	}
	out := Asked{Status: head.Status, Again: comeBack(head, time.Now())}
	a.line.conn = a.conn
	if !stream || head.Status != 200 {
		out.Body, err = a.line.whole(maxBody + 1)
		if err == nil && len(out.Body) > maxBody {
			err = fmt.Errorf("answer exceeds %d bytes", maxBody)
		}
		out.Total = time.Since(a.start) - began
		return out, err
	}
	if !isEventStream(head.Type) {
		return out, fmt.Errorf("asked for a stream, got content type %.80q", head.Type)
	}
	return out, a.listen(&out, began)
}

func (a *Asker) send(ctx context.Context, head, body []byte, until time.Time) (wire.Head, error) {
	if !a.conn.Ready(idleTimeout) {
		if err := a.conn.Open(ctx); err != nil {
			return wire.Head{}, err
		}
	}
	if err := a.conn.Send(head, body, until); err != nil {
		return wire.Head{}, err
	}
	return a.conn.Head()
}

// listen reads a stream to its end.
func (a *Asker) listen(out *Asked, began time.Duration) error {
	st := &a.line.stream
	st.reset(false, true)
	a.line.events.reset()
	for {
		part, at, err := a.conn.Body()
		before := st.visible
		if bad := a.line.events.feed(part, st.take); bad != nil {
			return bad
		}
		if before == 0 && st.visible > 0 {
			out.First = at - began
		}
		out.Total = at - began
		if !st.done && err == nil {
			continue
		}
		if _, bad := st.complete(1, err); bad != nil {
			return bad
		}
		for err == nil { // what may follow the end
			_, _, err = a.conn.Body()
		}
		if !errors.Is(err, io.EOF) {
			return err
		}
		return json.Unmarshal(append(append([]byte{'"'}, st.heard...), '"'), &out.Text)
	}
}
