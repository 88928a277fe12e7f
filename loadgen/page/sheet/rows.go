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

// Span is a part of a row, from and to as shares of its length, or of a lane.
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

// laneHigh is from one lane to the next, in SVG units.
const laneHigh = 6.0

// NewLanes is a plot over time with lanes below each other, for Lane to fill; what
// it shows is to be said in its Desc.
func NewLanes(title string, x Axis, legend []Key, lanes int) *Chart {
	bottom := plotTop + laneHigh*float64(lanes)
	c := &Chart{Title: title, X: x, Height: bottom + chartHeight - plotBottom}
	c.Y = Axis{scale: scale{hi: float64(max(lanes, 1)), from: bottom, to: plotTop}}
	for _, k := range legend {
		c.Legend = append(c.Legend, box{Class: k.Class, Text: k.Name})
	}
	return c
}

// Lane draws a span in x over the lanes from top on, high of them.
func (c *Chart) Lane(top, high int, s Span) {
	at, end := c.X.at(s.From), c.X.at(s.To)
	c.Bars = append(c.Bars, box{pos(at), pos(c.Y.at(c.Y.hi - float64(top))), pos(end - at), pos(laneHigh*float64(high) - 0.5), s.Class, s.Text})
}

// LaneName names the lanes from top on, high of them.
func (c *Chart) LaneName(top, high int, name string) {
	c.Y.Tick(c.Y.hi-float64(top)-float64(high)/2, name)
}

// Shortened is a text of so many characters at most.
func Shortened(s string, most int) string {
	if r := []rune(s); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return s
}
