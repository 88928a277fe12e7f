package evaluation

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"time"
)

// result makes the result of all outcomes: rows by side and row, none nil.
func (o Options) result(rows [][]*outcome, now time.Time) (Result, error) {
	r := Result{Version: Version, Set: o.Set.SetInfo, Ended: now.UTC()}
	found := make([][]found, len(rows))
	for side, s := range o.subjects() {
		found[side] = search(o.Set.Rows, rows[side], o.K)
		m := measures(o.Set.Rows, rows[side], found[side])
		m.Name, m.Bytes = s.Name, s.Bytes
		if m.Failed == len(rows[side]) {
			return Result{}, fmt.Errorf("%s answered no row: %s", s.Name, m.Error)
		}
		if m.Retrieval != nil {
			m.Retrieval.K = o.K
		}
		if side == 0 {
			r.Model = m
		} else {
			r.Against = &m
		}
		for _, a := range rows[side] {
			r.Seconds += a.Total / 1000
		}
	}
	if len(rows) == 2 {
		r.Agreement = agreement(o.Set.Rows, rows, found)
	}
	return r, nil
}

func measures(set []Row, rows []*outcome, found []found) (m Measures) {
	expected, right, documents := 0, 0, 0
	var nats, bytes, tokens, recall, mrr, ndcg []float64
	for i, a := range rows {
		if set[i].Expect != nil {
			expected++
		}
		if set[i].Document != "" {
			documents++
		}
		if a.Error != "" {
			if m.Failed++; m.Error == "" {
				m.Error = a.Error
			}
			continue
		}
		if set[i].Expect != nil && a.Right {
			right++
		}
		if set[i].Text != "" {
			nats, bytes, tokens = append(nats, a.Nats), append(bytes, float64(a.Bytes)), append(tokens, float64(a.Tokens))
		}
	}
	for _, f := range found {
		recall, mrr, ndcg = append(recall, f.recall), append(mrr, f.mrr), append(ndcg, f.ndcg)
	}
	m.ExactMatch = share(right, expected)
	m.BitsPerByte = ratio(nats, bytes, bits)
	m.Perplexity = ratio(nats, tokens, math.Exp)
	if len(found) > 0 {
		m.Retrieval = &Retrieval{Documents: documents, Recall: *mean(recall), MRR: *mean(mrr), NDCG: *mean(ndcg)}
	}
	m.Latency = latency(set, rows)
	return m
}

func bits(nats float64) float64 { return nats / math.Ln2 }

// latency is that of generations; of vectors where nothing is generated. Scoring
// a text is no request that a client makes.
func latency(set []Row, rows []*outcome) *Latency {
	var first, generated, embedded []float64
	for i, a := range rows {
		switch {
		case a.Error != "" || set[i].Text != "":
		case set[i].Query != "" || set[i].Document != "":
			embedded = append(embedded, a.Total)
		default:
			generated = append(generated, a.Total)
			if a.First > 0 { // an answer without text has no first token
				first = append(first, a.First)
			}
		}
	}
	total := generated
	if len(total) == 0 {
		total = embedded
	}
	if len(total) == 0 {
		return nil
	}
	return &Latency{FirstP50: quantile(first, 0.5), FirstP99: quantile(first, 0.99), TotalP50: *quantile(total, 0.5), TotalP99: *quantile(total, 0.99)}
}

// found is what a query found.
type found struct {
	query             int // row
	first             int // row of the document that came first
	recall, mrr, ndcg float64
}

// search ranks all documents for each query that has a vector. A document that
// has none is found by nobody.
func search(set []Row, rows []*outcome, k int) (all []found) {
	type document struct {
		row    int
		vector []float32
	}
	var documents []document
	for i, a := range rows {
		if set[i].Document != "" && a.Error == "" {
			documents = append(documents, document{i, floats(a.Vector)})
		}
	}
	if len(documents) == 0 {
		return nil
	}
	type hit struct {
		row    int
		cosine float64
	}
	hits := make([]hit, len(documents))
	for i, a := range rows {
		if set[i].Query == "" || a.Error != "" {
			continue
		}
		q := floats(a.Vector)
		for d, doc := range documents {
			hits[d] = hit{doc.row, cosine(q, doc.vector)}
		}
		slices.SortFunc(hits, func(a, b hit) int { return cmp.Or(cmp.Compare(b.cosine, a.cosine), cmp.Compare(a.row, b.row)) })
		f := found{query: i, first: hits[0].row}
		ideal := 0.0
		for n := range min(len(set[i].Relevant), k) {
			ideal += gain(n)
		}
		for n, h := range hits {
			if !slices.Contains(set[i].Relevant, set[h.row].ID) {
				continue
			}
			if f.mrr == 0 {
				f.mrr = 1 / float64(n+1)
			}
			if n < k {
				f.recall += 1 / float64(len(set[i].Relevant))
				f.ndcg += gain(n) / ideal
			}
		}
		all = append(all, f)
	}
	return all
}

// gain is that of a relevant document after n others.
func gain(n int) float64 { return 1 / math.Log2(float64(n+2)) }

func floats(b []byte) []float32 {
	v := make([]float32, len(b)/4)
	for i := range v {
		v[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return v
}

// cosine is that of two vectors of length 1; -1 of such as do not go together.
func cosine(a, b []float32) (sum float64) {
	if len(a) != len(b) {
		return -1
	}
	for i := range a {
		sum += float64(a[i]) * float64(b[i])
	}
	return sum
}

// agreement compares the rows that both sides answered.
func agreement(set []Row, rows [][]*outcome, found [][]found) *Agreement {
	var same, generated int
	var near, right, bpb, size, total []float64
	for i := range set {
		a, b := rows[0][i], rows[1][i]
		if a.Error != "" || b.Error != "" {
			continue
		}
		if set[i].Expect != nil {
			right = append(right, one(a.Right)-one(b.Right))
		}
		switch {
		case set[i].Text != "":
			n := float64(a.Bytes)
			bpb, size = append(bpb, (a.Nats/n-b.Nats/float64(b.Bytes))*n), append(size, n)
			continue
		case a.Vector == nil:
			generated++
			same += int(one(a.Text == b.Text))
		case len(a.Vector) == len(b.Vector):
			near = append(near, cosine(floats(a.Vector), floats(b.Vector)))
		}
		if a.Total > 0 && b.Total > 0 {
			total = append(total, a.Total/b.Total)
		}
	}
	g := &Agreement{SameText: share(same, generated), Cosine: mean(near), ExactMatch: mean(right),
		BitsPerByte: ratio(bpb, size, bits), Total: quantile(total, 0.5)}
	other := map[int]int{} // of the other's finds, by query
	for i, f := range found[1] {
		other[f.query] = i
	}
	var recall []float64
	first := 0
	for _, f := range found[0] {
		if i, both := other[f.query]; both {
			recall = append(recall, f.recall-found[1][i].recall)
			first += int(one(f.first == found[1][i].first))
		}
	}
	g.SameFirst, g.Recall = share(first, len(recall)), mean(recall)
	return g
}

func one(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
