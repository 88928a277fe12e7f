package main

import (
	"fmt"
	"slices"
	"strings"

	"aloft/arbiter"
)

// screen draws a status for people: plain text, at most 100 columns.
func screen(s Status) string {
	var b strings.Builder
	for _, d := range s.Devices {
		note := ""
		if d.Modelled {
			note = " (simulated: engines run on this CPU)"
		}
		if !d.Healthy {
			note += " UNHEALTHY: " + d.Reason
		}
		fmt.Fprintf(&b, "GPU %d  %s%s\n", d.Index, d.Model, note)
	}
	for _, sl := range s.Slices {
		fmt.Fprintf(&b, "  %-6s %-8s %-11s %s\n", sl.ID, sl.Shape, sl.Phase, holderOf(sl))
	}
	fmt.Fprintf(&b, "\n%-14s %6s %8s %6s %5s %9s %8s %9s %6s %5s\n", "model", "req/s", "needs", "has", "lent", "p99", "target", "headroom", "queue", "rows")
	for _, m := range s.Models {
		room := "none"
		if m.Headroom != nil {
			room = fmt.Sprintf("%3.0f%% %s", 100**m.Headroom, bar(*m.Headroom, 4))
		}
		fmt.Fprintf(&b, "%-14s %6.1f %8s %6d %5d %6.0f ms %5.0f ms %9s %6d %5d\n", m.Name, m.Rate, fmt.Sprintf("%d/%d/%d", m.Need, m.Fast, m.Slow), m.Have, m.Lent, m.P99, m.Target, room,
			m.Queue["interactive"]+m.Queue["standard"], m.Queue["offline"])
	}
	fmt.Fprintf(&b, "\n%-14s %-12s %10s %11s %6s %6s %7s %8s %6s %5s\n", "batcher", "shape", "call", "token", "margin", "knee", "largest", "tokens/s", "rows", "eta")
	for _, m := range s.Models {
		m.Batching.draw(&b, m)
	}
	if len(s.Jobs) > 0 {
		fmt.Fprintln(&b)
	}
	for _, j := range s.Jobs {
		done := "not begun"
		if j.Total > 0 {
			done = fmt.Sprintf("%s %d/%d", bar(float64(j.Done)/float64(j.Total), 12), j.Done, j.Total)
		}
		fmt.Fprintf(&b, "%-10s %-9s %-10s %s\n", short(j.ID), j.Kind, j.State, done)
	}
	a := s.Arbiter
	fmt.Fprintf(&b, "\narbiter: mode %s, risk %s", s.Mode, a.Risk)
	if a.Cap > 0 {
		fmt.Fprintf(&b, "; AT MOST %d LENT since a bound was broken", a.Cap)
	}
	if len(a.Windows) > 0 {
		fmt.Fprintf(&b, "; maintenance: %s", strings.Join(a.Windows, ", "))
	}
	fmt.Fprintf(&b, "\nlent %d of %d lendable; loans %d, reclaims %d (p99 %.2f s, bound %.1f s), broken bounds %d, violations %d\n",
		a.Lent, a.Lendable, a.Loans, a.Reclaims, a.ReclaimP99, a.Bound, a.Breaches, a.Violations)
	for _, m := range s.Models {
		if l := m.Law; l != nil {
			fmt.Fprintf(&b, "%s keeps level + %.2f x level^%g ready, never below %.2f, for %.0f s (%s)\n", m.Name, l.Rise, l.Power, l.Floor, l.Hold, l.covers())
		}
	}
	fmt.Fprintf(&b, "ledger of %.0f slice-s: %s\n", s.Ledger.Total, ledgerLine(s.Ledger))
	return b.String()
}

// covers says which rises.
func (l *LawStatus) covers() string {
	switch {
	case l.Quantile < 1e-6:
		return "no rise"
	case l.Quantile > 1:
		return fmt.Sprintf("%.3g times the worst rise", l.Quantile)
	}
	return fmt.Sprintf("the %.6g %% rise", 100*l.Quantile)
}

func holderOf(s SliceStatus) string {
	switch {
	case s.Moving && s.Job != "":
		return "-> " + short(s.Job)
	case s.Moving:
		return "-> " + s.To
	case s.Job != "" && s.Model != "":
		return short(s.Job) + "  (" + s.Model + " sleeps below)"
	case s.Job != "":
		return short(s.Job)
	}
	return s.Model
}

func bar(x float64, width int) string {
	n := int(min(max(x, 0), 1)*float64(width) + 0.5)
	return strings.Repeat("#", n) + strings.Repeat(".", width-n)
}

// short names a job on a screen: its kind and the end of its id, which differs.
func short(id string) string {
	kind, rest, ok := strings.Cut(id, "_")
	if !ok || len(rest) < 5 {
		return id
	}
	return kind + "-" + rest[len(rest)-4:]
}

// ledgerLine lists the five largest accounts.
func ledgerLine(l arbiter.Balance) string {
	accounts := slices.Clone(arbiter.Accounts)
	slices.SortStableFunc(accounts, func(a, b arbiter.Account) int {
		switch {
		case l.Share[a] > l.Share[b]:
			return -1
		case l.Share[a] < l.Share[b]:
			return 1
		}
		return 0
	})
	var parts []string
	for _, a := range accounts[:5] {
		if l.Share[a] >= 0.005 {
			parts = append(parts, fmt.Sprintf("%s %.0f%%", a, 100*l.Share[a]))
		}
	}
	return fmt.Sprintf("aloft ratio %.0f%%; %s", 100*l.Aloft, strings.Join(parts, ", "))
}
