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

// openAt opens a file as os.OpenFile does. In another user's directory, anything may have been put under that name, so
// root is careful there. It follows no link out of the directory, and refuses a file that belongs to a third user or
// has a second name, with errForeign. A file that it makes there is given to the owner of the directory. A network
// share may refuse that; openAt then logs a warning and returns the file all the same.
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
	if err := checkOwner(file, owner.Uid); err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// checkOwner returns errForeign for an open file that belongs neither to root nor to the user uid, or that has a second
// name: that name may be in another directory, of somebody who never meant the file to be written to from here.
func checkOwner(file *os.File, uid uint32) error {
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

// renameNew renames a file to a name that does not exist yet. If it does exist, the error is fs.ErrExist. renameNew
// reserves the name first, because on Unix renaming would replace the file of that name.
func renameNew(path, name string) error {
	reserved, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o640)
	if err != nil {
		return err
	}
	reserved.Close()
	if err := os.Rename(path, name); err != nil {
		os.Remove(name) // the reservation, which is empty
		return err
	}
	return nil
}
