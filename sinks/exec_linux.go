package sinks

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// startApart is how a command starts something that is to outlive it.
const startApart = "with systemd-run"

// processAttributes gives the program a session of its own, and has the kernel kill it when the bridge dies. The
// session is a process group too. It has no terminal, so that another user's program cannot write into root's.
func processAttributes(a account) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Credential: a.credential, Pdeathsig: syscall.SIGKILL}
}

// awaitEnd waits until the program has ended, and does not reap it, so that the id of its group cannot belong to
// another. It reports whether it has waited.
func (g *processGroup) awaitEnd() bool {
	for {
		err := unix.Waitid(unix.P_PID, g.pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			return err == nil
		}
	}
}

// rest returns what the program, which has ended, has left running: the processes of its group and of its session, and
// those elsewhere that have its mark in their environment, such as a daemon. It does not find a daemon that has cleared
// its environment, and what this user may not look at.
func (g *processGroup) rest() []leftover {
	own, err := readProcess(g.pid)
	if err != nil {
		return nil
	}
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1) // those that were read count
	var all []leftover
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == g.pid {
			continue
		}
		if p, err := readProcess(pid); err == nil && g.left(p, own.start) {
			all = append(all, leftover{pid, p.name})
		}
	}
	return all
}

// left reports whether the program, which was started at start, has left p running.
func (g *processGroup) left(p process, start uint64) bool {
	if p.state == "Z" || p.state == "X" || p.start < start {
		return false
	}
	return p.group == g.pid || p.session == g.pid || g.mark != "" && p.has(g.mark)
}

// killRest kills processes that rest has returned, unless they have ended and their ids belong to others.
func (g *processGroup) killRest(rest []leftover) {
	own, err := readProcess(g.pid)
	if err != nil {
		return
	}
	for _, l := range rest {
		held, err := os.FindProcess(l.pid) // from now on, it stands for one process, whoever gets its id later
		if err != nil {
			continue
		}
		if p, err := readProcess(l.pid); err == nil && g.left(p, own.start) {
			held.Kill()
		}
		held.Release()
	}
}

// A process is what /proc says about one.
type process struct {
	pid, group, session int
	name, state         string
	start               uint64 // in ticks since the system's start
}

// readProcess reads /proc/PID/stat, whose second field is a name in parentheses that may hold anything.
func readProcess(pid int) (process, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return process{}, err
	}
	_, after, _ := bytes.Cut(text, []byte{'('})
	end := bytes.LastIndexByte(after, ')')
	if end < 0 {
		return process{}, fmt.Errorf("/proc/%d/stat is not readable: %q", pid, text)
	}
	fields := strings.Fields(string(after[end+1:])) // from the third on
	if len(fields) < 20 {
		return process{}, fmt.Errorf("/proc/%d/stat is not readable: %q", pid, text)
	}
	p := process{pid: pid, name: string(after[:end]), state: fields[0]}
	p.group, _ = strconv.Atoi(fields[2])
	p.session, _ = strconv.Atoi(fields[3])
	p.start, err = strconv.ParseUint(fields[19], 10, 64)
	return p, err
}

// has reports whether a variable, such as A=b, is in the environment that the process was started with.
func (p process) has(variable string) bool {
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.pid))
	return err == nil && bytes.Contains(append([]byte{0}, environ...), []byte("\x00"+variable+"\x00"))
}
