package control

import (
	"context"
	"log/slog"
	"net"
)

// listen listens on a Unix socket. It has no mode on Windows: the access list of its directory says who can reach it.
func listen(path string, _ *slog.Logger) (net.Listener, error) {
	l, err := listenSocket(path, net.ListenConfig{})
	if err != nil {
		return nil, err
	}
	return l, nil
}

// dial connects to the socket of a running forewarn.
func dial(ctx context.Context, path string) (net.Conn, error) { return dialSocket(ctx, path) }
