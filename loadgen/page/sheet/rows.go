package sheet

// Of a chart of rows, in SVG units.
const (
	rowHigh = 26.0 // from one to the next
	barHigh = 18.0
	barLeft = 190.0 // room for their names
)

// Row is a bar with its name: parts of one whole, from left to right, or spans
// with gaps between them.
type Row struct {
	Name  string
	Parts []Span
}

// Span is a part of a row, from and to as shares of its length.
type Span struct {
	From, To    float64
	Class, Text string
}

// Key is an entry of a legend: what a class of bars means.
type Key struct{ Class, Name string }

// NewRows is a chart of rows, one below the other.
func NewRows(title, desc string, legend []Key, rows []Row) *Chart {
	c := &Chart{Title: title, Height: rowHigh*float64(len(rows)) + 8, Desc: desc}
	for _, k := range legend {
		c.Legend = append(c.Legend, box{Class: k.Class, Text: k.Name})
	}
	for i, r := range rows {
		y := rowHigh*float64(i) + 4
		c.Labels = append(c.Labels, tick{pos(y + 13), Shortened(r.Name, 28)})
		for _, p := range r.Parts {
			c.Bars = append(c.Bars, box{pos(barLeft + (chartWidth-barLeft-8)*p.From), pos(y), pos((chartWidth - barLeft - 8) * (p.To - p.From)), pos(barHigh), p.Class, p.Text})
		}
	}
	return c
}

// Shortened is a text of so many characters at most.
func Shortened(s string, most int) string {
	if r := []rune(s); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return s
}
