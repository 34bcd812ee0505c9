//go:build !windows

package sinks

import "os"

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
