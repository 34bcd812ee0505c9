package control

import (
	"errors"
	"log/slog"
	"net"

	"forewarn/cmd/forewarn/internal/settings"
)

// A Location says where to find a forewarn, running or not.
type Location struct {
	State        string // the state directory, which holds the outbox's file
	DefaultState string // the state directory of settings that name none
	Control      string // the key control of the settings; "" for the default
	Runtime      string // the environment variable RUNTIME_DIRECTORY, a list whose first item is used
	Service      bool   // the settings are in the default file, as those of the service are
	Relay        bool   // the settings are a relay's, which can run beside the forewarn of a VM
}

// LocationOf returns the location of the forewarn with these settings, on a system with these defaults.
func LocationOf(s *settings.Settings, d settings.Defaults, getenv func(string) string) Location {
	return Location{
		State: string(s.State), DefaultState: d.State, Control: string(s.Control), Runtime: getenv("RUNTIME_DIRECTORY"),
		Service: s.Path == d.Settings, Relay: s.Relay != nil,
	}
}

// sockets returns the possible paths of the control socket, best first.
func (l Location) sockets() []string {
	if l.Control != "" {
		return []string{l.Control}
	}
	return l.standardSockets()
}

// Listen opens the control socket at the first of its possible paths that works.
func Listen(at Location, log *slog.Logger) (net.Listener, error) {
	var errs []error
	for _, path := range at.sockets() {
		l, err := listen(path, log)
		if err == nil {
			return l, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// Locate reads the settings of a forewarn that a command wants to ask. It reads no secrets, because the user of the
// command may not be allowed to. A broken file will do as long as its location can be read, since the running forewarn
// keeps its old settings; Settings.Broken then holds the error.
func Locate(l settings.Loader, path string, log *slog.Logger) (*settings.Settings, error) {
	l.Kinds = nil
	s, wrong := l.Load(path)
	if wrong == nil {
		return s, nil
	}
	s, err := l.Salvage(path, wrong)
	if err != nil {
		return nil, err
	}
	log.Warn("the settings file is wrong; using only its state, control and listen", "err", wrong)
	return s, nil
}
