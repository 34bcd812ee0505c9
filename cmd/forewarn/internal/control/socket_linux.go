package control

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// listen listens on a Unix socket that only root and this user can reach. The socket file is created with mode 0600:
// the kernel takes it from the descriptor that is bound. Changing the mode afterwards would leave a gap, and a umask
// would affect other goroutines.
func listen(path string, log *slog.Logger) (net.Listener, error) {
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		return errors.Join(c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }), err)
	}}
	l, err := listenSocket(path, config)
	if err != nil {
		return nil, err
	}
	return &privateListener{UnixListener: l, log: log}, nil
}

// dial connects to the socket of the running forewarn.
func dial(ctx context.Context, path string) (net.Conn, error) { return dialSocket(ctx, path) }

// A privateListener refuses connections of other users, even if the mode of its socket was changed.
type privateListener struct {
	*net.UnixListener
	log    *slog.Logger
	warned bool // only Accept uses it
}

// Accept waits for a connection of root or of this user.
func (l *privateListener) Accept() (net.Conn, error) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		uid, err := peerUser(c)
		if err == nil && mayControl(uid, uint32(os.Geteuid())) {
			return c, nil
		}
		c.Close()
		if !l.warned {
			l.warned = true
			l.log.Warn("refused another user on the control socket", "socket", l.Addr(), "uid", uid, "err", err,
				"hint", "set the mode of the socket to 0600")
		}
	}
}

// mayControl reports whether the user uid may use the control socket of a forewarn that runs as own.
func mayControl(uid, own uint32) bool { return uid == 0 || uid == own }

// peerUser returns the user who made the connection, according to the kernel.
func peerUser(c *net.UnixConn) (uid uint32, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var peer *unix.Ucred
	if controlErr := raw.Control(func(fd uintptr) {
		peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); controlErr != nil {
		return 0, controlErr
	}
	if err != nil {
		return 0, err
	}
	return peer.Uid, nil
}
