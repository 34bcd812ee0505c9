package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"time"

	"forewarn/cmd/forewarn/internal/wording"
)

// longestSocket is how long the path of a socket may be on every system; some take a few bytes more.
const longestSocket = 103

// makeRoom removes what a crash has left of a socket. One where somebody answers stays, and is an error.
func makeRoom(path string) error {
	if len(path) > longestSocket {
		return fmt.Errorf("%s: longer than the path of a socket may be, %d bytes", path, longestSocket)
	}
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
		c.Close()
		return fmt.Errorf("%s: another forewarn answers there", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// listenSocket listens on a Unix socket; config says how it is made.
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
