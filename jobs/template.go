package jobs

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Template is an operator's recipe for a job: users choose values, not programs.
type Template struct {
	Name     string
	Kind     Kind
	Command  []string // program and arguments, no shell; "{name}" stands for a parameter
	Params   []Param
	Shape    string // smallest MIG profile that will do, "" = any
	MinWidth int
	MaxWidth int
	Priority int
	Grace    time.Duration // from the checkpoint signal to the kill; 0 = Options.Grace
	Env      []string      // "KEY=value"
	// FineTunes are the models that fine-tuning jobs train with it.
	FineTunes []string

	Expected time.Duration // what its jobs are thought to run on one slice, 0 = unknown
	Deadline time.Duration // after submission, for jobs that name none; 0 = none
	Retries  int           // of jobs that name none
	KeepFor  time.Duration // of jobs that name none, and the most they can ask for; 0 = Options.KeepFor
	Limits   Limits        // a job can only lower them
	Session  SessionTerms  // kind session only
	Suspend  bool          // its jobs may be suspended when their slice is wanted back
	// Checkpoints is the folder of a job's checkpoints, "{job}" stands for its id;
	// "" = in the data folder. It is the operator's: nothing in it is removed
	// unless ClearCheckpoints.
	Checkpoints      string
	ClearCheckpoints bool
}

// Param is one value that a user may choose.
type Param struct {
	Name    string
	Type    ParamType
	Default string // "" = must be given
	Min     float64
	Max     float64  // numbers: bounds; text: Max is the greatest length
	Choices []string // type choice
}

// ParamType is the type of a parameter.
type ParamType string

// The types of parameters.
const (
	ParamInt    ParamType = "int"
	ParamFloat  ParamType = "float"
	ParamText   ParamType = "text"
	ParamChoice ParamType = "choice"
)

var paramName = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)

// builtins are filled in by the manager: the aloft binary and the data folder.
var builtins = []string{"aloft", "data"}

var placeholder = regexp.MustCompile(`\{([a-z][a-z0-9_]*)\}`)

// Validate checks the template by itself: a user can then only be wrong in values.
func (t Template) Validate() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("job template %q: "+format, append([]any{t.Name}, args...)...)
	}
	switch {
	case t.Name == "":
		return bad("has no name")
	case !slices.Contains([]Kind{KindTrain, KindQuantize, KindEvaluate, KindSession}, t.Kind):
		return bad("kind is %q, want train, quantize, evaluate or session", t.Kind)
	case len(t.Command) == 0 || t.Command[0] == "":
		return bad("has no command")
	case t.MinWidth < 0 || t.MaxWidth < 0 || t.MaxWidth > 0 && t.MaxWidth < t.MinWidth:
		return bad("width from %d to %d is no range", t.MinWidth, t.MaxWidth)
	case t.Priority < -maxPriority || t.Priority > maxPriority:
		return bad("priority is %d, want %d to %d", t.Priority, -maxPriority, maxPriority)
	case t.Grace < 0 || t.Grace > MaxGrace:
		return bad("grace is %v, want 0 to %v", t.Grace, MaxGrace)
	}
	if err := errors.Join(t.validTuner(), t.validTerms()); err != nil {
		return bad("%w", err)
	}
	known := slices.Clone(builtins)
	for _, p := range t.Params {
		if err := p.validate(); err != nil {
			return bad("%w", err)
		}
		if slices.Contains(known, p.Name) {
			return bad("parameter %q is there twice or reserved", p.Name)
		}
		known = append(known, p.Name)
	}
	for _, arg := range t.Command {
		for _, m := range placeholder.FindAllStringSubmatch(arg, -1) {
			if !slices.Contains(known, m[1]) {
				return bad("argument %q names no parameter", arg)
			}
		}
	}
	for _, e := range t.Env {
		if k, _, ok := strings.Cut(e, "="); !ok || k == "" {
			return bad("environment %q is not KEY=value", e)
		}
	}
	return nil
}

// jobMark stands for a job's id in its template's checkpoint folder.
const jobMark = "{job}"

