package control

import (
	"context"
	"log/slog"
	"net"
)

// listen listens on a Unix socket. Its access list is that of its directory, since Windows has no modes.
func listen(path string, _ *slog.Logger) (net.Listener, error) {
	l, err := listenSocket(path, net.ListenConfig{})
	if err != nil {
		return nil, err
	}
	return l, nil
}

// dial connects to the socket of the running forewarn.
func dial(ctx context.Context, path string) (net.Conn, error) { return dialSocket(ctx, path) }
