//go:build !windows

package service

import "errors"

func newMachine() (machine, error) {
	return nil, errors.New("forewarn service works only on Windows; on Linux use systemd: " +
		"a unit with ExecStart=/usr/local/bin/forewarn run, and systemctl enable --now, status, reload and stop")
}

// StartCommand returns the command that starts the service whose settings are at config. Without --config they are at
// byDefault. It returns "" if no such service is installed.
func StartCommand(config, byDefault string) string {
	return unitCommand(unitDirectories(), config, byDefault)
}

// Run fails on other systems than Windows.
func Run(Program) error { return errors.New("there is no Windows service manager") }

// MakeState does nothing: opening the outbox creates the state directory with mode 0700.
func MakeState(string) error { return nil }
