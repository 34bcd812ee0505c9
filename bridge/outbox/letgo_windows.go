package outbox

import (
	"os"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/windows"
)

// letGo releases the mapping of a damaged file, which nothing reads any more: Windows removes no file that is mapped.
func letGo(db *bolt.DB, _ *os.File) {
	if db != nil {
		_ = windows.UnmapViewOfFile(db.Info().Data)
	}
}
