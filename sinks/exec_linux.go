package sinks

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// processAttributes gives the program a session of its own, and has the kernel kill it when the bridge dies. The
// session is a process group too. It has no terminal, so that another user's program cannot write into root's.
func processAttributes(a account) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Credential: a.credential, Pdeathsig: syscall.SIGKILL}
}

// waitThenKill waits until the program has ended, and kills the rest of its group. It does so before the program is
// reaped, while the id of the group cannot belong to another.
func (g *processGroup) waitThenKill() {
	for unix.Waitid(unix.P_PID, g.pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
	g.kill()
	g.close()
}
