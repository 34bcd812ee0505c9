//go:build unix

package sinks

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// openFolder opens the directory at path, with its missing parents if missing is true.
//
// Root is careful where others may write: they may have put anything there, such as a link to a directory of root's.
// In and below the first directory on the way that others may write to, root follows no link.
func openFolder(path string, missing bool, log *slog.Logger) (folder, error) {
	if os.Geteuid() != 0 {
		return openPlainFolder(path, missing)
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	w, err := walkTo(path, missing)
	if err != nil {
		return nil, err
	}
	if !w.shared { // what lies there is root's own
		return plainFolder(path), w.dir.Close()
	}
	info, err := w.dir.Stat(".")
	if err != nil {
		w.dir.Close()
		return nil, err
	}
	return &sharedFolder{w.dir, path, info, log}, nil
}

// A walk is the way from / to a directory.
type walk struct {
	dir    *os.Root
	path   string // of dir, without links
	shared bool   // whether others may write to dir, or to a directory on the way to it
	links  int    // that were followed
}

const maxLinks = 40 // as Linux has it

// walkTo returns a walk that has arrived at an absolute path.
func walkTo(path string, missing bool) (*walk, error) {
	w := &walk{}
	rest, err := w.restart(path)
	for err == nil && len(rest) > 0 {
		rest, err = w.step(rest[0], rest[1:], missing)
	}
	if err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

func (w *walk) close() {
	if w.dir != nil {
		w.dir.Close()
	}
}

// restart goes back to /, and returns the names that lead to an absolute path from there.
func (w *walk) restart(path string) ([]string, error) {
	w.close()
	dir, err := os.OpenRoot("/")
	if err != nil {
		return nil, err
	}
	w.dir, w.path = dir, "/"
	info, err := dir.Stat(".")
	w.shared = err == nil && isShared(info)
	names := strings.FieldsFunc(filepath.Clean(path), func(r rune) bool { return r == '/' })
	return names, err
}

// step enters the directory of that name, and returns the names that lead on from there. A link that may be followed
// leads to a new start.
func (w *walk) step(name string, rest []string, missing bool) ([]string, error) {
	path := filepath.Join(w.path, name)
	info, err := w.dir.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) && missing {
		info, err = w.make(name)
	}
	switch {
	case err != nil:
		return nil, withPath(err, path)
	case info.Mode()&fs.ModeSymlink != 0:
		return w.follow(name, rest)
	case !info.IsDir():
		return nil, &fs.PathError{Op: "open", Path: path, Err: syscall.ENOTDIR}
	}
	next, err := w.dir.OpenRoot(name)
	if err != nil {
		return nil, withPath(err, path)
	}
	w.dir.Close()
	w.dir, w.path = next, path
	opened, err := next.Stat(".")
	if err == nil && !os.SameFile(info, opened) { // a link has taken its place meanwhile
		err = fmt.Errorf("%s %w: it changed while it was opened", path, errForeign)
	}
	w.shared = w.shared || err == nil && isShared(opened)
	return rest, err
}

// make makes a directory, durably.
func (w *walk) make(name string) (fs.FileInfo, error) {
	err := w.dir.Mkdir(name, 0o750)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	dir, err := w.dir.Open(".")
	if err := syncAndClose(dir, err); err != nil {
		return nil, err
	}
	return w.dir.Lstat(name)
}

// follow returns the names that lead from / to where a link leads, and on from there.
func (w *walk) follow(name string, rest []string) ([]string, error) {
	path := filepath.Join(w.path, name)
	if w.shared {
		return nil, fmt.Errorf("%s %w: it is a link", path, errForeign)
	}
	w.links++
	if w.links > maxLinks {
		return nil, &fs.PathError{Op: "open", Path: path, Err: syscall.ELOOP}
	}
	to, err := w.dir.Readlink(name)
	if err != nil {
		return nil, withPath(err, path)
	}
	if !filepath.IsAbs(to) {
		to = filepath.Join(w.path, to)
	}
	return w.restart(filepath.Join(to, filepath.Join(rest...)))
}

// withPath returns an error of an os.Root with the whole path in place of the name.
func withPath(err error, path string) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return &fs.PathError{Op: strings.TrimSuffix(e.Op, "at"), Path: path, Err: e.Err}
	}
	return err
}

// isShared reports whether others than root may write to a directory.
func isShared(dir fs.FileInfo) bool {
	stat := dir.Sys().(*syscall.Stat_t)
	group := dir.Mode()&0o020 != 0 && stat.Gid != 0
	return stat.Uid != 0 || group || dir.Mode()&0o002 != 0
}

