package main

import (
	"context"
	"fmt"
	"os"

	"aloft/gpu"
	"aloft/jobs"
)

// runner is what runs jobs.
type runner struct {
	jobs  *jobs.Manager
	local *jobs.Local // starts their processes
}

// UsersConfig is the range of numeric users that jobs run as, each always as the
// same; 0 = as the server's own.
type UsersConfig struct {
	First int64 `yaml:"first"`
	Last  int64 `yaml:"last"`
}

// maxUser is below what systems keep for nobody and for errors.
const maxUser = 1<<32 - 3

// users are whom jobs run as. Only root can start a program as another, which is
// known where the server starts and not where its configuration is written.
func (c *Config) users() (jobs.Users, error) {
	u := c.Jobs.Users
	switch {
	case u == UsersConfig{}:
		return jobs.Users{}, nil
	case u.First < 1 || u.Last < u.First || u.Last > maxUser:
		return jobs.Users{}, at("jobs.users", "users %d to %d are no range within 1 and %d", u.First, u.Last, int64(maxUser))
	}
	return jobs.Users{First: uint32(u.First), Last: uint32(u.Last)}, nil
}

// passable are the folders through which a job's user gets to what is its own:
// below them he can open what he may, and list nothing.
var passable = []string{"", "run", "checkpoints", "outputs", "models"}

// executor runs the processes of jobs.
func (s *server) executor(ctx context.Context) (*jobs.Local, error) {
	l := &jobs.Local{RunDir: s.path("run"), Slog: s.log}
	var err error
	if l.Users, err = s.conf.users(); err != nil {
		return nil, s.conf.located(err)
	}
	if l.Users != (jobs.Users{}) {
		for _, dir := range passable {
			if err := os.MkdirAll(s.path(dir), 0o711); err != nil {
				return nil, fmt.Errorf("data folder: %w", err)
			}
			if err := os.Chmod(s.path(dir), 0o711); err != nil {
				return nil, fmt.Errorf("open the data folder to the users of jobs: %w", err)
			}
		}
	}
	l.Suspend = s.suspending(ctx)
	return l, nil
}

// suspending is what jobs are suspended with; nil = none is, or none can be here.
func (s *server) suspending(ctx context.Context) *jobs.Suspending {
	u := s.conf.suspending()
	if u == nil {
		return nil
	}
	u.Tool.RunDir = s.path("run")
	u.Used = s.used
	version, err := u.Tool.Probe(ctx)
	if err != nil {
		s.log.Warn("no job is suspended: told to save as without jobs.suspend", "error", err)
		return nil
	}
	s.log.Info("jobs may be suspended", "by", u.Tool.Program, "version", version)
	return u
}

// used is what is in use of a slice's memory; a simulated one has none.
func (s *server) used(ctx context.Context, slice gpu.Slice) (int64, error) {
	u, err := s.inventory.Usage(ctx, slice.ID)
	return u.UsedBytes, err
}