// validTerms checks what jobs of the template are asked for under.
func (t Template) validTerms() error {
	l := t.Limits
	switch {
	case t.Expected < 0 || t.Expected > maxAhead:
		return fmt.Errorf("expected run time is %v, want 0 to %v", t.Expected, maxAhead)
	case t.Deadline < 0 || t.Deadline > maxAhead:
		return fmt.Errorf("deadline is %v after submission, want 0 to %v", t.Deadline, maxAhead)
	case t.Retries < 0 || t.Retries > maxRetries:
		return fmt.Errorf("retries is %d, want 0 to %d", t.Retries, maxRetries)
	case t.KeepFor < 0 || t.KeepFor > maxKeepFor:
		return fmt.Errorf("keep_for is %v, want 0 to %v", t.KeepFor, maxKeepFor)
	case !(l.CPUs >= 0 && l.CPUs <= maxCPUs):
		return fmt.Errorf("limit of cpus is %v, want 0 to %v", l.CPUs, maxCPUs)
	case l.Memory < 0 || l.Disk < 0 || l.Log < 0 || l.RunTime < 0:
		return errors.New("a limit is negative")
	case t.Suspend && (t.Kind == KindSession || t.MinWidth > 1):
		return errors.New("suspend is for programs on one slice, and not for sessions")
	case t.Checkpoints != "" && (!filepath.IsAbs(t.Checkpoints) || strings.Count(t.Checkpoints, jobMark) != 1 || filepath.Base(t.Checkpoints) != jobMark):
		return fmt.Errorf("checkpoint folder is %q, want an absolute path that ends with /%s", t.Checkpoints, jobMark)
	case t.ClearCheckpoints && t.Checkpoints == "":
		return errors.New("checkpoints of the data folder are always cleared; a folder of its own is not given")
	case t.Session != (SessionTerms{}) && t.Kind != KindSession:
		return fmt.Errorf("session is for kind session, not %s", t.Kind)
	case t.Session.Idle < 0 || t.Session.Life < 0:
		return errors.New("a time of session is negative")
	}
	return nil
}

// terms fills in what the job leaves out, and refuses what is beyond the
// template: its priority, grace, width, time kept and limits are the most.
func (t Template) terms(j *Job, now time.Time) error {
	j.SavesIn, j.ClearSaves = t.Checkpoints, t.ClearCheckpoints // the job's id comes with it
	setDefault(&j.Shape, t.Shape)
	setDefault(&j.Grace, t.Grace)
	setDefault(&j.Priority, t.Priority)
	least := max(1, t.MinWidth)
	widest := max(least, t.MaxWidth) // one slice where the template says nothing
	setDefault(&j.MinWidth, least)
	setDefault(&j.MaxWidth, max(widest, j.MinWidth))
	setDefault(&j.Expected, t.Expected)
	setDefault(&j.Retries, t.Retries)
	setDefault(&j.KeepFor, t.KeepFor)
	if j.Deadline.IsZero() && t.Deadline > 0 {
		j.Deadline = now.Add(t.Deadline)
	}
	l, most := &j.Limits, t.Limits
	setDefault(&l.CPUs, most.CPUs)
	setDefault(&l.Memory, most.Memory)
	setDefault(&l.Disk, most.Disk)
	setDefault(&l.Log, most.Log)
	setDefault(&l.RunTime, most.RunTime)
	switch {
	case j.Priority > t.Priority:
		return invalid("priority", "%d is above the template's %d", j.Priority, t.Priority)
	case t.Grace > 0 && j.Grace > t.Grace:
		return invalid("grace_seconds", "%v is above the template's %v", j.Grace.Seconds(), t.Grace.Seconds())
	case j.MinWidth < least || j.MaxWidth > widest:
		return invalid("width", "from %d to %d is not within the template's %d to %d", j.MinWidth, j.MaxWidth, least, widest)
	case t.KeepFor > 0 && j.KeepFor > t.KeepFor:
		return invalid("keep_for_seconds", "%v is above the template's %v", j.KeepFor.Seconds(), t.KeepFor.Seconds())
	case most.CPUs > 0 && l.CPUs > most.CPUs:
		return invalid("limits.cpus", "%v is above the template's %v", l.CPUs, most.CPUs)
	case most.RunTime > 0 && l.RunTime > most.RunTime:
		return invalid("limits.run_seconds", "%v is above the template's %v", l.RunTime.Seconds(), most.RunTime.Seconds())
	}
	for name, n := range map[string][2]int64{"memory": {l.Memory, most.Memory}, "disk": {l.Disk, most.Disk}, "log": {l.Log, most.Log}} {
		if n[1] > 0 && n[0] > n[1] {
			return invalid("limits."+name, "%d is above the template's %d", n[0], n[1])
		}
	}
	return nil
}

