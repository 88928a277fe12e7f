package main

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	cron "github.com/netresearch/go-cron"

	"aloft/gpu/proc"
	"aloft/jobs"
)

// TemplateConfig is an operator's job template.
type TemplateConfig struct {
	Name        string            `yaml:"name"`
	Kind        string            `yaml:"kind"`
	Command     []string          `yaml:"command"`
	Params      []ParamConfig     `yaml:"params"`
	Env         map[string]string `yaml:"env"`
	Shape       string            `yaml:"shape"`
	Width       ReplicasConfig    `yaml:"width"`
	Priority    int               `yaml:"priority"`
	Grace       time.Duration     `yaml:"grace"`
	Expected    time.Duration     `yaml:"expected"`
	Deadline    time.Duration     `yaml:"deadline"`
	Retries     int               `yaml:"retries"`
	KeepFor     time.Duration     `yaml:"keep_for"`
	Limits      JobLimitsConfig   `yaml:"limits"`
	Checkpoints string            `yaml:"checkpoints"` // "{job}" is the job's id; "" = in the data folder
	Clear       bool              `yaml:"clear_checkpoints"`
	FineTune    FineTuneConfig    `yaml:"fine_tune"`
	Session     SessionConfig     `yaml:"session"`
	Suspend     bool              `yaml:"suspend"` // where jobs.suspend allows it
}

// SuspendConfig lets jobs stand still in this machine's memory when their slice is
// wanted back.
type SuspendConfig struct {
	Program string        `yaml:"program"` // NVIDIA's cuda-checkpoint; "" = no job is suspended
	Memory  int64         `yaml:"memory"`  // bytes that all suspended jobs together may have
	Longest time.Duration `yaml:"longest"` // that one waits for its slice
}

// SessionConfig is what a template of kind session says; 0 = jobs.sessions.
type SessionConfig struct {
	Idle    time.Duration `yaml:"idle"`
	Longest time.Duration `yaml:"longest"`
	Yields  bool          `yaml:"yields"` // other jobs may take the slice also while it is used
}

// SessionsConfig bounds sessions.
type SessionsConfig struct {
	Idle      time.Duration `yaml:"idle"`      // of those that say nothing
	MostIdle  time.Duration `yaml:"most_idle"` // the longest that may be asked for
	Warn      time.Duration `yaml:"warn"`      // so long before the end
	Longest   time.Duration `yaml:"longest"`   // that one runs, however busy
	PerTenant int           `yaml:"per_tenant"`
}

// JobLimitsConfig bounds what a job of a template may use; 0 = no limit.
type JobLimitsConfig struct {
	CPUs    float64       `yaml:"cpus"`
	Memory  int64         `yaml:"memory"` // bytes, as disk and log
	Disk    int64         `yaml:"disk"`
	Log     int64         `yaml:"log"`
	RunTime time.Duration `yaml:"run_time"`
}

// FineTuneConfig says what /v1/fine_tuning/jobs trains with a template.
type FineTuneConfig struct {
	Models []string `yaml:"models"` // configured models
}

// ParamConfig is one value that a user may choose.
type ParamConfig struct {
	Name    string   `yaml:"name"`
	Type    string   `yaml:"type"`
	Default string   `yaml:"default"`
	Min     float64  `yaml:"min"`
	Max     float64  `yaml:"max"`
	Choices []string `yaml:"choices"`
}

// ScheduleConfig makes jobs of a template again and again.
type ScheduleConfig struct {
	Name     string            `yaml:"name"`
	Cron     string            `yaml:"cron"` // minute hour day month weekday
	Zone     string            `yaml:"zone"` // of the times, as Europe/Berlin; "" = UTC
	Template string            `yaml:"template"`
	Params   map[string]string `yaml:"params"`
	Tenant   string            `yaml:"tenant"`  // whose jobs they are
	Overlap  bool              `yaml:"overlap"` // also while the one before is unfinished
}

func (c *Config) templates() []jobs.Template {
	var out []jobs.Template
	library, noLibrary := c.library() // for programs that quantize or evaluate; those say themselves that there is none
	for _, t := range c.Jobs.Templates {
		l := t.Limits
		j := jobs.Template{Suspend: t.Suspend, Name: t.Name, Kind: jobs.Kind(t.Kind), Command: t.Command, Shape: t.Shape,
			MinWidth: t.Width.Min, MaxWidth: t.Width.Max, Priority: t.Priority, Grace: t.Grace, FineTunes: t.FineTune.Models,
			Expected: t.Expected, Deadline: t.Deadline, Retries: t.Retries, KeepFor: t.KeepFor, Checkpoints: t.Checkpoints, ClearCheckpoints: t.Clear,
			Session: jobs.SessionTerms{Idle: t.Session.Idle, Life: t.Session.Longest, Yields: t.Session.Yields},
			Limits:  jobs.Limits{CPUs: l.CPUs, Memory: l.Memory, Disk: l.Disk, Log: l.Log, RunTime: l.RunTime}}
		for k, v := range t.Env {
			j.Env = append(j.Env, k+"="+v)
		}
		slices.Sort(j.Env)
		if _, own := t.Env["ALOFT_ENGINE_LIB"]; !own && noLibrary == nil {
			j.Env = append(j.Env, "ALOFT_ENGINE_LIB="+library)
		}
		for _, p := range t.Params {
			j.Params = append(j.Params, jobs.Param{Name: p.Name, Type: jobs.ParamType(p.Type), Default: p.Default,
				Min: p.Min, Max: p.Max, Choices: p.Choices})
		}
		out = append(out, j)
	}
	return out
}

