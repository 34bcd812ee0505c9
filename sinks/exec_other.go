//go:build unix && !linux

package sinks

import "syscall"

// processAttributes gives the program a session of its own, which is a process group too and has no terminal.
func processAttributes(a account) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Credential: a.credential}
}

// waitThenKill does nothing: on these systems the end of a program can't be noticed before its id is free for another,
// so the rest of its group is left running.
func (g *processGroup) waitThenKill() {}
