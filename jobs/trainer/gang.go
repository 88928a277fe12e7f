package trainer

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"time"
)

// Gang says which member of a gang this process is. Every member draws the same
// places in the text, computes the gradients of its lanes of the batch, and makes
// the step of their mean: the members' states never differ, and one checkpoint
// is everybody's.
type Gang struct {
	Rank, World int
	Rendezvous  string // host:port where rank 0 listens
	Job         string // members of other jobs are turned away
}

const (
	// joinBound is how long a member waits for the others: they start together.
	joinBound = time.Minute
	// stepBound is how long a member may take for a step, a checkpoint of rank 0
	// included, before it counts as lost.
	stepBound = time.Minute
	redial    = 20 * time.Millisecond
)

func (g Gang) validate() error {
	switch {
	case g.World <= 1:
		return nil
	case g.World > lanes || g.Rank < 0 || g.Rank >= g.World:
		return fmt.Errorf("train: rank %d of %d, want at most %d members", g.Rank, g.World, lanes)
	case g.Rendezvous == "":
		return errors.New("train: a gang needs an address at which its members meet")
	}
	return nil
}

// hello is what a member says first: rank 0 turns strangers away, and whoever
// would begin elsewhere.
type hello struct {
	Magic       [16]byte
	Job, Data   [sha256.Size]byte
	Rank, World uint32
	Step        uint64
}

func (g Gang) hello(m *model) hello {
	h := hello{Job: sha256.Sum256([]byte(g.Job)), Data: m.data, Rank: uint32(g.Rank), World: uint32(g.World), Step: uint64(m.step)}
	copy(h.Magic[:], "aloft-gang-1\n")
	return h
}

// ring is a gang that has met: rank 0 has everybody, the others have rank 0.
type ring struct {
	Gang
	peers []*peer // by rank; nil where there is none
}

// peer is another member.
type peer struct {
	conn net.Conn
	in   *bufio.Reader
	buf  []byte
}

func newPeer(c net.Conn) *peer { return &peer{conn: c, in: bufio.NewReaderSize(c, 64<<10)} }

func (r *ring) close() {
	for _, p := range r.peers {
		if p != nil {
			p.conn.Close()
		}
	}
}

// meet brings the members together, within joinBound or until ctx ends.
func (g Gang) meet(ctx context.Context, m *model) (*ring, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, joinBound, fmt.Errorf("the members did not meet within %v", joinBound))
	defer cancel()
	r := &ring{Gang: g, peers: make([]*peer, g.World)}
	var err error
	if g.Rank == 0 {
		err = r.receive(ctx, g.hello(m))
	} else {
		err = r.call(ctx, g.hello(m))
	}
	if err != nil {
		r.close()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, fmt.Errorf("train: rank %d of %d: %w", g.Rank, g.World, err)
	}
	return r, nil
}

// receive is rank 0's part.
func (r *ring) receive(ctx context.Context, own hello) error {
	l, err := net.Listen("tcp", r.Rendezvous)
	if err != nil {
		return err
	}
	defer l.Close()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	for missing := r.World - 1; missing > 0; {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		c.SetDeadline(time.Now().Add(stepBound))
		var h hello
		if err := binary.Read(c, binary.LittleEndian, &h); err != nil || h.Magic != own.Magic || h.Job != own.Job {
			c.Close() // a stranger
			continue
		}
		k := int(h.Rank)
		if h.World != own.World || k < 1 || k >= r.World || r.peers[k] != nil {
			c.Close()
			return fmt.Errorf("a member says that it is rank %d of %d", h.Rank, h.World)
		}
		if h.Step != own.Step || h.Data != own.Data {
			c.Close()
			return fmt.Errorf("rank %d begins at step %d of its text, this one at %d", h.Rank, h.Step, own.Step)
		}
		r.peers[k] = newPeer(c)
		missing--
	}
	return nil
}

// call is the part of the others.
func (r *ring) call(ctx context.Context, own hello) error {
	var d net.Dialer
	for {
		c, err := d.DialContext(ctx, "tcp", r.Rendezvous)
		if err == nil {
			r.peers[0] = newPeer(c)
			return binary.Write(c, binary.LittleEndian, own)
		}
		select {
		case <-time.After(redial):
		case <-ctx.Done():
			return err
		}
	}
}

// step makes one step of all members together. stop is the wish of this one to
// save and stop after it; the answer is the same for all, so that they stop at the
// same step. No sum depends on how many members there are.
func (r *ring) step(m *model, stop bool) (loss float64, all bool, err error) {
	at := m.draw()
	var parts [lanes]part
	for k := r.Rank; k < lanes; k += r.World {
		m.lane(k, at, &parts[k])
	}
	if r.Rank != 0 {
		total, all, err := r.send(&parts, stop)
		if err != nil {
			return 0, false, fmt.Errorf("train: rank 0 is lost: %w", err)
		}
		m.apply(total)
		return total.loss / batch, all, nil
	}
	for rank, p := range r.peers[1:] {
		wish, err := p.parts(rank+1, r.World, &parts)
		if err != nil {
			return 0, false, fmt.Errorf("train: rank %d is lost: %w", rank+1, err)
		}
		stop = stop || wish
	}
	total := add(&parts)
	for rank, p := range r.peers[1:] {
		if err := p.write(stop, total); err != nil {
			return 0, false, fmt.Errorf("train: rank %d is lost: %w", rank+1, err)
		}
	}
	m.apply(total)
	return total.loss / batch, stop, nil
}

// send gives rank 0 this member's lanes and returns the sum of everybody's.
func (r *ring) send(parts *[lanes]part, stop bool) (*part, bool, error) {
	var own []*part
	for k := r.Rank; k < lanes; k += r.World {
		own = append(own, &parts[k])
	}
	p := r.peers[0]
	if err := p.write(stop, own...); err != nil {
		return nil, false, err
	}
	total := &part{}
	all, err := p.read(total)
	return total, all, err
}

// parts reads the lanes of a member.
func (p *peer) parts(rank, world int, parts *[lanes]part) (stop bool, err error) {
	var its []*part
	for k := rank; k < lanes; k += world {
		its = append(its, &parts[k])
	}
	return p.read(its...)
}

// A message is a byte, the wish to stop, and for each part its loss and gradient
// as little-endian float64.
func (p *peer) write(stop bool, parts ...*part) error {
	b := append(p.buf[:0], 0)
	if stop {
		b[0] = 1
	}
	for _, x := range parts {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(x.loss))
		for _, g := range x.grad {
			b = binary.LittleEndian.AppendUint64(b, math.Float64bits(g))
		}
	}
	p.buf = b
	p.conn.SetDeadline(time.Now().Add(stepBound))
	_, err := p.conn.Write(b)
	return err
}

func (p *peer) read(parts ...*part) (stop bool, err error) {
	n := 1 + len(parts)*8*(1+nParams)
	if cap(p.buf) < n {
		p.buf = make([]byte, n)
	}
	b := p.buf[:n]
	p.conn.SetDeadline(time.Now().Add(stepBound))
	if _, err := io.ReadFull(p.in, b); err != nil {
		return false, err
	}
	stop, b = b[0] == 1, b[1:]
	next := func() float64 {
		v := math.Float64frombits(binary.LittleEndian.Uint64(b))
		b = b[8:]
		return v
	}
	for _, x := range parts {
		x.loss = next()
		for i := range x.grad {
			x.grad[i] = next()
		}
	}
	return stop, nil
}
