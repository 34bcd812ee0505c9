package sinks

import (
	"io/fs"
	"log/slog"
	"os"

	"golang.org/x/sys/windows"
)

// openAt opens a file as os.OpenFile does. On Windows a file inherits the access list of its directory, so its owner
// does not matter.
func openAt(path string, flag int, mode fs.FileMode, _ *slog.Logger) (*os.File, error) {
	return os.OpenFile(path, flag, mode)
}

// renameNew renames a file to a name that does not exist yet. If it does exist, the error is fs.ErrExist. renameNew
// does not reserve the name first, as on Unix, because a virus scanner may hold a file open that was just made.
func renameNew(path, name string) error {
	from, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return err
	}
	to, err := windows.UTF16PtrFromString(name)
	if err != nil {
		return err
	}
	if err := windows.MoveFileEx(from, to, 0); err != nil {
		return &os.LinkError{Op: "rename", Old: path, New: name, Err: err}
	}
	return nil
}
