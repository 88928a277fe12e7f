package main

import "context"

type demoCmd struct {
	Fast bool `help:"30 seconds."`
}

func (c *demoCmd) Run(ctx context.Context) error { return nil }
