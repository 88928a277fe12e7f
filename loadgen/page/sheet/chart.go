package sheet

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// The drawing, in SVG units: the page scales it. Charts are drawn here and not by
// a library, see DECISIONS.md: colours come from the page's style, for light,
// dark and paper, and every chart has a title and a description.
const (
	chartWidth  = 640.0
	chartHeight = 260.0
	plotLeft    = 62.0
	plotRight   = chartWidth - 22
	plotTop     = 12.0
	plotBottom  = chartHeight - 42
)

// Chart is one drawing with its words.
type Chart struct {
	ID, Title, Desc string
	X, Y            Axis
	Height          float64
	Lines           []stroke
	Bars            []box
	Dots            []dot
	Marks           []mark
	Labels          []tick // of rows of bars
	Legend          []box  // of bars: class and text
	Hovers          []box  // invisible: they say what is below the pointer
}

// Axis is a scale with its ticks.
type Axis struct {
	Label string
	Ticks []tick
	scale
}

// tick is a place on an axis, or beside rows, and its words.
type tick struct{ At, Label string }

// stroke is a line of a series, and its entry in the legend.
type stroke struct{ Class, Name, Path string }

// box is a rectangle that may tell something.
type box struct{ X, Y, W, H, Class, Text string }

// dot is a point that tells its figures.
type dot struct{ X, Y, Class, Text string }

// mark is a line of reference across the plot.
type mark struct {
	Vertical        bool
	At, Drop, Label string // Drop: of the label below the line
}

// The edges of the plot, for the template.
func (c *Chart) Left() float64   { return plotLeft }
func (c *Chart) Right() float64  { return plotRight }
func (c *Chart) Top() float64    { return plotTop }
func (c *Chart) Bottom() float64 { return c.Height - (chartHeight - plotBottom) }
func (c *Chart) Width() float64  { return chartWidth }
func (c *Chart) Middle() float64 { return (plotLeft + plotRight) / 2 }

// classes are the series in their order: each has a colour and a dash pattern of
// its own, so that they can be told apart in black on white.
var classes = []string{"s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9"}

// Class is the class of the i-th series.
func Class(i int) string { return classes[i%len(classes)] }

// scale maps values to positions.
type scale struct {
	lo, hi, from, to float64
	log              bool
}

// at is where a value lies; one outside the scale at its end.
func (s scale) at(v float64) float64 {
	lo, hi := s.lo, s.hi
	if s.log {
		v, lo, hi = math.Log10(max(v, s.lo)), math.Log10(lo), math.Log10(hi)
	}
	return s.from + (min(max(v, lo), hi)-lo)/(hi-lo)*(s.to-s.from)
}

// span is where an axis lies in the drawing.
type span struct{ from, to float64 }

var flat, upright = span{plotLeft, plotRight}, span{plotBottom, plotTop}

// pos is a position as text, to a hundredth.
func pos(v float64) string { return strconv.FormatFloat(math.Round(v*100)/100, 'f', -1, 64) }

// linear is an axis from 0 to at least the greatest value.
func linear(label string, greatest float64, on span) Axis {
	step := NiceStep(greatest / 5)
	hi := step * math.Max(1, math.Ceil(greatest/step-1e-9))
	a := Axis{Label: label, scale: scale{lo: 0, hi: hi, from: on.from, to: on.to}}
	for i := 0; float64(i)*step <= hi*(1+1e-9); i++ {
		a.Tick(float64(i)*step, Plain(float64(i)*step))
	}
	return a
}

// NiceStep is the least of 1, 2, 5 times a power of ten that is not less.
func NiceStep(v float64) float64 {
	if !(v > 0) || math.IsInf(v, 0) {
		return 1
	}
	unit := math.Pow(10, math.Floor(math.Log10(v)))
	for _, by := range []float64{1, 2, 5} {
		if v <= by*unit*(1+1e-9) {
			return by * unit
		}
	}
	return 10 * unit
}

// logarithmic is an axis that holds the values from least to greatest, both
// above 0, and ends at 1, 2 or 5 times a power of ten.
func logarithmic(label string, least, greatest float64, on span) Axis {
	if !(least > 0) {
		least = 0.001
	}
	greatest = max(greatest, least)
	hi := NiceStep(greatest)
	lo := 1 / NiceStep(1/least)
	if hi < 5*lo { // at least some room
		lo, hi = 1/NiceStep(2/lo), NiceStep(2*hi)
	}
	a := Axis{Label: label, scale: scale{lo: lo, hi: hi, from: on.from, to: on.to, log: true}}
	decades := math.Log10(hi / lo)
	for e := math.Floor(math.Log10(lo) + 1e-9); e <= math.Log10(hi)+1e-9; e++ {
		for _, by := range []float64{1, 2, 5} {
			if v := by * math.Pow(10, e); v >= lo*(1-1e-9) && v <= hi*(1+1e-9) && (by == 1 || decades <= 3) {
				a.Tick(v, Plain(v))
			}
		}
	}
	return a
}

