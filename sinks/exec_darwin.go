package sinks

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// startApart is how a command starts something that is to outlive it.
const startApart = "with launchctl"

// processAttributes gives the program a session of its own, which is a process group too and has no terminal.
func processAttributes(a account) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Credential: a.credential}
}

// awaitEnd waits until the program has ended, and does not reap it, so that the id of its group cannot belong to
// another. It reports whether it has waited.
func (g *processGroup) awaitEnd() bool {
	queue, err := unix.Kqueue()
	if err != nil {
		return false
	}
	defer unix.Close(queue)
	end := []unix.Kevent_t{{Fflags: unix.NOTE_EXIT}}
	unix.SetKevent(&end[0], g.pid, unix.EVFILT_PROC, unix.EV_ADD|unix.EV_ONESHOT)
	for {
		var happened [1]unix.Kevent_t
		n, err := unix.Kevent(queue, end, happened[:], nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return err == unix.ESRCH // it has ended before
		case n == 1 && happened[0].Flags&unix.EV_ERROR != 0:
			return happened[0].Data == int64(unix.ESRCH)
		case n == 1:
			return true
		}
	}
}

// rest returns what the program, which has ended, has left running: the processes of its group.
func (g *processGroup) rest() []leftover {
	const zombie = 5 // SZOMB in sys/proc.h
	group, _ := unix.SysctlKinfoProcSlice("kern.proc.pgrp", g.pid)
	var all []leftover
	for _, p := range group {
		if pid := int(p.Proc.P_pid); pid != g.pid && p.Proc.P_stat != zombie {
			all = append(all, leftover{pid: pid, name: unix.ByteSliceToString(p.Proc.P_comm[:])})
		}
	}
	return all
}

// killRest kills processes that rest has returned, with all that are in the group by now.
func (g *processGroup) killRest([]leftover) { g.kill() }