// A sharedFolder is a folder for root in which, or above which, others may write. Nothing in it leads out of it: a link
// is refused with errForeign, and so is a file that others may have put there for root to write to. A file that root
// makes in another user's folder is given to that user. A network share may refuse that; the folder then logs a
// warning, and opens the file all the same.
type sharedFolder struct {
	dir  *os.Root
	path string
	info fs.FileInfo
	log  *slog.Logger
}

func (s *sharedFolder) Close() error { return s.dir.Close() }

func (s *sharedFolder) stat(name string) (fs.FileInfo, error) {
	path := filepath.Join(s.path, name)
	info, err := s.dir.Lstat(name)
	if err != nil {
		return nil, withPath(err, path)
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		return nil, fmt.Errorf("%s %w: it is a link", path, errForeign)
	}
	return info, nil
}

func (s *sharedFolder) open(name string, flag int, mode fs.FileMode) (*os.File, error) {
	if flag&os.O_CREATE != 0 {
		file, err := s.create(name, flag, mode)
		if !errors.Is(err, fs.ErrExist) || flag&os.O_EXCL != 0 {
			return file, err
		}
	}
	before, err := s.stat(name)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(s.path, name)
	if !before.Mode().IsRegular() {
		return nil, fmt.Errorf("%s %w", path, errIrregular)
	}
	file, err := s.dir.OpenFile(name, flag&^os.O_CREATE, mode)
	if err != nil {
		return nil, withPath(err, path)
	}
	info, err := file.Stat()
	if err == nil && !os.SameFile(before, info) { // a link has taken its place meanwhile
		err = fmt.Errorf("%s %w: it changed while it was opened", path, errForeign)
	}
	if err == nil {
		err = s.checkOwner(path, info)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// create makes a file. If there is one, the error is fs.ErrExist.
func (s *sharedFolder) create(name string, flag int, mode fs.FileMode) (*os.File, error) {
	path := filepath.Join(s.path, name)
	file, err := s.dir.OpenFile(name, flag|os.O_EXCL, mode)
	if err != nil {
		return nil, withPath(err, path)
	}
	owner := s.info.Sys().(*syscall.Stat_t)
	if owner.Uid == 0 {
		return file, nil
	}
	if err := file.Chown(int(owner.Uid), int(owner.Gid)); err != nil {
		s.log.Warn("file not given to the owner of its directory", "path", path, "err", err)
	}
	return file, nil
}

// checkOwner returns errForeign for a file that others may have put into the folder, if it belongs to a third user or
// has a second name: that may be in another directory, of somebody who never meant it to be written to from here.
func (s *sharedFolder) checkOwner(path string, file fs.FileInfo) error {
	if !isShared(s.info) {
		return nil
	}
	owner := s.info.Sys().(*syscall.Stat_t).Uid
	switch stat := file.Sys().(*syscall.Stat_t); {
	case owner != 0 && stat.Uid != 0 && stat.Uid != owner:
		return fmt.Errorf("%s %w: it belongs to user %d", path, errForeign, stat.Uid)
	case stat.Nlink > 1:
		return fmt.Errorf("%s %w: it has a second name", path, errForeign)
	}
	return nil
}

func (s *sharedFolder) rename(name, to string) error {
	return renameReserved(name, to, s.dir.OpenFile, s.dir.Rename, s.dir.Remove)
}

func (s *sharedFolder) remove(name string) error {
	return withPath(s.dir.Remove(name), filepath.Join(s.path, name))
}

func (s *sharedFolder) list() ([]fs.DirEntry, error) {
	dir, err := s.dir.Open(".")
	if err != nil {
		return nil, withPath(err, s.path)
	}
	defer dir.Close()
	return dir.ReadDir(-1)
}

func (s *sharedFolder) sync() error {
	dir, err := s.dir.Open(".")
	return syncAndClose(dir, err)
}

// renameNew renames a file to a name that does not exist yet. If it does exist, the error is fs.ErrExist.
func renameNew(path, name string) error {
	return renameReserved(path, name, os.OpenFile, os.Rename, os.Remove)
}

// renameReserved does the work of renameNew with the functions of package os, or those of an os.Root. It reserves the
// name first, because on Unix renaming would replace the file of that name.
func renameReserved(path, name string, open func(string, int, fs.FileMode) (*os.File, error),
	rename func(path, name string) error, remove func(string) error) error {
	reserved, err := open(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o640)
	if err != nil {
		return err
	}
	reserved.Close()
	if err := rename(path, name); err != nil {
		remove(name) // the reservation, which is empty
		return err
	}
	return nil
}
