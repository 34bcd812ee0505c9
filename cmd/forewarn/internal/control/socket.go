//go:build !windows

package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"forewarn/cmd/forewarn/internal/wording"
)

// The directories of the units in examples/systemd and examples/fleet.
const (
	unitState    = "/var/lib/forewarn"
	unitRuntime  = "/run/forewarn"
	relayRuntime = "/run/forewarn-relay"
)

// standardSockets returns the default paths: in the state directory, and in the runtime directory that systemd makes.
func (l Location) standardSockets() []string {
	paths := []string{filepath.Join(l.State, l.socketName())}
	if l.Runtime != "" {
		paths = append(paths, filepath.Join(filepath.SplitList(l.Runtime)[0], l.socketName()))
	}
	return paths
}

// unitSockets returns where else a command looks: only the service has its runtime directory in its environment, and
// whoever asks the one with the unit's settings or state does not.
func (l Location) unitSockets() []string {
	switch {
	case l.Runtime != "" || !l.Service && l.State != unitState:
		return nil
	case l.Relay:
		return []string{filepath.Join(relayRuntime, l.socketName())}
	}
	return []string{filepath.Join(unitRuntime, l.socketName())}
}

func (l Location) socketName() string {
	if l.Relay {
		return "relay.sock"
	}
	return "control.sock"
}

// maxSocketPath bounds the path of a socket, in bytes. It is the limit of macOS; Linux allows a few bytes more.
const maxSocketPath = 103

// makeRoom removes a socket that a crash left behind. It refuses to remove one on which somebody may listen, and anything
// that is no socket.
func makeRoom(path string) error {
	if len(path) > maxSocketPath {
		return fmt.Errorf("%s: too long for the path of a socket, at most %d bytes", path, maxSocketPath)
	}
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s: exists and is not a socket", path)
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	switch {
	case err == nil:
		c.Close()
		return fmt.Errorf("%s: another forewarn answers there", path)
	case !errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%s: another forewarn may listen there: %w", path, wording.Reason(err))
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// listenSocket listens on a Unix socket created with config.
func listenSocket(path string, config net.ListenConfig) (*net.UnixListener, error) {
	if err := makeRoom(path); err != nil {
		return nil, err
	}
	l, err := config.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, wording.Reason(err))
	}
	return l.(*net.UnixListener), nil
}

// dialSocket connects to a Unix socket.
func dialSocket(ctx context.Context, path string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", path)
}
