//go:build !windows

package service

import "errors"

func newMachine() (machine, error) {
	return nil, errors.New("only Windows has services of this kind; here systemd runs forewarn: " +
		"give a unit ExecStart=/usr/local/bin/forewarn run, then use systemctl enable --now, status, reload and stop")
}

// Managed says that the service manager of Windows has started this process.
func Managed() bool { return false }

// Run refuses: no other service manager is answered like that of Windows.
func Run(Program) error { return errors.New("there is no service manager") }

// MakeState leaves the state directory to whoever opens the outbox: its mode closes it to other users.
func MakeState(string) error { return nil }
