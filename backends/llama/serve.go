package llama

import (
	"context"
	"fmt"
	"log/slog"
	"net"

	"aloft/backends/serve"
)

// Serve runs the engine server on ln until ctx ends: `aloft engine llama`
// without its flags. ln is closed when it returns, also when the model cannot
// be opened, and nothing answers before the model is loaded.
func Serve(ctx context.Context, ln net.Listener, opt Options, log *slog.Logger) error {
	defer ln.Close()
	if err := opt.Validate(); err != nil {
		return err
	}
	opt = opt.withDefaults()
	limits := serve.Options{MaxQueue: opt.MaxQueue}
	// The server's gate bounds each kind of call. The engine counts both kinds
	// and also those on their way to a free slot, so its own bound is wider.
	opt.MaxQueue = 2*opt.MaxQueue + opt.Slots + 1
	e, err := Open(opt, log)
	if err != nil {
		return err
	}
	defer e.Close()
	srv, err := serve.New(e, limits, log)
	if err != nil {
		return fmt.Errorf("engine server: %w", err)
	}
	return srv.Serve(ctx, ln)
}
