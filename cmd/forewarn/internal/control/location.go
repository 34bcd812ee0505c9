package control

import (
	"errors"
	"log/slog"
	"net"
	"path/filepath"

	"forewarn/cmd/forewarn/internal/settings"
)

// A Location is where a forewarn is, running or not.
type Location struct {
	State   string // its state directory, which holds the outbox's file
	Control string // the key control of its settings
	Runtime string // the environment's RUNTIME_DIRECTORY: a list, of which the first counts
}

// LocationOf is where the forewarn of the settings is.
func LocationOf(s *settings.Settings, getenv func(string) string) Location {
	return Location{State: s.State, Control: s.Control, Runtime: getenv("RUNTIME_DIRECTORY")}
}

// sockets are the paths where the control socket may be, best first.
func (l Location) sockets() []string {
	if l.Control != "" {
		return []string{l.Control}
	}
	paths := []string{filepath.Join(l.State, "control.sock")}
	if l.Runtime != "" {
		paths = append(paths, filepath.Join(filepath.SplitList(l.Runtime)[0], "control.sock"))
	}
	return paths
}

// Listen opens the control socket at the first place that it can have.
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

// Locate reads the settings of a forewarn that is to be asked. One that runs goes on with the settings it has when those
// of the file become wrong, so such a file is enough as long as it says where that forewarn is; Wrong then says what is
// wrong. Secrets are left alone: whoever asks need not be able to read them.
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
	log.Warn("the settings are wrong; only state, control and listen were taken from them", "err", wrong)
	return s, nil
}
