package sinks

import (
	"io/fs"
	"log/slog"
	"os"

	"golang.org/x/sys/windows"
)

// openAt opens a file as os.OpenFile does. On Windows a file has the access list of its directory.
func openAt(path string, flag int, mode fs.FileMode, _ *slog.Logger) (*os.File, error) {
	return os.OpenFile(path, flag, mode)
}

// renameNew renames a file to a name that nothing has yet; if something has it, the error is fs.ErrExist. It does not
// reserve the name first: a file that was just made may be held open by what looks for viruses in it.
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
