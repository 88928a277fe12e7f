// Package page renders what a load came to as one HTML page: a run, a search or
// a sweep, a comparison.
package page
