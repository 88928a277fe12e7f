package main

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"time"

	cron "github.com/netresearch/go-cron"

	"aloft/arbiter"
)

// ArbiterConfig holds the arbiter's marks, periods and budgets.
type ArbiterConfig struct {
	Mode         string         `yaml:"mode"`
	Risk         string         `yaml:"risk"`
	Guard        time.Duration  `yaml:"guard"`
	Plan         time.Duration  `yaml:"plan"`
	Hold         time.Duration  `yaml:"hold"`
	AfterReclaim time.Duration  `yaml:"after_reclaim"`
	AgeEvery     time.Duration  `yaml:"age_every"` // a waiting job stands one priority higher for each of these; 0 = never
	MinSamples   int            `yaml:"min_samples"`
	Rho          float64        `yaml:"rho"`
	Window       time.Duration  `yaml:"window"`
	RiseQuantile float64        `yaml:"rise_quantile"`
	FastHorizon  time.Duration  `yaml:"fast_horizon"`
	SlowHorizon  time.Duration  `yaml:"slow_horizon"`
	LendAbove    float64        `yaml:"lend_above"`
	ReclaimBelow float64        `yaml:"reclaim_below"`
	Spare        int            `yaml:"spare"`
	MaxEta       float64        `yaml:"max_eta"`
	Budget       BudgetConfig   `yaml:"budget"`
	Tenants      []TenantConfig `yaml:"tenants"`
	Windows      []WindowConfig `yaml:"windows"`
}

// BudgetConfig is what each rung of the reclaim ladder may take.
type BudgetConfig struct {
	Detect time.Duration `yaml:"detect"`
	Kill   time.Duration `yaml:"kill"`
	Back   time.Duration `yaml:"back"`
}

// LimitsConfig is how many replicas a model has, and what may be lent of them.
type LimitsConfig struct {
	Replicas  ReplicasConfig `yaml:"replicas"`
	Static    int            `yaml:"static"`     // replicas that mode static keeps ready; 0 = replicas.max
	LendLimit int            `yaml:"lend_limit"` // slices lent at once; 0 = no limit
	Pin       []string       `yaml:"pin"`        // slices that only it may hold
}

// TenantConfig is what the jobs of one tenant may borrow.
type TenantConfig struct {
	Name        string  `yaml:"name"`
	Weight      float64 `yaml:"weight"`       // 0 = 1
	BorrowLimit float64 `yaml:"borrow_limit"` // in whole GPUs, of compute or memory slices, whichever is more; 0 = no limit
}

// WindowConfig is a maintenance window: again and again by cron and for, or once
// between from and until.
type WindowConfig struct {
	Name   string        `yaml:"name"`
	Cron   string        `yaml:"cron"` // minute hour day month weekday: when it begins
	For    time.Duration `yaml:"for"`
	From   string        `yaml:"from"`
	Until  string        `yaml:"until"`
	Zone   string        `yaml:"zone"`   // of the times, as Europe/Berlin; "" = UTC
	Models []string      `yaml:"models"` // nothing is lent from them
	GPUs   []int         `yaml:"gpus"`   // left alone
	Slices []string      `yaml:"slices"` // left alone
}

// windowTime is how from and until are written, besides RFC 3339.
const windowTime = "2006-01-02 15:04"

// maxWindow is the longest of a window's fors: the look back for its start is
// bounded by it.
const maxWindow = 31 * 24 * time.Hour

// sliceName is what the devices call a slice (gpu.SliceID).
var sliceName = regexp.MustCompile(`^g\d+/s\d+$`)

// span is a window that has been read.
type span struct {
	again       cron.Schedule // nil = once
	length      time.Duration
	from, until time.Time
}

// read parses the times of a window; the error says which key is wrong.
func (w *WindowConfig) read() (s span, key string, err error) {
	zone, err := time.LoadLocation(w.Zone)
	if err != nil {
		return s, ".zone", fmt.Errorf("%q is no time zone, want for example Europe/Berlin", w.Zone)
	}
	once := w.From != "" || w.Until != ""
	switch {
	case w.Cron == "" && !once:
		return s, "", fmt.Errorf("no time: want cron with for, or from with until")
	case w.Cron != "" && once:
		return s, ".cron", fmt.Errorf("cron and from or until: want one of the two")
	case w.Cron != "" && (w.For <= 0 || w.For > maxWindow):
		return s, ".for", fmt.Errorf("%v, want more than 0 and at most %v", w.For, maxWindow)
	case w.Cron != "":
		s.length = w.For
		s.again, key, err = parseCron(w.Cron, w.Zone)
		return s, key, err
	}
	for _, t := range []struct {
		key, text string
		into      *time.Time
	}{{".from", w.From, &s.from}, {".until", w.Until, &s.until}} {
		if *t.into, err = time.ParseInLocation(windowTime, t.text, zone); err != nil {
			if *t.into, err = time.Parse(time.RFC3339, t.text); err != nil {
				return s, t.key, fmt.Errorf("%q is no time, want for example \"2027-01-31 22:00\"", t.text)
			}
		}
	}
	if !s.until.After(s.from) {
		return s, ".until", fmt.Errorf("%s is not after from (%s)", w.Until, w.From)
	}
	return s, "", nil
}

