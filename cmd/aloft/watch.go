package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"go.opentelemetry.io/otel/metric"
	"golang.org/x/sys/unix"
)

// watchEvery is how often files are looked at. Polling sees what notifications
// miss: symbolic links that are swapped (Kubernetes), folders that are mounted anew.
const watchEvery = time.Second

// stamp tells one content of a file from another; zero = there is no file.
type stamp struct {
	modified    time.Time
	size        int64
	dev, number uint64 // so that a rename onto the path counts
}

// stampOf follows symbolic links.
func stampOf(path string) stamp {
	st, err := os.Stat(path)
	if err != nil {
		return stamp{}
	}
	s := stamp{modified: st.ModTime(), size: st.Size()}
	var raw unix.Stat_t
	if unix.Stat(path, &raw) == nil {
		s.dev, s.number = uint64(raw.Dev), raw.Ino
	}
	return s
}

// watched is a group of files that are read together.
type watched struct {
	paths  []string
	read   func() // on a change and on SIGHUP
	settle bool   // wait for the end of a change: half of the file would do harm
	stamps []stamp
}

// changed reports whether a file is another than at the last call.
func (w *watched) changed() bool {
	var now []stamp
	differs := false
	for i, p := range w.paths {
		now = append(now, stampOf(p))
		differs = differs || i < len(w.stamps) && now[i] != w.stamps[i]
	}
	w.stamps = now
	return differs
}

// watch looks at the groups until ctx ends. Where half of a file would do harm a
// group is read once it has been the same for one look.
func watch(ctx context.Context, groups []*watched, hup <-chan os.Signal) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	pending := map[*watched]bool{}
	for _, w := range groups {
		w.changed()
	}
	for {
		asked := false
		select {
		case <-tick.C:
		case <-hup:
			asked = true
		case <-ctx.Done():
			return
		}
		for _, w := range groups {
			differs := w.changed()
			if asked || differs && !w.settle || pending[w] && !differs {
				w.read()
				differs = false
			}
			pending[w] = differs
		}
	}
}

// watchFiles reads the configuration again when its file changes.
func (s *server) watchFiles(ctx context.Context) {
	reloads, err := s.telemetry.metrics.Meter("aloft").Int64Counter("aloft.config.reloads",
		metric.WithDescription("Times the configuration was read again, by result: taken, same, refused"))
	if err != nil {
		s.log.Warn("reloads are not counted", "error", err)
	}
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	config := &watched{settle: true, read: func() { s.refresh(reloads) }}
	if s.conf.path != "" {
		config.paths = []string{s.conf.path}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { watch(ctx, append(s.secrets(), config), hup); close(done) }()
	s.onStop("watch", func(context.Context) error {
		signal.Stop(hup)
		cancel()
		<-done
		return nil
	})
}
