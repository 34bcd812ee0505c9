package control

import (
	"log/slog"
	"net"
	"slices"

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

// Sockets returns the paths of the control socket, best first. A running forewarn serves each that works: commands find
// it although state or control was changed in the file since. Relays can share a state directory, as they keep nothing
// there, so one with a socket of its own has only that.
func (l Location) Sockets() []string {
	switch {
	case l.Control == "":
		return l.standardSockets()
	case l.Relay:
		return []string{l.Control}
	}
	return append([]string{l.Control}, l.standardSockets()...)
}

// looked returns where a command looks for the socket, best first. The forewarn of the service may still have the default
// state that its settings no longer name.
func (l Location) looked() []string {
	paths := append(l.Sockets(), l.unitSockets()...)
	if l.Service {
		l.State = l.DefaultState
		for _, path := range append(l.standardSockets(), l.unitSockets()...) {
			if !slices.Contains(paths, path) {
				paths = append(paths, path)
			}
		}
	}
	return paths
}

// Listen opens a control socket.
func Listen(path string, log *slog.Logger) (net.Listener, error) { return listen(path, log) }

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
