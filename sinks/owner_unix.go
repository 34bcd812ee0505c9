//go:build unix

package sinks

import (
	"os"
	"syscall"
)

// giveToOwner gives an open file to the owner and the group of a directory.
func giveToOwner(file *os.File, dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	owner := info.Sys().(*syscall.Stat_t)
	return file.Chown(int(owner.Uid), int(owner.Gid))
}
