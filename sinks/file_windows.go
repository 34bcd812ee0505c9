package sinks

import (
	"log/slog"
	"os"

	"golang.org/x/sys/windows"
)

// openFolder opens the directory at path, with its missing parents if missing is true. On Windows links are followed,
// whoever has made them, and a file has the access list of its directory, so its owner does not matter.
func openFolder(path string, missing bool, _ *slog.Logger) (folder, error) {
	return openPlainFolder(path, missing)
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
