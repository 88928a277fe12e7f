package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"golang.org/x/term"
)

type sessionCmd struct {
	Start  sessionStartCmd  `cmd:"" default:"withargs" help:"Run a program on a slice and attach to it (the default)."`
	List   sessionListCmd   `cmd:"" help:"List sessions, the newest first."`
	Attach sessionAttachCmd `cmd:"" help:"Attach to a session."`
	End    sessionEndCmd    `cmd:"" help:"End a session."`
}

type sessionStartCmd struct {
	remote
	What []string `arg:"" optional:"" help:"The program and its arguments, after --; default: sh. With --template NAME=VALUE…, its parameters." placeholder:"COMMAND"`

	Template string        `help:"Run what a template of kind session says; without it a program of your own, for admin keys and if the server allows it." placeholder:"NAME"`
	Shape    string        `help:"Smallest MIG profile that will do." placeholder:"PROFILE"`
	Idle     time.Duration `help:"Reclaimed after so long without use; default: the template's, or the server's." placeholder:"DURATION"`
	Longest  time.Duration `help:"End it after so long, however busy; default: the longest that is allowed." placeholder:"DURATION"`
	Name     string        `help:"What to call it." placeholder:"NAME"`
	Detach   bool          `short:"d" help:"Print its id and leave it to itself."`
}

// Run implements kong's command.
func (c *sessionStartCmd) Run(ctx context.Context) error {
	in, err := c.body()
	if err != nil {
		return err
	}
	api := c.client()
	raw, id, err := api.make(ctx, "/aloft/v1/sessions", in)
	if err != nil {
		return err
	}
	if c.Detach {
		return c.printMade(raw)
	}
	err = api.runs(ctx, id)
	if ctx.Err() != nil { // given up while it waited: nobody else will want it
		ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), endedSoon)
		defer stop()
		return errors.Join(err, api.call(ctx, http.MethodPost, "/aloft/v1/jobs/"+url.PathEscape(id)+"/cancel", nil, &raw))
	}
	if err != nil {
		return err
	}
	return api.attach(ctx, id)
}

func (c *sessionStartCmd) body() (map[string]any, error) {
	in := map[string]any{}
	if c.Template != "" {
		params, err := nameValues(c.What)
		if err != nil {
			return nil, err
		}
		in["template"], in["params"] = c.Template, params
	} else if in["command"] = c.What; len(c.What) == 0 {
		in["command"] = []string{"sh"}
	}
	put(in, "shape", c.Shape, c.Shape != "")
	put(in, "name", c.Name, c.Name != "")
	put(in, "idle_seconds", c.Idle.Seconds(), c.Idle != 0)
	put(in, "longest_seconds", c.Longest.Seconds(), c.Longest != 0)
	return in, nil
}

// sessionObject is what a job of kind session shows beyond others.
type sessionObject struct {
	Active float64 `json:"active_at"`
	Warned float64 `json:"warned_at"`
	Ends   float64 `json:"ends_at"`
}

type sessionListCmd struct {
	remote
	All bool `help:"Also those that have ended."`
}

// Run implements kong's command.
func (c *sessionListCmd) Run(ctx context.Context) error {
	q := url.Values{"limit": {"100"}}
	if !c.All {
		q["state"] = []string{"waiting", "queued", "starting", "running", "preempting", "paused"}
	}
	return c.show(ctx, http.MethodGet, "/aloft/v1/sessions?"+q.Encode(), func(raw []byte) error {
		var page struct{ Data []jobObject }
		if err := json.Unmarshal(raw, &page); err != nil {
			return err
		}
		return writeSessions(os.Stdout, page.Data, time.Now())
	})
}

// writeSessions is a table of sessions.
func writeSessions(w io.Writer, list []jobObject, now time.Time) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SESSION\tNAME\tSTATE\tSHAPE\tSLICE\tIDLE FOR\tENDS IN\t")
	dash := func(s string) string {
		if s == "" {
			return "-"
		}
		return s
	}
	for _, j := range list {
		idle, ends, state := "", "", j.State
		if s := j.Session; s != nil && j.State == "running" {
			idle = now.Sub(atUnix(s.Active)).Round(time.Second).String()
			ends = max(0, atUnix(s.Ends).Sub(now)).Round(time.Second).String()
			if s.Warned != 0 {
				state += ", warned"
			}
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", j.ID, dash(j.Name), state, dash(j.Shape), dash(strings.Join(j.Slices, " ")), dash(idle), dash(ends), j.Error)
	}
	return t.Flush()
}

// atUnix is a time given in Unix seconds.
func atUnix(sec float64) time.Time { return time.UnixMilli(int64(sec * 1000)) }

// theSession is the argument of commands about one session.
type theSession struct {
	remote
	Session string `arg:"" help:"Session: its id, the beginning of it, its short form, its name, or latest."`
}

func (c theSession) find(ctx context.Context, api *client) (string, error) {
	return api.find(ctx, "session", "/aloft/v1/sessions?limit=1000", c.Session)
}

type sessionAttachCmd struct{ theSession }

// Run implements kong's command.
func (c *sessionAttachCmd) Run(ctx context.Context) error {
	api := c.client()
	id, err := c.find(ctx, api)
	if err != nil {
		return err
	}
	if err := api.runs(ctx, id); err != nil {
		return err
	}
	return api.attach(ctx, id)
}

type sessionEndCmd struct{ theSession }

