package sinks

import (
	"os"

	"golang.org/x/sys/windows"
)

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
