package known

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"
)

// roleKey says what a process of this test is to be: "null" or "parent".
const roleKey = "ALOFT_KNOWN_TEST_ROLE"

// own is the command that runs a test of this program alone, with arguments for it.
func own(test string) []string { return []string{os.Args[0], "-test.run=^" + test + "$", "--"} }

// TestProcesses is no test of its own: the one below runs it as other processes.
func TestProcesses(t *testing.T) {
	switch os.Getenv(roleKey) {
	case "null":
		if err := ListenNull(context.Background(), os.Args[len(os.Args)-1], os.Stdin, os.Stdout); err != nil {
			t.Fatal(err)
		}
		os.Exit(0)
	case "parent":
		os.Setenv(roleKey, "null")
		c, err := StartNull(context.Background(), own("TestProcesses")...)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Printf("{\"listening\":%q}\n", c.Addr)
		time.Sleep(time.Minute)
	default:
		t.Skip("it runs as a process of TestNullServerEndsWithItsParent")
	}
}

// A generator that is killed can end nothing any more: its null server has to see
// to that itself.
func TestNullServerEndsWithItsParent(t *testing.T) {
	command := own("TestProcesses")
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	cmd.Env, cmd.Stderr = append(os.Environ(), roleKey+"=parent"), os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadBytes('\n')
	var v struct{ Listening string }
	if err == nil {
		err = json.Unmarshal(line, &v)
	}
	if err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	c, err := net.Dial("tcp", v.Listening)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := c.Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
		t.Errorf("the null server outlived its parent: %v", err)
	}
}