// Run implements kong's command.
func (c *sessionEndCmd) Run(ctx context.Context) error {
	id, err := c.find(ctx, c.client())
	if err != nil {
		return err
	}
	return c.show(ctx, http.MethodPost, "/aloft/v1/jobs/"+url.PathEscape(id)+"/cancel", printID)
}

// runs returns when the session runs, and says meanwhile what it waits for.
func (c *client) runs(ctx context.Context, id string) error {
	said := ""
	return c.poll(ctx, "/aloft/v1/jobs/"+url.PathEscape(id), func(raw json.RawMessage) (bool, error) {
		var j jobObject
		err := json.Unmarshal(raw, &j)
		switch {
		case err != nil || j.State == "running":
			return true, err
		case j.ended():
			return true, fmt.Errorf("session %s has %s: %s", id, j.State, j.Error)
		}
		if words := strings.TrimSuffix(j.State+": "+j.Why, ": "); words != said {
			said = words
			fmt.Fprintf(os.Stderr, "session %s is %s\n", id, words)
		}
		return false, nil
	})
}

// attach connects a session that runs with this terminal, until it ends or is
// detached from.
func (c *client) attach(ctx context.Context, id string) error {
	fmt.Fprintf(os.Stderr, "attached to %s; ^P ^Q detaches\n", id)
	detached, err := c.connect(ctx, "/aloft/v1/sessions/"+url.PathEscape(id))
	if detached {
		fmt.Fprintf(os.Stderr, "\ndetached; `aloft session attach %s` comes back\n", short(id))
		return nil
	}
	// The output ends a moment before the record says how the session did.
	var j jobObject
	soon, stop := context.WithTimeout(context.WithoutCancel(ctx), endedSoon)
	defer stop()
	gone := c.poll(soon, "/aloft/v1/jobs/"+url.PathEscape(id), func(raw json.RawMessage) (bool, error) {
		j = jobObject{}
		err := json.Unmarshal(raw, &j)
		return j.ended(), err
	})
	switch {
	case gone == nil:
		return j.outcome()
	case err != nil:
		return err
	}
	return fmt.Errorf("session %s goes on without this terminal", id)
}

// endedSoon is how long the end of a session may take to be known.
const endedSoon = 3 * time.Second

// connect copies between the session at path and this terminal. detached: the
// user wanted to leave.
func (c *client) connect(ctx context.Context, path string) (detached bool, err error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	resp, err := c.open(ctx, http.MethodGet, path+"/output", "", nil)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	if fd := int(os.Stdin.Fd()); term.IsTerminal(fd) {
		before, err := term.MakeRaw(fd)
		if err != nil {
			return false, fmt.Errorf("terminal: %w", err)
		}
		defer func() { _ = term.Restore(fd, before) }()
		resized := make(chan os.Signal, 1)
		signal.Notify(resized, syscall.SIGWINCH)
		defer signal.Stop(resized)
		resized <- syscall.SIGWINCH // the size now
		go c.sizes(ctx, path, fd, resized)
	}
	// Nothing can interrupt a read of standard input: this goroutine ends with it,
	// or with the process.
	go func() {
		if err := c.input(ctx, path, os.Stdin); err != nil {
			stop(err)
		}
	}()
	_, err = io.Copy(os.Stdout, resp.Body)
	if cause := context.Cause(ctx); cause != nil {
		return errors.Is(cause, errDetached), cause
	}
	if err != nil {
		return false, fmt.Errorf("the session broke off: %w", err)
	}
	return false, nil
}

// sizes tells the session how large this window is, whenever that changes.
func (c *client) sizes(ctx context.Context, path string, fd int, resized <-chan os.Signal) {
	for {
		select {
		case <-resized:
		case <-ctx.Done():
			return
		}
		if cols, rows, err := term.GetSize(fd); err == nil {
			var none json.RawMessage
			_ = c.call(ctx, http.MethodPost, path+"/resize", map[string]int{"rows": rows, "cols": cols}, &none) // it only looks less well
		}
	}
}

// errDetached is the wish to leave a session.
var errDetached = errors.New("detached")

// The two keys that leave a session, and the one that ends input.
const ctrlP, ctrlQ, ctrlD = 0x10, 0x11, 0x04

// input sends what is typed, one piece after the other. The end of a file is what
// a terminal makes of it.
func (c *client) input(ctx context.Context, path string, r io.Reader) error {
	buf := make([]byte, 16<<10)
	held := false // a ^P that may be the first of two
	for {
		n, err := r.Read(buf)
		var typed []byte
		for _, b := range buf[:n] {
			if held && b == ctrlQ {
				return errDetached
			}
			if held {
				typed = append(typed, ctrlP)
			}
			if held = b == ctrlP; !held {
				typed = append(typed, b)
			}
		}
		if err == io.EOF {
			typed = append(typed, ctrlD)
		}
		for len(typed) > 0 {
			taken, failed := c.send(ctx, path, typed)
			if failed != nil {
				return failed
			}
			typed = typed[taken:]
		}
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return fmt.Errorf("read standard input: %w", err)
		}
	}
}

// send sends one piece and returns how much of it the program's terminal took.
func (c *client) send(ctx context.Context, path string, piece []byte) (int, error) {
	resp, err := c.open(ctx, http.MethodPost, path+"/input", "application/octet-stream", bytes.NewReader(piece))
	var refused *apiError
	if errors.As(err, &refused) && refused.status == http.StatusBadRequest {
		return len(piece), nil // it has ended; its output says so
	}
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	var v struct{ Taken int }
	err = json.NewDecoder(io.LimitReader(resp.Body, 1<<10)).Decode(&v)
	return v.Taken, err
}
