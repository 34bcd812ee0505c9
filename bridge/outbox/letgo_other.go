//go:build !windows

package outbox

import (
	"os"
	"syscall"

	bolt "go.etcd.io/bbolt"
)

// letGo unlocks a damaged file, so that others can read it. It leaves the mapping as it is, which would keep the lock
// although the file is closed: here a mapped file can be renamed and removed.
func letGo(_ *bolt.DB, fd *os.File) { _ = syscall.Flock(int(fd.Fd()), syscall.LOCK_UN) }
