// Package page renders a report as one self-contained HTML page.
package page