func (p Param) validate() error {
	if !paramName.MatchString(p.Name) {
		return fmt.Errorf("parameter name %q: want small letters, digits and _", p.Name)
	}
	switch p.Type {
	case ParamInt, ParamFloat, ParamText:
		if p.Max <= 0 || p.Max < p.Min {
			return fmt.Errorf("parameter %q has no upper bound above its lower one", p.Name)
		}
	case ParamChoice:
		if len(p.Choices) == 0 {
			return fmt.Errorf("parameter %q has no choices", p.Name)
		}
	default:
		return fmt.Errorf("parameter %q has type %q, want int, float, text or choice", p.Name, p.Type)
	}
	if p.Default != "" {
		if err := p.check(p.Default); err != nil {
			return fmt.Errorf("default of %w", err)
		}
	}
	return nil
}

// check says whether v is a legal value.
func (p Param) check(v string) error {
	var n float64
	var err error
	switch p.Type {
	case ParamChoice:
		if !slices.Contains(p.Choices, v) {
			return invalid("params."+p.Name, "%q is not one of %v", v, p.Choices)
		}
		return nil
	case ParamText:
		if strings.HasPrefix(v, "-") || strings.ContainsRune(v, 0) { // would be read as an option
			return invalid("params."+p.Name, "text may not begin with - or hold a zero byte")
		}
		n = float64(len(v))
	case ParamInt:
		var i int64
		i, err = strconv.ParseInt(v, 10, 64)
		n = float64(i)
	case ParamFloat:
		n, err = strconv.ParseFloat(v, 64)
	}
	if err != nil || !(n >= p.Min && n <= p.Max) {
		return invalid("params."+p.Name, "%q is no %s within %s and %s", v, p.Type, Bound(p.Min), Bound(p.Max))
	}
	return nil
}

// Bound writes a parameter's bound as its users would: in digits, unless they are
// more than a number of this type has.
func Bound(x float64) string {
	if math.Abs(x) < 1e15 {
		return strconv.FormatFloat(x, 'f', -1, 64)
	}
	return strconv.FormatFloat(x, 'g', -1, 64)
}

// fill returns the command with the parameters' values in place. One pass, so a
// value that looks like a placeholder stays what it is.
func (t Template) fill(values, own map[string]string) ([]string, error) {
	all := make(map[string]string, len(t.Params)+len(own))
	for _, p := range t.Params {
		v, given := values[p.Name]
		if !given && p.Default == "" {
			return nil, invalid("params."+p.Name, "is missing")
		}
		if !given {
			v = p.Default
		}
		if err := p.check(v); err != nil {
			return nil, err
		}
		all[p.Name] = v
	}
	for k := range values {
		if _, known := all[k]; !known {
			return nil, invalid("params."+k, "template %q has no such parameter", t.Name)
		}
	}
	for k, v := range own {
		all[k] = v
	}
	args := make([]string, len(t.Command))
	for i, arg := range t.Command {
		args[i] = placeholder.ReplaceAllStringFunc(arg, func(m string) string { return all[m[1:len(m)-1]] })
	}
	return args, nil
}

// Templates returns what may be submitted, by name.
func (m *Manager) Templates() []Template {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.SortedFunc(maps.Values(m.templates), func(a, b Template) int { return strings.Compare(a.Name, b.Name) })
}
