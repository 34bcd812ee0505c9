package sinks

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
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

// hasEnded reports whether the program has ended. It does not reap it.
func (g *processGroup) hasEnded() bool {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, g.pid, &info, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG, nil)
	return err == nil && info.Signo != 0
}

// marking lets one program be started at a time, because a mark is set for all that this process starts. What it starts
// in another way meanwhile is taken for something that the program has left, and ended.
var marking struct {
	sync.Mutex
	running int // programs with a mark
}

// startMarked starts a program, which gets a mark of its own if marked is true; the mark is 0 if there is none. The
// caller calls endMarked once it has looked at what the program has left.
//
// A mark is a soft limit of file locks, which Linux has not looked at since version 2.5. All that the program starts has
// it too, whatever session, environment, name or user that takes, and everybody may read it.
//
// While programs with a mark run, this process is a subreaper: it becomes the parent of everything whose own parent
// has ended. The mark says which program that belongs to.
func startMarked(cmd *exec.Cmd, marked bool) (mark uint64, err error) {
	marking.Lock()
	defer marking.Unlock()
	var before unix.Rlimit
	err = unix.Getrlimit(unix.RLIMIT_LOCKS, &before)
	if !marked || err != nil || before.Max < 1<<32 { // below that, two marks might be the same
		return 0, cmd.Start()
	}
	mark = 1 + rand.Uint64N(before.Max/2)
	err = unix.Setrlimit(unix.RLIMIT_LOCKS, &unix.Rlimit{Cur: mark, Max: before.Max})
	if err != nil {
		return 0, cmd.Start()
	}
	defer unix.Setrlimit(unix.RLIMIT_LOCKS, &before) // as it was a moment ago
	unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	marking.running++
	return mark, cmd.Start()
}

// endMarked ends what startMarked has begun. Orphans of other programs are none of this process's business, and it
// would keep them as zombies.
func endMarked(mark uint64) {
	marking.Lock()
	defer marking.Unlock()
	if mark == 0 {
		return
	}
	marking.running--
	if marking.running == 0 {
		unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
	}
}

// rest returns what runs besides the program because it was started by it: the processes of its group and of its
// session, and those elsewhere that have its mark, such as a daemon. It reaps those that have ended, and returns them
// too: each may have started another one that /proc did not list yet.
//
// If it returns nothing after the program has ended, the program has left nothing. Whatever is left descends from a
// child of this process, and that child is in /proc until it is reaped here, even if it ends meanwhile.
func (g *processGroup) rest() []leftover {
	own, err := readProcess(g.pid)
	if errors.Is(err, fs.ErrNotExist) { // there is no /proc
		return nil
	}
	names, errNames := processNames()
	if err != nil || errNames != nil {
		return []leftover{{name: "?"}}
	}
	var all []leftover
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == g.pid {
			continue
		}
		p, err := readProcess(pid)
		if err != nil || !g.left(p, own.start) {
			continue
		}
		if p.ended() {
			reaped, err := unix.Wait4(pid, nil, unix.WNOHANG, nil)
			if err != nil || reaped == 0 {
				continue // a living process is its parent
			}
		}
		all = append(all, leftover{pid: pid, name: p.name, ended: p.ended(), apart: p.group != g.pid})
	}
	return all
}

// processNames returns the names in /proc, of which those of processes are their ids.
func processNames() ([]string, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return dir.Readdirnames(-1)
}

// left reports whether p was started by the program, which was started at start.
func (g *processGroup) left(p process, start uint64) bool {
	return p.start >= start && (p.group == g.pid || p.session == g.pid || g.mark != 0 && p.mark() == g.mark)
}

// signalRest sends a signal to processes that rest has returned, unless they have ended and their ids belong to others.
func (g *processGroup) signalRest(rest []leftover, s syscall.Signal) {
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
			held.Signal(s)
		}
		held.Release()
	}
}

// A process is what /proc says about one.
type process struct {
	pid, parent, group, session int
	name, state                 string
	threads                     int
	start                       uint64 // in ticks since the system's start
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
	p.parent, _ = strconv.Atoi(fields[1])
	p.group, _ = strconv.Atoi(fields[2])
	p.session, _ = strconv.Atoi(fields[3])
	p.threads, _ = strconv.Atoi(fields[17])
	p.start, err = strconv.ParseUint(fields[19], 10, 64)
	return p, err
}

// ended reports whether a process has ended and is not reaped. If only its first thread has, it has not.
func (p process) ended() bool { return (p.state == "Z" || p.state == "X") && p.threads <= 1 }

// mark returns the mark of a process, 0 if it has none.
func (p process) mark() uint64 {
	limits, _ := os.ReadFile(fmt.Sprintf("/proc/%d/limits", p.pid))
	_, after, _ := bytes.Cut(limits, []byte("\nMax file locks "))
	soft, _, _ := bytes.Cut(bytes.TrimLeft(after, " "), []byte{' '})
	mark, _ := strconv.ParseUint(string(soft), 10, 64)
	return mark
}
