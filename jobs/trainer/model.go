package trainer

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
)

// The network: the last `context` characters, each embedded in `embed` numbers,
// a tanh layer of `hidden`, a softmax over the alphabet (a neural n-gram model,
// Bengio et al. 2003). Sizes are such that a step takes about a millisecond.
const (
	window  = 8
	embed   = 10
	hidden  = 48
	batch   = 16
	letters = 33 // 26 letters, space, and , . ; : ' ?

	inputs  = window * embed
	nEmbed  = letters * embed
	nHidden = hidden * (inputs + 1) // with bias
	nOut    = letters * (hidden + 1)
	nParams = nEmbed + nHidden + nOut

	rate   = 0.003 // Adam (Kingma and Ba 2015), its usual constants
	beta1  = 0.9
	beta2  = 0.999
	adamEp = 1e-8
)

// model is everything that decides the next step: weights, Adam's moments, step
// and random state. Every sum runs in a fixed order in one goroutine, so equal
// states give equal successors, bit for bit.
type model struct {
	text []byte // as letters
	data [sha256.Size]byte
	step int
	rate float64 // of learning
	rng  *rand.PCG

	w, m, v [nParams]float64
	grad    [nParams]float64
}

func newModel(text []byte, seed uint64) *model {
	m := &model{text: encode(text), data: sha256.Sum256(text), rate: rate, rng: rand.NewPCG(seed, 0x616c6f6674)}
	r := rand.New(m.rng)
	for i := range m.w[:nEmbed] {
		m.w[i] = r.NormFloat64() * 0.1
	}
	for i := nEmbed; i < nEmbed+nHidden; i++ {
		m.w[i] = r.NormFloat64() / math.Sqrt(inputs)
	}
	for i := nEmbed + nHidden; i < nParams; i++ {
		m.w[i] = r.NormFloat64() * 0.01
	}
	return m
}

// encode maps bytes to letters; what is not in the alphabet is a space.
func encode(text []byte) []byte {
	out := make([]byte, len(text))
	for i, c := range bytes.ToLower(text) {
		switch p := bytes.IndexByte([]byte(",.;:'?"), c); {
		case c >= 'a' && c <= 'z':
			out[i] = c - 'a'
		case p >= 0:
			out[i] = byte(27 + p)
		default:
			out[i] = 26
		}
	}
	return out
}

// lanes are the parts of a batch. Their gradients are summed one after the other,
// so that members of a gang, each with some of the lanes, come to the same sums as
// one process that has them all.
const lanes = 4

// part is what one lane, or all of them, adds to a step.
type part struct {
	loss float64 // summed
	grad [nParams]float64
}

// train does one step alone and returns the mean loss of its batch.
func (m *model) train() float64 {
	at := m.draw()
	var parts [lanes]part
	for k := range parts {
		m.lane(k, at, &parts[k])
	}
	total := add(&parts)
	m.apply(total)
	return total.loss / batch
}

// draw chooses the places of a batch.
func (m *model) draw() (at [batch]int) {
	r := rand.New(m.rng)
	for i := range at {
		at[i] = r.IntN(len(m.text) - window)
	}
	return at
}

// lane computes one part of a batch.
func (m *model) lane(k int, at [batch]int, out *part) {
	m.grad = [nParams]float64{}
	for i := k; i < batch; i += lanes {
		out.loss += m.example(m.text[at[i]:at[i]+window], m.text[at[i]+window])
	}
	out.grad = m.grad
}

func add(parts *[lanes]part) *part {
	total := &parts[0]
	for k := 1; k < lanes; k++ {
		total.loss += parts[k].loss
		for i, g := range parts[k].grad {
			total.grad[i] += g
		}
	}
	return total
}

// apply makes the step of a batch's gradient.
func (m *model) apply(total *part) {
	m.step++
	c1 := 1 - math.Pow(beta1, float64(m.step))
	c2 := 1 - math.Pow(beta2, float64(m.step))
	for i, g := range total.grad {
		g /= batch
		m.m[i] = beta1*m.m[i] + (1-beta1)*g
		m.v[i] = beta2*m.v[i] + (1-beta2)*g*g
		m.w[i] -= m.rate * (m.m[i] / c1) / (math.Sqrt(m.v[i]/c2) + adamEp)
	}
}

