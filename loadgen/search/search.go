// Package search finds the highest rate at which a server keeps its promise,
// and draws the curve of what it does at others.
package search
