//go:build unix

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// maxLinks is how many symbolic links a path may lead through, as in the kernel of Linux.
const maxLinks = 40

// stateOwner is whom the state in dir belongs to, when root asks and it is another user's; else there is none. That is
// whoever owns the directory, or one on the way to it: each of them decides where dir leads.
func stateOwner(dir string) (o owner, found bool, err error) {
	if os.Geteuid() != 0 {
		return o, false, nil
	}
	dir, err = filepath.Abs(dir)
	if err != nil {
		return o, false, err
	}
	return firstOwner(dir, maxLinks)
}

// firstOwner follows path from the root of the file system to the first name that is not root's. What does not exist is
// root's to make, and whoever opens a path through a file says what is wrong with it.
func firstOwner(path string, links int) (o owner, found bool, err error) {
	at, rest := "/", strings.Split(strings.TrimPrefix(filepath.Clean(path), "/"), "/")
	for len(rest) > 0 {
		at, rest = filepath.Join(at, rest[0]), rest[1:]
		info, err := os.Lstat(at)
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
			return o, false, nil
		case err != nil:
			return o, false, err
		}
		if stat := info.Sys().(*syscall.Stat_t); stat.Uid != 0 && isUser(int(stat.Uid)) {
			return owner{uid: int(stat.Uid), gid: int(stat.Gid)}, true, nil
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			continue
		}
		target, err := os.Readlink(at)
		switch {
		case err != nil:
			return o, false, err
		case links == 0:
			return o, false, &fs.PathError{Op: "readlink", Path: at, Err: syscall.ELOOP}
		case !filepath.IsAbs(target):
			target = filepath.Join(filepath.Dir(at), target)
		}
		return firstOwner(filepath.Join(target, filepath.Join(rest...)), links-1)
	}
	return o, false, nil
}

// isUser says whether a user exists in this user namespace. In a rootless container the files of the host's users seem
// to belong to one that does not, whom nobody can become; to that container's root they are like its own.
func isUser(uid int) bool {
	ranges, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return true // only Linux has these namespaces
	}
	for line := range strings.Lines(string(ranges)) {
		var first, outside, count int
		if _, err := fmt.Sscan(line, &first, &outside, &count); err == nil && uid >= first && uid-first < count {
			return true
		}
	}
	return false
}

// become makes this process that of the owner, for good, with the groups of the user.
func (o owner) become() error {
	gid, groups := o.gid, []int{}
	if u, err := user.LookupId(strconv.Itoa(o.uid)); err == nil { // an owner need not have a name
		if n, err := strconv.Atoi(u.Gid); err == nil {
			gid = n
		}
		ids, err := u.GroupIds()
		if err != nil {
			return fmt.Errorf("groups of %s: %w", o, err)
		}
		for _, id := range ids {
			if n, err := strconv.Atoi(id); err == nil {
				groups = append(groups, n)
			}
		}
	}
	if err := syscall.Setgroups(groups); err != nil {
		return fmt.Errorf("set the groups of %s: %w", o, err)
	}
	if err := syscall.Setgid(gid); err != nil {
		return fmt.Errorf("set the group of %s: %w", o, err)
	}
	if err := syscall.Setuid(o.uid); err != nil {
		return fmt.Errorf("become %s: %w", o, err)
	}
	return nil
}
