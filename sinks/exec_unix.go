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

// startErrors are those that stay until somebody acts, beside what every system has.
var startErrors = []error{syscall.ENOEXEC, syscall.EISDIR, syscall.ELOOP, syscall.ENAMETOOLONG, syscall.E2BIG}

// An account is the user that a program runs as.
type account struct {
	name, home string
	credential *syscall.Credential // nil for the bridge's own
}

// findAccount looks up a user; without a name, the bridge's own. Only root can run a program as another user.
func findAccount(name string) (account, error) {
	if name == "" {
		u, err := user.Current()
		if err != nil { // it need not have a name
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

// mayRun reports whether the account may run the file, or enter the directory, at path. It checks the modes of
// everything on the way, but no access control lists.
func (a account) mayRun(path string) error {
	for {
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		if !a.hasX(info) {
			return &fs.PathError{Op: "run as " + a.name, Path: path, Err: fs.ErrPermission}
		}
		above := filepath.Dir(path)
		if above == path {
			return nil
		}
		path = above
	}
}

func (a account) hasX(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	c, mode := a.credential, info.Mode()
	switch {
	case c == nil || !ok: // find has checked it
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

// baseVariables are the variables of every program. They do not depend on who started the bridge, so that a trial by
// hand is like the service.
func baseVariables(a account, _ func(string) string) []variable {
	all := []variable{{"PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, {"LANG", "C.UTF-8"}}
	if a.name != "" {
		all = append(all, variable{"HOME", a.home}, variable{"USER", a.name}, variable{"LOGNAME", a.name})
	}
	return all
}

// A processGroup is a program and its process group.
type processGroup struct {
	pid int

	mu   sync.Mutex
	gone bool // the program's id may belong to another by now
}

func newProcessGroup(p *os.Process) *processGroup { return &processGroup{pid: p.Pid} }

func (f *processGroup) terminate() { f.signal(syscall.SIGTERM) }
func (f *processGroup) kill()      { f.signal(syscall.SIGKILL) }

func (f *processGroup) signal(s syscall.Signal) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.gone {
		syscall.Kill(-f.pid, s)
	}
}

// close notes that the program has ended and its id is free.
func (f *processGroup) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gone = true
}
