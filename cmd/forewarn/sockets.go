package main

import (
	"errors"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"time"

	"forewarn/cmd/forewarn/internal/control"
	"forewarn/cmd/forewarn/internal/service"
	"forewarn/cmd/forewarn/internal/settings"
)

// controlSockets are the control sockets of a run: the one of the settings it was started with and, when a reload names
// another place, one there too. Commands read the new settings, and must find the forewarn that was started with the
// old ones.
type controlSockets struct {
	handler http.Handler
	locate  func(*settings.Settings) control.Location
	log     *slog.Logger
	start   control.Location

	mu        sync.Mutex // guards the fields below, and that nothing is served after stop
	stops     []func()   // the first ends the socket of the start
	isStopped bool
}

// serveControl serves the control socket of the settings. Without one forewarn goes on.
func (p *program) serveControl(s *settings.Settings, h http.Handler, log *slog.Logger) *controlSockets {
	locate := func(s *settings.Settings) control.Location { return control.LocationOf(s, p.defaults, p.getenv) }
	c := &controlSockets{handler: h, locate: locate, log: log, start: locate(s)}
	stop, _ := c.serve(c.start)
	c.stops = []func(){stop}
	return c
}

// follow serves a second socket where the settings of a reload look for it, in place of an earlier second one. They are
// nil if the reload failed.
func (c *controlSockets) follow(s *settings.Settings) {
	if s == nil {
		return
	}
	at := c.locate(s)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isStopped {
		return
	}
	for _, stop := range c.stops[1:] {
		stop()
	}
	c.stops = c.stops[:1]
	if at == c.start {
		return
	}
	if at.Control == "" { // the next start would make it
		err := patiently(func() error { return errors.Join(service.MakeState(at.State), os.MkdirAll(at.State, 0o700)) })
		if err != nil {
			c.log.Warn("cannot make the new state directory", "state", at.State, "err", err)
		}
	}
	stop, ok := c.serve(at)
	c.stops = append(c.stops, stop)
	if ok {
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
}

// serve serves a socket at a location until stop is called. If it can't, ok is false, and it has logged why.
func (c *controlSockets) serve(at control.Location) (stop func(), ok bool) {
	served := make(chan func(), 1)
	err := patiently(func() error {
		l, err := control.Listen(at, c.log)
		if err == nil {
			served <- serve(l, c.handler, c.log)
		}
		return err
	})
	if err != nil {
		c.log.Warn("no control socket: commands such as status cannot reach this forewarn", "err", err,
			"hint", "set control in the settings file to another path")
	}
	return func() {
		select {
		case stop := <-served:
			stop()
		default:
		}
	}, err == nil
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
