//go:build unix && !linux

package sinks

import "syscall"

// processAttributes give the program a session of its own, which is a process group too and has no terminal.
func processAttributes(a account) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Credential: a.credential}
}

// waitThenKill returns at once: there is no way to see that the program has ended before its id is given free, so what
// it has left running is left alone.
func (f *processGroup) waitThenKill() {}
