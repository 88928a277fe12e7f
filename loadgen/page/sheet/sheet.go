// Package sheet renders one HTML page of charts and tables. The page needs nothing
// but itself: no file beside it, no network and no script; its charts are SVG in
// place, with the same figures in tables beside them, for print and for who cannot
// see them. loadgen/page and sim/page make their pages of it, so that both look
// the same.
package sheet

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strconv"
)

//go:embed sheet.html
var source string

// page escapes by context: names come from profiles, and messages from servers.
var page = template.Must(template.New("page").Parse(source))

// Document is a page before it is HTML.
type Document struct {
	Title, Kind string
	Verdict     Verdict
	Notes       []string
	Sections    []Section
	charts      int // for their ids
}

// Verdict is what the reader must not miss.
type Verdict struct {
	Class   string // bad, warn, fact: how loud it is
	Text    string
	Reasons []string
}

// Section is a heading with what belongs under it.
type Section struct {
	Deep   bool // below another
	Title  string
	Badge  string // what marks all of it, such as a closed loop
	Texts  []string
	Charts []*Chart
	Tables []Table
	Folded []Table // long ones
	Code   string
}

// Table has text in the first columns and figures in the others.
type Table struct {
	Caption string
	Head    []string
	Rows    [][]string
	Text    int  // columns of text
	Last    bool // the last column is text too
}

// Figure reports whether a column has figures.
func (t Table) Figure(column int) bool {
	return column >= t.Text && !(t.Last && column == len(t.Head)-1)
}

// Message reports whether a column has long text.
func (t Table) Message(column int) bool { return t.Last && column == len(t.Head)-1 }

// lean leaves out the columns of figures in which no row has one.
func (t Table) lean() Table {
	out := t
	out.Head, out.Rows = nil, make([][]string, len(t.Rows))
	for i, h := range t.Head {
		if t.Figure(i) && !slices.ContainsFunc(t.Rows, func(row []string) bool { return row[i] != "–" }) {
			continue
		}
		out.Head = append(out.Head, h)
		for k, row := range t.Rows {
			out.Rows[k] = append(out.Rows[k], row[i])
		}
	}
	return out
}

// Add numbers the charts of a section and appends it.
func (d *Document) Add(s Section) {
	kept := s.Charts[:0]
	for _, c := range s.Charts {
		if c != nil {
			d.charts++
			c.ID = "chart" + strconv.Itoa(d.charts)
			kept = append(kept, c)
		}
	}
	s.Charts = kept
	for i, t := range s.Tables {
		s.Tables[i] = t.lean()
	}
	d.Sections = append(d.Sections, s)
}

// Write writes the page.
func (d *Document) Write(w io.Writer) error {
	if err := page.Execute(w, d); err != nil {
		return fmt.Errorf("loadgen/page/sheet: %w", err)
	}
	return nil
}

// Number is a figure in few characters.
func Number(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v < 10:
		return strconv.FormatFloat(v, 'f', 3, 64)
	case v < 100:
		return strconv.FormatFloat(v, 'f', 2, 64)
	case v < 1000:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 0, 64)
}

// OrDash is a figure, or a dash where there is none.
func OrDash(v float64, is bool) string {
	if !is {
		return "–"
	}
	return Number(v)
}

// Percent is a share in per cent.
func Percent(share float64) string { return strconv.FormatFloat(100*share, 'f', 2, 64) + " %" }

// Part is n of all in per cent.
func Part(n, all int) string {
	if all == 0 {
		return "–"
	}
	return Percent(float64(n) / float64(all))
}
