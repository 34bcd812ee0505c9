package sinks

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// processAttributes give the program a session of its own, and make it die with the bridge. The session is a process
// group and has no terminal, so that a program of another user cannot write into the terminal of root.
func processAttributes(a account) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Credential: a.credential, Pdeathsig: syscall.SIGKILL}
}

// waitThenKill returns when the program has ended, and kills what is left of its group. The program is not reaped yet,
// so that its id is still its own.
func (f *processGroup) waitThenKill() {
	for unix.Waitid(unix.P_PID, f.pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
	f.kill()
	f.close()
}
