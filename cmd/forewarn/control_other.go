//go:build !linux

package main

import (
	"log/slog"
	"net"
	"os"
	"runtime"
)

// listenPrivate listens on a Unix socket that only root and this user can reach. On Windows the access list of its
// directory says who can.
func listenPrivate(path string, _ *slog.Logger) (net.Listener, error) {
	l, err := net.Listen("unix", path)
	if err != nil || runtime.GOOS == "windows" {
		return l, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}
