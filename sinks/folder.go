package sinks

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
)

// A folder is the directory that a file sink writes in, opened for one delivery. The files in it go by their names.
// openFolder, which each system has, opens one.
type folder interface {
	// open opens a file as os.OpenFile does.
	open(name string, flag int, mode fs.FileMode) (*os.File, error)
	stat(name string) (fs.FileInfo, error)
	// rename gives a file a name that does not exist yet. If it does exist, the error is fs.ErrExist.
	rename(name, to string) error
	remove(name string) error
	list() ([]fs.DirEntry, error)
	// sync makes the names in the folder durable. It does nothing where a directory can't be synced.
	sync() error
	Close() error
}

// A plainFolder is a folder by its path, in which links are followed.
type plainFolder string

func (p plainFolder) path(name string) string { return filepath.Join(string(p), name) }

func (p plainFolder) open(name string, flag int, mode fs.FileMode) (*os.File, error) {
	return os.OpenFile(p.path(name), flag, mode)
}

func (p plainFolder) stat(name string) (fs.FileInfo, error) { return os.Stat(p.path(name)) }
func (p plainFolder) rename(name, to string) error          { return renameNew(p.path(name), p.path(to)) }
func (p plainFolder) remove(name string) error              { return os.Remove(p.path(name)) }
func (p plainFolder) list() ([]fs.DirEntry, error)          { return os.ReadDir(string(p)) }
func (p plainFolder) Close() error                          { return nil }

func (p plainFolder) sync() error {
	if runtime.GOOS == "windows" {
		return nil
	}
	dir, err := os.Open(string(p))
	if errors.Is(err, fs.ErrPermission) {
		return nil // a directory can be writable and not readable
	}
	return syncAndClose(dir, err)
}

// syncAndClose makes the names in a directory durable, if its file system can do that, and closes it. err is that of
// opening it.
func syncAndClose(dir *os.File, err error) error {
	if err != nil {
		return err
	}
	defer dir.Close()
	err = dir.Sync()
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, errors.ErrUnsupported) {
		return nil
	}
	return err
}

// openPlainFolder returns a folder by its path. If missing is true, it makes the folder and its missing parents,
// durably. The error wraps syscall.ENOTDIR if one of them is a file.
func openPlainFolder(path string, missing bool) (folder, error) {
	info, err := os.Stat(path)
	switch {
	case err == nil && !info.IsDir(): // Windows would only report that the path below it does not exist
		return nil, &fs.PathError{Op: "open", Path: path, Err: syscall.ENOTDIR}
	case err == nil:
		return plainFolder(path), nil
	case !errors.Is(err, fs.ErrNotExist), !missing, filepath.Dir(path) == path:
		return nil, err
	}
	above, err := openPlainFolder(filepath.Dir(path), true)
	if err != nil {
		return nil, err
	}
	err = os.Mkdir(path, 0o750)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return plainFolder(path), above.sync()
}
