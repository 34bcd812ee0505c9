package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"forewarn/cmd/forewarn/internal/control"
	"forewarn/cmd/forewarn/internal/service"
	"forewarn/cmd/forewarn/internal/settings"
)

// controlSockets are the control sockets of a run: those of the settings it was started with and, when a reload names
// other places, those there too. Commands read the new settings, and must find the forewarn that was started with the
// old ones.
type controlSockets struct {
	handler http.Handler
	locate  func(*settings.Settings) control.Location
	log     *slog.Logger
	start   []string // paths of the start, which are served to the end

	mu        sync.Mutex        // guards the fields below, and that nothing is served after stop
	stops     map[string]func() // by the path that is served
	slow      []func()          // of paths that may be served once the disk is faster
	isStopped bool
}

// serveControl serves the control socket of the settings. Without one forewarn goes on.
func (p *program) serveControl(s *settings.Settings, h http.Handler, log *slog.Logger) *controlSockets {
	locate := func(s *settings.Settings) control.Location { return control.LocationOf(s, p.defaults, p.getenv) }
	c := &controlSockets{handler: h, locate: locate, log: log, start: locate(s).Sockets(), stops: map[string]func(){}}
	c.serve(locate(s))
	return c
}

// follow serves sockets where the settings of a reload look for them, in place of those of an earlier reload.
func (c *controlSockets) follow(s *settings.Settings) {
	at := c.locate(s)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isStopped {
		return
	}
	paths := at.Sockets()
	for path, stop := range c.stops {
		if !slices.Contains(c.start, path) && !slices.Contains(paths, path) {
			stop()
			delete(c.stops, path)
		}
	}
	if c.serve(at) {
		c.log.Info("commands are answered where the new settings look, too", "state", at.State, "control", at.Control)
	}
}

// stop ends all sockets.
func (c *controlSockets) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.isStopped = true
	for _, stop := range c.stops {
		stop()
	}
	for _, stop := range c.slow {
		stop()
	}
}

// serve serves the sockets of a location that are not served yet, and reports whether there is a new one. If none can be
// served, or not the one that the settings name, it logs why.
func (c *controlSockets) serve(at control.Location) (isNew bool) {
	before, paths := len(c.stops), at.Sockets()
	err := c.serveEach(paths)
	if !c.serves(paths...) {
		err = patiently(func() error { return errors.Join(service.MakeState(at.State), os.MkdirAll(at.State, 0o700)) })
		if err == nil {
			err = c.serveEach(paths)
		} else {
			err = fmt.Errorf("the state directory %s can't be made: %w", at.State, err)
		}
	}
	switch {
	case !c.serves(paths...):
		c.log.Warn("no control socket: commands such as status cannot reach this forewarn", "err", err,
			"hint", "let forewarn write the state directory, or set control in the settings file to another path")
	case at.Control != "" && !c.serves(at.Control):
		c.log.Warn("no control socket where the settings name it; commands use another", "err", err)
	}
	return len(c.stops) > before
}

// serves reports whether one of the paths is served.
func (c *controlSockets) serves(paths ...string) bool {
	return slices.ContainsFunc(paths, func(path string) bool { return c.stops[path] != nil })
}

// serveEach serves the paths that are not served yet. The error says why some are not.
func (c *controlSockets) serveEach(paths []string) error {
	var errs []error
	for _, path := range paths {
		if c.serves(path) {
			continue
		}
		stop, err := c.serveAt(path)
		if err == nil {
			c.stops[path] = stop
		} else {
			c.slow, errs = append(c.slow, stop), append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// serveAt serves a socket until stop is called. If the disk takes too long, it may be served later.
func (c *controlSockets) serveAt(path string) (stop func(), err error) {
	served := make(chan func(), 1)
	err = patiently(func() error {
		l, err := control.Listen(path, c.log)
		if err == nil {
			served <- serve(l, c.handler, c.log)
		}
		return err
	})
	return func() {
		select {
		case stop := <-served:
			stop()
		default:
		}
	}, err
}

// diskPatience is how long a start waits for each thing that the disk of the state directory may keep from it.
const diskPatience = 5 * time.Second

// patiently returns what f returns. If that takes longer than diskPatience, it returns an error, and f goes on.
func patiently(f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-time.After(diskPatience):
		return errors.New("the disk takes too long")
	}
}
