package known

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"time"
)

// Child is a null server in a process of its own, so that it shares no
// scheduler and no garbage collector with the generator that it measures.
type Child struct {
	Addr string
	cmd  *exec.Cmd
	http *http.Client // for /null/ alone: nothing of it is measured
}

// announceWithin is how long a child may take until it listens.
const announceWithin = 10 * time.Second

// StartNull runs a command with --until-eof and an address after its arguments,
// which has to end up in ListenNull: {"aloft", "load", "null-server"}. The child
// ends with Close, with ctx, and with this process however that ends, since its
// standard input does then.
func StartNull(ctx context.Context, command ...string) (*Child, error) {
	if len(command) == 0 {
		return nil, errors.New("known: no command for the null server")
	}
	cmd := exec.CommandContext(ctx, command[0], append(command[1:len(command):len(command)], "--until-eof", "127.0.0.1:0")...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		_, err = cmd.StdinPipe() // Wait closes it; nothing is written
	}
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("known: start null server: %w", err)
	}
	c := &Child{cmd: cmd, http: &http.Client{Timeout: announceWithin}}
	give := time.AfterFunc(announceWithin, func() { _ = cmd.Process.Kill() })
	defer give.Stop()
	line, err := bufio.NewReader(io.LimitReader(out, 4096)).ReadBytes('\n')
	var v struct{ Listening string }
	if err == nil {
		err = json.Unmarshal(line, &v)
	}
	if err == nil && v.Listening == "" {
		err = errors.New("it announced no address")
	}
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("known: start null server: %q: %w", line, err)
	}
	c.Addr = v.Listening
	return c, nil
}

// Close ends the child and waits for its end.
func (c *Child) Close() {
	c.http.CloseIdleConnections()
	_ = c.cmd.Process.Kill() // fails only when it has ended
	_ = c.cmd.Wait()
}

// Usage asks the child what it did so far.
func (c *Child) Usage(ctx context.Context) (u Usage, err error) {
	body, err := c.get(ctx, string(toUsage))
	if err == nil {
		err = json.Unmarshal(body, &u)
	}
	return u, err
}

// Freeze makes the child stand still from now on for d.
func (c *Child) Freeze(ctx context.Context, d time.Duration) error {
	_, err := c.get(ctx, string(toFreeze)+d.String())
	return err
}

func (c *Child) get(ctx context.Context, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.Addr+path, nil)
	if err != nil {
		return nil, err
	}
	res, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode/100 != 2 {
		return nil, fmt.Errorf("known: %s: %s", path, res.Status)
	}
	return io.ReadAll(io.LimitReader(res.Body, 1<<20))
}