// open reports whether the window is open at a moment.
func (s span) open(now time.Time) bool {
	if s.again == nil {
		return !now.Before(s.from) && now.Before(s.until)
	}
	began := s.again.Next(now.Add(-s.length)) // the first start after; zero = none within years
	return !began.IsZero() && !began.After(now)
}

// validate checks what arbiter.Policy does not know of.
func (a *ArbiterConfig) validate(c *Config) error {
	names := map[string]bool{}
	for i, t := range a.Tenants {
		path := fmt.Sprintf("arbiter.tenants[%d]", i)
		switch {
		case t.Name == "":
			return at(path+".name", "no name")
		case names[t.Name]:
			return at(path+".name", "%q is there twice", t.Name)
		case !(t.Weight >= 0) || math.IsInf(t.Weight, 0): // NaN neither
			return at(path+".weight", "%g, want 0 or more", t.Weight)
		case !(t.BorrowLimit >= 0) || math.IsInf(t.BorrowLimit, 0):
			return at(path+".borrow_limit", "%g, want 0 or more", t.BorrowLimit)
		}
		names[t.Name] = true
	}
	for i := range a.Windows {
		w, path := &a.Windows[i], fmt.Sprintf("arbiter.windows[%d]", i)
		if _, key, err := w.read(); err != nil {
			return at(path+key, "%w", err)
		}
		for j, m := range w.Models {
			if !slices.ContainsFunc(c.Models, func(x ModelConfig) bool { return x.Name == m }) {
				return at(fmt.Sprintf("%s.models[%d]", path, j), "there is no model %q", m)
			}
		}
		for j, g := range w.GPUs {
			if g < 0 {
				return at(fmt.Sprintf("%s.gpus[%d]", path, j), "%d, want the index of a GPU", g)
			}
		}
		if err := sliceNames(path+".slices", w.Slices); err != nil {
			return err
		}
	}
	return c.pins()
}

func sliceNames(path string, names []string) error {
	for i, s := range names {
		if !sliceName.MatchString(s) {
			return at(fmt.Sprintf("%s[%d]", path, i), "%q is no slice, want a name as aloft top shows it, for example g0/s3", s)
		}
	}
	return nil
}

// pins checks the limits of the models: a slice is one model's alone.
func (c *Config) pins() error {
	holder := map[string]string{}
	for i, m := range c.Models {
		path := fmt.Sprintf("models[%d]", i)
		if m.Static < 0 || m.Static > m.Replicas.Max || m.Static > 0 && m.Static < m.Replicas.Min {
			return at(path+".static", "%d, want 0 or between replicas.min (%d) and replicas.max (%d)", m.Static, m.Replicas.Min, m.Replicas.Max)
		}
		if m.LendLimit < 0 {
			return at(path+".lend_limit", "%d, want 0 or more", m.LendLimit)
		}
		if err := sliceNames(path+".pin", m.Pin); err != nil {
			return err
		}
		for j, s := range m.Pin {
			if other, taken := holder[s]; taken {
				return at(fmt.Sprintf("%s.pin[%d]", path, j), "%s is pinned to %s already", s, other)
			}
			holder[s] = m.Name
		}
	}
	return nil
}

// policy is what the arbiter decides by at a moment: windows open and close.
func (c *Config) policy(now time.Time) arbiter.Policy {
	a := c.Arbiter
	p := arbiter.Policy{Mode: arbiter.Mode(a.Mode), Risk: arbiter.Risk(a.Risk), LendAbove: a.LendAbove, ReclaimBelow: a.ReclaimBelow, Hold: a.Hold,
		AfterReclaim: a.AfterReclaim, MinSamples: a.MinSamples, Rho: a.Rho, Spare: a.Spare, MaxEta: a.MaxEta, AgeEvery: a.AgeEvery,
		Budget: arbiter.Budget{Detect: a.Budget.Detect, Kill: a.Budget.Kill, Back: a.Budget.Back}}
	for _, t := range a.Tenants {
		if t.Weight == 0 {
			t.Weight = 1
		}
		p.Tenants = append(p.Tenants, arbiter.Share{Tenant: t.Name, Weight: t.Weight, BorrowLimit: t.BorrowLimit})
	}
	for _, w := range c.openWindows(now) {
		p.ClosedGPUs = append(p.ClosedGPUs, w.GPUs...)
		p.ClosedSlices = append(p.ClosedSlices, w.Slices...)
		p.Frozen = p.Frozen || w.namesNothing()
	}
	return p
}

// namesNothing says that the window stops all lending.
func (w *WindowConfig) namesNothing() bool { return len(w.Models)+len(w.GPUs)+len(w.Slices) == 0 }

// openWindows are those that are open at a moment.
func (c *Config) openWindows(now time.Time) []WindowConfig {
	var out []WindowConfig
	for _, w := range c.Arbiter.Windows {
		if s, _, err := w.read(); err == nil && s.open(now) {
			out = append(out, w)
		}
	}
	return out
}

// limits are what an operator allows of a model while some windows are open. A
// window that names nothing stops all lending.
func (m *ModelConfig) limits(open []WindowConfig) arbiter.Limits {
	l := arbiter.Limits{Static: m.Static, LendLimit: m.LendLimit, Pinned: m.Pin}
	for _, w := range open {
		l.Frozen = l.Frozen || w.namesNothing() || slices.Contains(w.Models, m.Name)
	}
	return l
}
