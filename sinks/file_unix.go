//go:build unix

package sinks

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
)

// openAt opens a file as os.OpenFile does. In a directory of another user, who may have put anything there under that
// name, root is careful: it follows no link out of the directory, and takes nothing that belongs to somebody else or
// has a second name. What it makes there belongs to the owner of the directory, or a warning says that it does not: a
// share may refuse that, and is written to all the same.
func openAt(path string, flag int, mode fs.FileMode, log *slog.Logger) (*os.File, error) {
	if os.Geteuid() != 0 {
		return os.OpenFile(path, flag, mode)
	}
	dir, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	info, err := dir.Stat(".")
	if err != nil {
		return nil, err
	}
	owner := info.Sys().(*syscall.Stat_t)
	if owner.Uid == 0 {
		return os.OpenFile(path, flag, mode)
	}
	name := filepath.Base(path)
	if flag&os.O_CREATE != 0 {
		file, err := dir.OpenFile(name, flag|os.O_EXCL, mode)
		if err == nil {
			if err := file.Chown(int(owner.Uid), int(owner.Gid)); err != nil {
				log.Warn("file not given to the owner of its directory", "path", path, "err", err)
			}
			return file, nil
		} else if !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
	}
	file, err := dir.OpenFile(name, flag&^os.O_CREATE, mode)
	if err != nil {
		if info, lerr := dir.Lstat(name); lerr == nil && info.Mode()&fs.ModeSymlink != 0 {
			err = fmt.Errorf("%s %w: it is a link", path, errForeign)
		}
		return nil, err
	}
	if err := ownedBy(file, owner.Uid); err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// ownedBy refuses an open file that is neither root's nor the user's, or that has a second name: another directory may
// hold it under that, and its owner be somebody who never meant it to be here.
func ownedBy(file *os.File, uid uint32) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	switch stat := info.Sys().(*syscall.Stat_t); {
	case stat.Uid != 0 && stat.Uid != uid:
		return fmt.Errorf("%s %w: it belongs to user %d", file.Name(), errForeign, stat.Uid)
	case stat.Nlink > 1:
		return fmt.Errorf("%s %w: it has a second name", file.Name(), errForeign)
	}
	return nil
}

// renameNew renames a file to a name that nothing has yet; if something has it, the error is fs.ErrExist. It reserves
// the name first, because renaming would replace what has it.
func renameNew(path, name string) error {
	reserved, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o640)
	if err != nil {
		return err
	}
	reserved.Close()
	if err := os.Rename(path, name); err != nil {
		os.Remove(name) // nothing but the reservation
		return err
	}
	return nil
}