// Tick marks a value.
func (a *Axis) Tick(v float64, label string) { a.Ticks = append(a.Ticks, tick{pos(a.at(v)), label}) }

// Plain is a round number without an exponent, to read on an axis.
func Plain(v float64) string {
	text := strconv.FormatFloat(v, 'f', 6, 64)
	return strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
}

// Point of a series; one without a value breaks the line.
type Point struct {
	X, Y float64
	None bool
}

// Line draws a series, in the colour that comes next.
func (c *Chart) Line(name string, points []Point) { c.Series(len(c.Lines), name, points) }

// Series draws the i-th series; a name of "" leaves it out of the legend.
func (c *Chart) Series(i int, name string, points []Point) {
	c.Lines = append(c.Lines, stroke{Class(i), name, c.path(points)})
}

func (c *Chart) path(points []Point) string {
	var b strings.Builder
	pen := "M"
	for i, p := range points {
		if p.None {
			pen = "M"
			continue
		}
		fmt.Fprintf(&b, "%s%s %s", pen, pos(c.X.at(p.X)), pos(c.Y.at(p.Y)))
		if pen == "M" && (i+1 == len(points) || points[i+1].None) {
			b.WriteString("h0.1") // a lone point shows by its round ends
		}
		pen = "L"
	}
	return b.String()
}

// Band fills between two series of the same places.
func (c *Chart) Band(low, high []Point) {
	points := append([]Point(nil), high...)
	for i := len(low) - 1; i >= 0; i-- {
		points = append(points, low[i])
	}
	c.Lines = append(c.Lines, stroke{Class: "band", Path: c.path(points) + "Z"})
}

// Area fills between two series of the same places, with an entry in the legend
// unless the name is "".
func (c *Chart) Area(class, name string, low, high []Point) {
	c.Band(low, high)
	c.Lines[len(c.Lines)-1].Class = class
	if name != "" {
		c.Legend = append(c.Legend, box{Class: class, Text: name})
	}
}

// Dot marks a point that tells its figures.
func (c *Chart) Dot(p Point, class, text string) {
	c.Dots = append(c.Dots, dot{pos(c.X.at(p.X)), pos(c.Y.at(p.Y)), class, text})
}

// Across draws a line of reference at a value of y, if the plot has it.
func (c *Chart) Across(y float64, label string) {
	if y > c.Y.lo && y <= c.Y.hi {
		m := mark{At: pos(c.Y.at(y)), Drop: "-4", Label: label}
		if c.Y.at(y) < plotTop+14 { // above it there is no room
			m.Drop = "13"
		}
		c.Marks = append(c.Marks, m)
	}
}

// Down draws one at a value of x.
func (c *Chart) Down(x float64, label string) {
	if x >= c.X.lo && x <= c.X.hi {
		c.Marks = append(c.Marks, mark{Vertical: true, At: pos(c.X.at(x)), Drop: strconv.Itoa(10 + 14*(len(c.Marks)%2)), Label: label})
	}
}

// Hover lets what is drawn between two values of x tell its figures.
func (c *Chart) Hover(from, to float64, text string) {
	at, end := c.X.at(from), c.X.at(to)
	c.Hovers = append(c.Hovers, box{pos(at), pos(plotTop), pos(end - at), pos(c.Bottom() - plotTop), "", text})
}

// NewChart is an empty plot.
func NewChart(title, desc string, x, y Axis) *Chart {
	return &Chart{Title: title, Desc: desc, X: x, Y: y, Height: chartHeight}
}

// XLinear is the axis from left to right, from 0 to at least the greatest value.
func XLinear(label string, greatest float64) Axis { return linear(label, greatest, flat) }

// YLinear is the one from the bottom up.
func YLinear(label string, greatest float64) Axis { return linear(label, greatest, upright) }

// XLog is the axis from left to right on a log scale.
func XLog(label string, least, greatest float64) Axis {
	return logarithmic(label, least, greatest, flat)
}

// YLog is the one from the bottom up.
func YLog(label string, least, greatest float64) Axis {
	return logarithmic(label, least, greatest, upright)
}

// XAxis is an axis from lo to hi without ticks: see Tick.
func XAxis(label string, lo, hi float64) Axis {
	return Axis{Label: label, scale: scale{lo: lo, hi: hi, from: flat.from, to: flat.to}}
}

// YAxis is the one from the bottom up.
func YAxis(label string, lo, hi float64) Axis {
	return Axis{Label: label, scale: scale{lo: lo, hi: hi, from: upright.from, to: upright.to}}
}
