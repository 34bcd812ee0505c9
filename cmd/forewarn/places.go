package main

import (
	"context"
	"errors"

	"forewarn/cmd/forewarn/internal/control"
	"forewarn/cmd/forewarn/internal/settings"
)

// client asks the forewarn that runs with these settings.
func (p *program) client(s *settings.Settings) *control.Client {
	return &control.Client{Location: control.LocationOf(s, p.getenv), Sinks: s.Names, Log: p.log()}
}

// running is the forewarn to ask, and its settings. Root becomes the owner of the state.
func (p *program) running() (*control.Client, *settings.Settings, error) {
	s, err := control.Locate(p.loader(p.log()), p.config, p.log())
	if err != nil {
		return nil, nil, exit(exitSettings, err)
	}
	return p.client(s), s, p.giveUpRoot(s.State)
}

// asRunning puts the endpoint and the name of this VM as the running forewarn has them into settings that are wrong. If
// none runs, what is wrong is the error.
func (p *program) asRunning(ctx context.Context, s *settings.Settings) error {
	if s.Wrong == nil {
		return nil
	}
	running, err := p.client(s).Status(ctx)
	if errors.Is(err, control.ErrNotRunning) {
		return exit(exitSettings, s.Wrong)
	} else if err != nil {
		return err
	}
	s.IMDS.Endpoint, s.IMDS.APIVersion = running.IMDS.Endpoint, running.IMDS.APIVersion
	s.IMDS.VMName = running.Observer.Name
	return nil
}