// example adds one example's gradient and returns its loss.
func (m *model) example(in []byte, want byte) float64 {
	var x, dx [inputs]float64
	var h, dh [hidden]float64
	var p [letters]float64
	for i, c := range in {
		copy(x[i*embed:(i+1)*embed], m.w[int(c)*embed:])
	}
	w1, g1 := m.w[nEmbed:nEmbed+nHidden], m.grad[nEmbed:nEmbed+nHidden]
	w2, g2 := m.w[nEmbed+nHidden:], m.grad[nEmbed+nHidden:]
	for i := range h {
		row := w1[i*(inputs+1) : (i+1)*(inputs+1)]
		sum := row[inputs]
		for j, v := range x {
			sum += row[j] * v
		}
		h[i] = math.Tanh(sum)
	}
	top := math.Inf(-1)
	for i := range p {
		row := w2[i*(hidden+1) : (i+1)*(hidden+1)]
		sum := row[hidden]
		for j, v := range h {
			sum += row[j] * v
		}
		p[i] = sum
		top = max(top, sum)
	}
	total := 0.0
	for i := range p {
		p[i] = math.Exp(p[i] - top)
		total += p[i]
	}
	for i := range p {
		p[i] /= total
	}
	loss := -math.Log(max(p[want], 1e-300))

	p[want]-- // now the gradient of the loss by the scores
	for i, d := range p {
		row, g := w2[i*(hidden+1):(i+1)*(hidden+1)], g2[i*(hidden+1):(i+1)*(hidden+1)]
		for j, v := range h {
			g[j] += d * v
			dh[j] += d * row[j]
		}
		g[hidden] += d
	}
	for i, d := range dh {
		d *= 1 - h[i]*h[i]
		row, g := w1[i*(inputs+1):(i+1)*(inputs+1)], g1[i*(inputs+1):(i+1)*(inputs+1)]
		for j, v := range x {
			g[j] += d * v
			dx[j] += d * row[j]
		}
		g[inputs] += d
	}
	for i, c := range in {
		g := m.grad[int(c)*embed : (int(c)+1)*embed]
		for j := range g {
			g[j] += dx[i*embed+j]
		}
	}
	return loss
}

// sum is the SHA-256 of the weights, as little-endian float64.
func (m *model) sum() string {
	h := sha256.New()
	_ = binary.Write(h, binary.LittleEndian, m.w[:]) // a hash never fails
	return hex.EncodeToString(h.Sum(nil))
}

// The stored form: magic, data's hash, step, random state (its length first),
// weights, moments, and a SHA-256 over all of that.
const magic = "aloft-trainer-1\n"

func (m *model) encode() ([]byte, error) {
	state, err := m.rng.MarshalBinary()
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	b.WriteString(magic)
	b.Write(m.data[:])
	for _, v := range []any{uint64(m.step), uint64(len(state)), state, m.w[:], m.m[:], m.v[:]} {
		if err := binary.Write(&b, binary.LittleEndian, v); err != nil {
			return nil, err
		}
	}
	sum := sha256.Sum256(b.Bytes())
	b.Write(sum[:])
	return b.Bytes(), nil
}

// save writes a checkpoint that is whole or not there: to a temporary file,
// synced, then renamed, then the folder is synced.
func (m *model) save(path string) (err error) {
	b, err := m.encode()
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".writing-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	if _, err = f.Write(b); err != nil {
		return err
	}
	if err = f.Sync(); err != nil {
		return err
	}
	if err = f.Close(); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// maxState is far above what the random state needs.
const maxState = 1 << 10

// load replaces the state by a checkpoint's; on an error m must not be used.
func (m *model) load(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	bad := func(why string) error { return fmt.Errorf("checkpoint %s: %s", path, why) }
	if len(b) < len(magic)+sha256.Size || string(b[:len(magic)]) != magic {
		return bad("is not one of this program")
	}
	body := b[:len(b)-sha256.Size]
	if sha256.Sum256(body) != [sha256.Size]byte(b[len(body):]) {
		return bad("is damaged or cut off")
	}
	in := bytes.NewReader(body[len(magic):])
	var data [sha256.Size]byte
	var step, length uint64
	err = errors.Join(binary.Read(in, binary.LittleEndian, &data), binary.Read(in, binary.LittleEndian, &step),
		binary.Read(in, binary.LittleEndian, &length))
	switch {
	case err != nil || length > maxState || step > maxSteps:
		return bad("is damaged")
	case data != m.data:
		return bad("was trained on other data")
	}
	state := make([]byte, length)
	err = errors.Join(binary.Read(in, binary.LittleEndian, &state), m.rng.UnmarshalBinary(state))
	for _, part := range []*[nParams]float64{&m.w, &m.m, &m.v} {
		err = errors.Join(err, binary.Read(in, binary.LittleEndian, part[:]))
	}
	if err != nil || in.Len() != 0 {
		return bad("does not fit this program")
	}
	m.step = int(step)
	return nil
}
