//go:build unix

package sinks

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
)

// startErrors are the errors of this system, besides those that every system has, that last until somebody acts.
var startErrors = []error{syscall.ENOEXEC, syscall.EISDIR, syscall.ELOOP, syscall.ENAMETOOLONG, syscall.E2BIG}

// An account is the user that a program runs as.
type account struct {
	name, home string
	credential *syscall.Credential // nil for the bridge's own account
}

// findAccount looks up a user, or the bridge's own if name is empty. It refuses a name unless the bridge runs as root.
func findAccount(name string) (account, error) {
	if name == "" {
		u, err := user.Current()
		if err != nil { // an account without a name, as in some containers
			return account{}, nil
		}
		return account{name: u.Username, home: u.HomeDir}, nil
	}
	if os.Geteuid() != 0 {
		return account{}, errors.New("only root can run a command as another user; leave it out, or run forewarn as root")
	}
	u, err := user.Lookup(name)
	if err != nil {
		return account{}, fmt.Errorf("%q is not a user of this machine; expected the name of one", name)
	}
	a := account{name: u.Username, home: u.HomeDir, credential: new(syscall.Credential)}
	groups, err := u.GroupIds()
	if err != nil {
		return account{}, fmt.Errorf("groups of %s: %w", name, err)
	}
	for _, id := range append([]string{u.Uid, u.Gid}, groups...) {
		n, err := strconv.ParseUint(id, 10, 32)
		if err != nil {
			return account{}, fmt.Errorf("ids of %s: %w", name, err)
		}
		a.credential.Groups = append(a.credential.Groups, uint32(n))
	}
	all := a.credential.Groups
	a.credential.Uid, a.credential.Gid, a.credential.Groups = all[0], all[1], all[2:]
	return a, nil
}

// mayRun returns an error unless the account may run the file, or enter the directory, at path. It checks the modes of
// path and of every directory above it, but no access control lists.
func (a account) mayRun(path string) error {
	for {
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		if !a.mayExecute(info) {
			return &fs.PathError{Op: "run as " + a.name, Path: path, Err: fs.ErrPermission}
		}
		above := filepath.Dir(path)
		if above == path {
			return nil
		}
		path = above
	}
}

// mayExecute reports whether the mode of a file or directory lets the account run or enter it.
func (a account) mayExecute(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	c, mode := a.credential, info.Mode()
	switch {
	case c == nil || !ok: // command.find has checked it
		return true
	case c.Uid == 0:
		return info.IsDir() || mode&0o111 != 0
	case c.Uid == stat.Uid:
		return mode&0o100 != 0
	case c.Gid == stat.Gid, slices.Contains(c.Groups, stat.Gid):
		return mode&0o010 != 0
	}
	return mode&0o001 != 0
}

// baseVariables returns the variables that every program gets. They do not depend on who started the bridge, so that a
// command behaves the same when it is tried by hand.
func baseVariables(a account, _ func(string) string) []variable {
	all := []variable{{"PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, {"LANG", "C.UTF-8"}}
	if a.name != "" {
		all = append(all, variable{"HOME", a.home}, variable{"USER", a.name}, variable{"LOGNAME", a.name})
	}
	return all
}

// A processGroup is a program and its process group, whose ids are the same.
type processGroup struct {
	pid  int
	mark uint64 // that only this program has, and what it starts; 0 for none

	mu     sync.Mutex
	closed bool // the id may belong to another process by now
}

func newProcessGroup(p *os.Process, mark uint64) *processGroup {
	return &processGroup{pid: p.Pid, mark: mark}
}

// terminate asks the program and all that it has started to end, unless the program has ended. It reports whether it was
// still running. What is started from then on, as to clean up, is not asked.
func (g *processGroup) terminate() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed || g.hasEnded() {
		return false
	}
	apart := slices.DeleteFunc(g.rest(), func(l leftover) bool { return !l.apart })
	syscall.Kill(-g.pid, syscall.SIGTERM)
	g.signalRest(apart, syscall.SIGTERM)
	return true
}

// kill kills the whole group, unless it is closed.
func (g *processGroup) kill() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		syscall.Kill(-g.pid, syscall.SIGKILL)
	}
}

// killRest kills processes that rest has returned.
func (g *processGroup) killRest(rest []leftover) { g.signalRest(rest, syscall.SIGKILL) }

// close prevents further signals. It is called once the id of the group may be free.
func (g *processGroup) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
}
