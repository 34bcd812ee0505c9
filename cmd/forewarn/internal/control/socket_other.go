//go:build !linux && !windows

package control

import (
	"context"
	"log/slog"
	"net"
	"os"
)

// listen listens on a Unix socket that only root and this user can reach. Until Chmod returns, the umask decides.
func listen(path string, _ *slog.Logger) (net.Listener, error) {
	l, err := listenSocket(path, net.ListenConfig{})
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// dial connects to the socket of the running forewarn.
func dial(ctx context.Context, path string) (net.Conn, error) { return dialSocket(ctx, path) }
