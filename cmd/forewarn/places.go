package main

import (
	"context"
	"errors"

	"forewarn/bridge"
	"forewarn/cmd/forewarn/internal/settings"
)

// runningPlaces are places for the commands that ask the running forewarn, which goes on with its settings while those
// of the file are wrong. Then they hold what says where it is, and Wrong.
func (p *program) runningPlaces() (*settings.Settings, error) {
	s, wrong := p.rootPlaces()
	if wrong != nil {
		var err error
		if s, err = p.loader(p.log()).Salvage(p.config, wrong); err != nil {
			return nil, err
		}
		p.log().Warn("the settings are wrong; only state, control and listen were taken from them", "err", wrong)
	}
	return s, p.giveUpRoot(s.State)
}

// asRunning puts the endpoint and the name of this VM as the running forewarn has them into settings that are wrong. If
// none runs, what is wrong is the error.
func (p *program) asRunning(ctx context.Context, s *settings.Settings) error {
	if s.Wrong == nil {
		return nil
	}
	var running bridge.Status
	err := p.askControl(ctx, s, "/status", nil, &running)
	if errors.Is(err, errNoBridge) {
		return s.Wrong
	} else if err != nil {
		return err
	}
	s.IMDS.Endpoint, s.IMDS.APIVersion = running.IMDS.Endpoint, running.IMDS.APIVersion
	s.IMDS.VMName = running.Observer.Name
	return nil
}
