package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/alecthomas/kong"

	"aloft/gateway"
)

// recordCmd switches the recording of requests on a running server.
type recordCmd struct {
	remote
	State string `arg:"" optional:"" enum:"on,off,status" default:"status" help:"on, off, or status."`
}

// Run implements kong's command.
func (c *recordCmd) Run(ctx context.Context, k *kong.Context) error {
	method, body := http.MethodGet, any(nil)
	if c.State != "status" {
		method, body = http.MethodPost, map[string]bool{"on": c.State == "on"}
	}
	var r gateway.RecordingObject
	if err := c.client().call(ctx, method, "/aloft/v1/recording", body, &r); err != nil {
		return err
	}
	if c.JSON {
		return json.NewEncoder(k.Stdout).Encode(r)
	}
	return showRecording(k.Stdout, r)
}

func showRecording(w io.Writer, r gateway.RecordingObject) error {
	text := "not recording"
	switch {
	case r.On:
		text = "recording"
	case r.Full:
		text = "not recording any more: the file is full or broke off"
	}
	if r.Since != nil {
		text += fmt.Sprintf("; %s in the data folder, since %s: %d requests", r.File, time.Unix(*r.Since, 0).Format(time.DateTime), r.Rows)
	}
	if r.Lost > 0 {
		text += fmt.Sprintf(", %d lost", r.Lost)
	}
	_, err := fmt.Fprintln(w, text)
	return err
}
