package outbox

import (
	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/windows"
)

// unmap releases the mapping of a damaged file, which nothing reads any more: Windows removes no file that is mapped.
func unmap(db *bolt.DB) { _ = windows.UnmapViewOfFile(db.Info().Data) }
