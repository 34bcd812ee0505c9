package main

import (
	"context"
	"errors"
	"strings"

	"forewarn/bridge"
)

// placeKeys are the settings that say where a running forewarn is.
var placeKeys = []string{"state", "control", "listen"}

// salvage reads settings that are wrong as far as they say where a running forewarn is: each line of one of placeKeys
// counts if it is right by itself, and otherwise the default does. wrong is what is wrong with them.
func (l loader) salvage(path string, wrong error) (*settings, error) {
	path, data, err := l.read(path)
	if err != nil {
		return nil, wrong
	}
	l.Kinds = nil
	text := builtin + "\n"
	seen := make(map[string]bool)
	for line := range strings.Lines(string(data)) {
		for _, key := range placeKeys {
			if !strings.HasPrefix(line, key+":") || seen[key] {
				continue
			}
			line = strings.TrimRight(line, "\r\n") + "\n"
			if _, err := l.parse("", []byte(builtin+"\n"+line)); err == nil {
				text += line
				seen[key] = true
			}
		}
	}
	s, err := l.parse("", []byte(text))
	if err != nil {
		return nil, wrong
	}
	s.Path, s.Hash, s.Wrong = path, "", wrong
	return s, nil
}

// runningPlaces are places for the commands that ask the running forewarn, which goes on with its settings while those
// of the file are wrong. Then they hold what says where it is, and Wrong.
func (p *program) runningPlaces() (*settings, error) {
	s, wrong := p.rootPlaces()
	if wrong != nil {
		var err error
		if s, err = p.loader(p.log()).salvage(p.config, wrong); err != nil {
			return nil, err
		}
		p.log().Warn("the settings are wrong; only state, control and listen were taken from them", "err", wrong)
	}
	return s, p.giveUpRoot(s.State)
}

// asRunning puts the endpoint and the name of this VM as the running forewarn has them into settings that are wrong. If
// none runs, what is wrong is the error.
func (p *program) asRunning(ctx context.Context, s *settings) error {
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