// defaultSuspended is how long a job stands still at most. Long enough for a burst;
// short beside what a job would else do from its checkpoint on another slice.
const defaultSuspended = 5 * time.Minute

// suspending is what jobs are suspended with, before the tool was tried; nil = none is.
func (c *Config) suspending() *jobs.Suspending {
	s := c.Jobs.Suspend
	if s == (SuspendConfig{}) {
		return nil
	}
	return &jobs.Suspending{Tool: proc.Checkpointer{Program: s.Program}, Memory: s.Memory, Longest: cmp.Or(s.Longest, defaultSuspended)}
}

func (c *Config) sessions() jobs.Sessions {
	s := c.Jobs.Sessions
	return jobs.Sessions{Idle: s.Idle, MostIdle: s.MostIdle, Warn: s.Warn, Life: s.Longest, PerTenant: s.PerTenant}
}

// parseCron reads the five fields of a cron line, in a zone. "CRON_TZ=" of the
// line itself is left to zone; the error says which of the two keys is wrong.
func parseCron(line, zone string) (next cron.Schedule, key string, err error) {
	place, err := time.LoadLocation(zone)
	if err != nil {
		return nil, ".zone", fmt.Errorf("%q is no time zone, want for example Europe/Berlin", zone)
	}
	if next, err = cron.ParseStandard("CRON_TZ=" + place.String() + " " + line); err != nil {
		return nil, ".cron", fmt.Errorf("%q: %w; want minute hour day month weekday, for example \"0 2 * * 6\"", line, err)
	}
	return next, "", nil
}

// schedules are the jobs' schedules; the error is at its key.
func (c *Config) schedules() ([]jobs.Schedule, error) {
	var out []jobs.Schedule
	for i, s := range c.Jobs.Schedules {
		times, key, err := parseCron(s.Cron, s.Zone)
		if err != nil {
			return nil, at(fmt.Sprintf("jobs.schedules[%d]%s", i, key), "%w", err)
		}
		next := jobs.Schedule{Name: s.Name, Spec: s.Cron + " " + s.Zone, Template: s.Template, Params: s.Params,
			Tenant: s.Tenant, Overlap: s.Overlap, Next: times.Next}
		out = append(out, next)
		if err := jobs.CheckSchedules(out, c.templates()); err != nil {
			return nil, at(fmt.Sprintf("jobs.schedules[%d]", i), "%w", err)
		}
	}
	return out, nil
}

// validateJobs checks what may run, and when.
func (c *Config) validateJobs() error {
	trainedBy := map[string]string{}
	for i, t := range c.Jobs.Templates {
		for k, model := range t.FineTune.Models {
			if by := trainedBy[model]; by != "" {
				return at(fmt.Sprintf("jobs.templates[%d].fine_tune.models[%d]", i, k), "%q is trained by template %q already", model, by)
			}
			trainedBy[model] = t.Name
			if !slices.ContainsFunc(c.Models, func(m ModelConfig) bool { return m.Name == model }) {
				return at(fmt.Sprintf("jobs.templates[%d].fine_tune.models[%d]", i, k), "%q is no configured model", model)
			}
		}
	}
	suspending := c.suspending()
	if suspending != nil {
		if err := suspending.Validate(); err != nil {
			return at("jobs.suspend", "%w", err)
		}
	}
	for i, t := range c.templates() {
		if t.Suspend && suspending == nil {
			return at(fmt.Sprintf("jobs.templates[%d].suspend", i), "jobs.suspend does not say by which program")
		}
		if err := t.Validate(); err != nil {
			return at(fmt.Sprintf("jobs.templates[%d]", i), "%w", err)
		}
	}
	if _, err := c.schedules(); err != nil {
		return err
	}
	if err := c.sessions().Validate(); err != nil {
		return at("jobs.sessions", "%w", err)
	}
	if _, err := c.users(); err != nil {
		return err
	}
	if c.Jobs.KeepFor < 0 {
		return at("jobs.keep_for", "%v is negative", c.Jobs.KeepFor)
	}
	if c.Jobs.BatchWidth < 0 || c.Jobs.BatchRows < 1 {
		return at("jobs", "batch_width must not be negative and batch_rows at least 1")
	}
	return nil
}
