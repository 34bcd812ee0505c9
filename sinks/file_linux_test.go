package sinks

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Whoever swaps a directory and a link, again and again while root writes, gains nothing by it.
func TestSwappedDirectoryLeadsRootNowhere(t *testing.T) {
	dir, roots := serviceDirectory(t), t.TempDir()
	logs, link := filepath.Join(dir, "logs"), filepath.Join(dir, "link")
	err := errors.Join(os.Mkdir(logs, 0o755), os.Chown(logs, service, operators), os.Symlink(roots, link), fill(roots))
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var swapper sync.WaitGroup
	swapper.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				unix.Renameat2(unix.AT_FDCWD, logs, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE)
			}
		}
	})
	settings := "path: " + filepath.Join(logs, "audit.jsonl") + "\nmax_size: 1\nkeep: 1"
	s := mustOpen(t, "file", settings, testHost(t))
	for range 300 {
		s.Deliver(t.Context(), deliveries(t)[:1]) // some are refused, as it happens
	}
	close(stop)
	swapper.Wait()
	wantFilled(t, roots)
}
