// Package page renders what a load came to as one HTML page: a run, a search or
// a sweep, a comparison. The page needs nothing but itself: no file beside it, no
// network and no script; its charts are SVG in place, with the same figures in
// tables beside them, for print and for who cannot see them.
package page

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strconv"
)

//go:embed page.html
var source string

// page escapes by context: names come from profiles, and messages from servers.
var page = template.Must(template.New("page").Parse(source))

// document is a page before it is HTML.
type document struct {
	Title, Kind string
	Verdict     verdict
	Notes       []string
	Sections    []section
	charts      int // for their ids
}

// verdict is what the reader must not miss.
type verdict struct {
	Class   string // bad, warn, fact: how loud it is
	Text    string
	Reasons []string
}

// section is a heading with what belongs under it.
type section struct {
	Deep   bool // below another
	Title  string
	Badge  string // what marks all of it, such as a closed loop
	Texts  []string
	Charts []*chart
	Tables []table
	Folded []table // long ones
	Code   string
}

// table has text in the first columns and figures in the others.
type table struct {
	Caption string
	Head    []string
	Rows    [][]string
	Text    int  // columns of text
	Last    bool // the last column is text too
}

// Figure reports whether a column has figures.
func (t table) Figure(column int) bool {
	return column >= t.Text && !(t.Last && column == len(t.Head)-1)
}

// Message reports whether a column has long text.
func (t table) Message(column int) bool { return t.Last && column == len(t.Head)-1 }

// lean leaves out the columns of figures in which no row has one.
func (t table) lean() table {
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

// add numbers the charts of a section and appends it.
func (d *document) add(s section) {
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

func (d *document) write(w io.Writer) error {
	if err := page.Execute(w, d); err != nil {
		return fmt.Errorf("loadgen/page: %w", err)
	}
	return nil
}

// number is a figure in few characters.
func number(v float64) string {
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

// orDash is a figure, or a dash where there is none.
func orDash(v float64, is bool) string {
	if !is {
		return "–"
	}
	return number(v)
}

func percent(share float64) string { return strconv.FormatFloat(100*share, 'f', 2, 64) + " %" }

// part is n of all in per cent.
func part(n, all int) string {
	if all == 0 {
		return "–"
	}
	return percent(float64(n) / float64(all))
}
