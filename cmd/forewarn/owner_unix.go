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

// maxLinks bounds the symbolic links in a path, as Linux does.
const maxLinks = 40

// stateOwner finds the user other than root who controls dir: the owner of the directory, or of the first one on the
// way to it, since each of them decides where dir leads. It finds none when root owns all of them, or when the process
// does not run as root.
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

// firstOwner follows path from the root of the file system to the first entry that does not belong to root. It finds
// none if the path ends earlier: root creates what is missing, and opening a path through a file reports its own error.
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
		if o := ownerOf(info); o.uid != 0 && isUser(o.uid) {
			return o, true, nil
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

// ownerOf returns the owner of a file.
func ownerOf(info fs.FileInfo) owner {
	stat := info.Sys().(*syscall.Stat_t)
	return owner{uid: int(stat.Uid), gid: int(stat.Gid)}
}

// isUser reports whether a user exists in this user namespace. In a rootless container, files of the host's users
// appear to belong to a user that does not exist, and nobody can switch to it; the container's root treats them as its
// own.
func isUser(uid int) bool {
	ranges, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return true // only Linux has user namespaces
	}
	for line := range strings.Lines(string(ranges)) {
		var first, outside, count int
		if _, err := fmt.Sscan(line, &first, &outside, &count); err == nil && uid >= first && uid-first < count {
			return true
		}
	}
	return false
}

// become switches this process to the owner, with all groups of that user, for good.
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
		return fmt.Errorf("switch to %s: %w", o, err)
	}
	return nil
}
