package gpu

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// ErrDoesNotFit is wrapped when a set of profiles has no legal layout.
var ErrDoesNotFit = errors.New("does not fit")

// Layout finds a place for every entry: a profile ("3g.40gb"), or a profile
// whose start is given ("3g.40gb@4"). It finds one if there is one, always the
// same, and returns it in the order to create the instances: fixed ones first,
// then large before small. Left to itself the driver scatters small instances
// and then has no room for a large one.
func (f Family) Layout(entries []string) ([]Placement, error) {
	if len(entries) > f.Slices {
		return nil, fmt.Errorf("%d instances: %w: %s has %d memory slices", len(entries), ErrDoesNotFit, f.Name, f.Slices)
	}
	var placed []Placement
	var free []Profile
	for _, e := range entries {
		p, start, err := f.entry(e)
		if err != nil {
			return nil, err
		}
		if start < 0 {
			free = append(free, p)
		} else {
			placed = append(placed, p.at(start))
		}
	}
	if err := f.Legal(placed); err != nil {
		return nil, err
	}
	slices.SortStableFunc(free, larger)
	// Shortest first: the first list without a layout names the one that is too much.
	best := placed
	for n := 1; n <= len(free); n++ {
		found, ok := f.search(placed, free[:n], 0)
		if !ok {
			p := free[n-1]
			return nil, fmt.Errorf("%s %w on %s beside %s: legal starts are %s, at most %d",
				p.Name, ErrDoesNotFit, f.Name, describe(best), ints(p.Starts), p.Max)
		}
		best = found
	}
	return best, nil
}

func larger(a, b Profile) int {
	if a.Memory != b.Memory {
		return b.Memory - a.Memory
	}
	if a.Compute != b.Compute {
		return b.Compute - a.Compute
	}
	return strings.Compare(a.Name, b.Name)
}

// search tries every start from the given one for the first of rest, and so on.
// Equal profiles go up the axis, since their order makes no difference.
func (f Family) search(placed []Placement, rest []Profile, from int) ([]Placement, bool) {
	if len(rest) == 0 {
		return placed, true
	}
	for _, pl := range rest[0].Placements() {
		next := append(slices.Clip(placed), pl)
		if pl.Start < from || f.Legal(next) != nil {
			continue
		}
		nextFrom := 0
		if len(rest) > 1 && rest[1].Name == pl.Profile {
			nextFrom = pl.Start + 1
		}
		if found, ok := f.search(next, rest[1:], nextFrom); ok {
			return found, true
		}
	}
	return nil, false
}

// entry reads one entry of a layout; start is -1 when it is free.
func (f Family) entry(e string) (p Profile, start int, err error) {
	name, at, fixed := strings.Cut(e, "@")
	if p, err = f.profile(name); err != nil || !fixed {
		return p, -1, err
	}
	start, err = strconv.Atoi(at)
	if err != nil || start < 0 {
		return p, 0, fmt.Errorf("layout entry %.40q: want a start such as %s@%d", e, p.Name, p.Starts[0])
	}
	return p, start, nil
}

func describe(set []Placement) string {
	if len(set) == 0 {
		return "nothing"
	}
	var parts []string
	for _, pl := range set {
		parts = append(parts, pl.Profile+"@"+strconv.Itoa(pl.Start))
	}
	return strings.Join(parts, " ")
}
