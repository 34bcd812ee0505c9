//go:build !windows

package main

import "errors"

// newMachine refuses: services of this kind are Windows' own.
func newMachine() (machine, error) {
	return nil, exit(exitUsage, errors.New("only Windows has services of this kind; here systemd runs forewarn: "+
		"give a unit ExecStart=/usr/local/bin/forewarn run, then use systemctl enable --now, status, reload and stop"))
}

// managed says that the service manager of Windows has started this process.
func managed() bool { return false }

func (p *program) runManaged() error { return errors.New("there is no service manager") }

// makeState leaves the state directory to whoever opens the outbox: its mode closes it to other users.
func makeState(string) error { return nil }
