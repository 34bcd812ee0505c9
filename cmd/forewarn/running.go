package main

import (
	"cmp"
	"context"
	"errors"
	"time"

	"forewarn/cmd/forewarn/internal/control"
	"forewarn/cmd/forewarn/internal/settings"
)

// client returns a client of the forewarn that runs with these settings.
func (p *program) client(s *settings.Settings) *control.Client {
	return &control.Client{
		Location: control.LocationOf(s, p.defaults, p.getenv), Sinks: s.Names, Page: s.Listen,
		Log: p.log(), Start: p.startCommand(s),
	}
}

// startCommand returns the command that starts the forewarn with these settings: its service, if one is installed.
func (p *program) startCommand(s *settings.Settings) string {
	if p.service != nil {
		if start := p.service(cmp.Or(s.Path, p.defaults.Settings), p.defaults.Settings); start != "" {
			return start
		}
	}
	start := "forewarn run"
	if s.Relay != nil {
		start = "forewarn relay"
	}
	if p.config != "" {
		start += " --config " + p.config
	}
	return start
}

// running returns a client of the running forewarn, and its settings. Root switches to the owner of the state
// directory.
func (p *program) running() (*control.Client, *settings.Settings, error) {
	s, err := control.Locate(p.loader(p.log()), p.config, p.log())
	if err != nil {
		return nil, nil, exit(exitSettings, err)
	}
	return p.client(s), s, p.dropRoot(string(s.State))
}

// zone returns the time zone of texts for people: that of the settings or, if there is no file or it is broken, that of
// the running forewarn; UTC without either.
func (p *program) zone(ctx context.Context, s *settings.Settings) *time.Location {
	if s.Broken == nil && s.Path != "" {
		return s.Timezone
	}
	st, err := p.client(s).Status(ctx)
	if err != nil {
		return s.Timezone
	}
	return st.Settings.Location()
}

// fillFromRunning completes broken settings with the endpoint and the VM name that the running forewarn uses. If none
// runs, it returns the error of the settings.
func (p *program) fillFromRunning(ctx context.Context, s *settings.Settings) error {
	if s.Broken == nil {
		return nil
	}
	running, err := p.client(s).Status(ctx)
	if errors.Is(err, control.ErrNotRunning) {
		return exit(exitSettings, s.Broken)
	} else if err != nil {
		return err
	}
	s.IMDS.Endpoint, s.IMDS.APIVersion = running.IMDS.Endpoint, running.IMDS.APIVersion
	s.IMDS.VMName = running.Observer.Name
	return nil
}
