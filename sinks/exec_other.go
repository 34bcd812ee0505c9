//go:build unix && !linux

package sinks

import "syscall"

// startApart is how a command starts something that is to outlive it.
const startApart = "as a service"

// processAttributes gives the program a session of its own, which is a process group too and has no terminal.
func processAttributes(a account) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Credential: a.credential}
}

// awaitEnd waits for nothing: on these systems the end of a program can't be noticed before its id is free for another,
// so the rest of its group is left running.
func (g *processGroup) awaitEnd() bool { return false }

// hasEnded doesn't know, and reports that the program runs: in doubt, its run doesn't count as done.
func (g *processGroup) hasEnded() bool { return false }

func (g *processGroup) rest() []leftover                      { return nil }
func (g *processGroup) signalRest([]leftover, syscall.Signal) {}
